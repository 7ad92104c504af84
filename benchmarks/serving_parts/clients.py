"""Clients that ask a server again and again, each on a connection that it keeps.

One thread waits for all of them and speaks HTTP by itself, of which it needs little: requests are bytes that were made
before, and of an answer only status and length are read. A general client takes as much processor time for a request as
the server, and on two cores would measure itself; this one takes a small part of it.
"""

from __future__ import annotations

import heapq
import json
import re
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_PAUSE_SECONDS = 0.05
_MOST_TRIES = 100
_CHUNK_BYTES = 65_536
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close\r\n", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after:", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"


@dataclass(kw_only=True, slots=True)
class Told:
    """What clients were told.

    Attributes:
        seconds: Time of each request, from its first byte to the last one of its answer.
        statuses: How often each status came.
        without_retry_after: Number of answers 429 and 503 that do not say when to come again.
        broken: Number of connections that broke while a request was under way; each request was asked again.
        broken_twice: Number of requests whose connection broke more often than once.
        lost: Number of requests that never got an answer 200.
        answers: The answer to each row that was asked about, by the row's number; the last one if it was asked often.
        wall_seconds: Time from the first request to the last answer.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    without_retry_after: int = 0
    broken: int = 0
    broken_twice: int = 0
    lost: int = 0
    answers: dict[int, bytes] = field(default_factory=dict)
    wall_seconds: float = 0.0

    def figures(self) -> dict[str, float]:
        """Return requests a second and latencies in milliseconds."""
        p50, p99 = np.quantile(self.seconds, [0.5, 0.99]) * 1000
        return {
            "requests_per_second": round(len(self.seconds) / self.wall_seconds, 1),
            "p50_ms": round(float(p50), 2),
            "p99_ms": round(float(p99), 2),
        }


def request_of(path: str, content: Any) -> bytes:
    """Return the bytes of a POST request."""
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


def asked(
    port: int, requests: Sequence[bytes], *, clients: int, count: int, on_answer: Callable[[int], None] | None = None
) -> Told:
    """Ask a server, and return what it told.

    Args:
        port: Its port.
        requests: What is asked, in turn.
        clients: Number of clients that ask at the same time.
        count: Number of requests in all.
        on_answer: Called after each answer with the number of answers so far.
    """
    return _Crowd(port, requests, count, on_answer).asked(clients)


class _Crowd:
    """All clients, and the thread that waits for them."""

    def __init__(
        self, port: int, requests: Sequence[bytes], count: int, on_answer: Callable[[int], None] | None
    ) -> None:
        self._port, self._requests, self._on_answer = port, requests, on_answer
        self._numbers: Iterator[int] = iter(range(count))
        self._told, self._selector = Told(), selectors.DefaultSelector()
        self._pausing: list[tuple[float, int, _Client]] = []
        self._busy = 0

    def asked(self, clients: int) -> Told:
        """Ask until all numbers are answered or lost."""
        started = time.perf_counter()
        for name in range(clients):
            self._next(_Client(name))
        while self._busy:
            self._wake()
            for key, _ in self._selector.select(self._patience()):
                self._take(key.data)
        self._told.wall_seconds = time.perf_counter() - started
        self._selector.close()
        return self._told

    def _next(self, client: _Client) -> None:
        """Let a client ask the next request, or go where there is none."""
        number = next(self._numbers, None)
        if number is None:
            self._hang_up(client)
            return
        client.number, client.tries, client.breaks, client.began = number, 0, 0, time.perf_counter()
        self._busy += 1
        self._ask(client)

    def _ask(self, client: _Client) -> None:
        client.tries += 1
        client.found, client.is_asking = b"", True
        try:
            if client.connection is None:
                client.connection = socket.create_connection(("127.0.0.1", self._port), timeout=_PAUSE_SECONDS * 20)
                client.connection.settimeout(None)  # otherwise each read would ask the system twice
                client.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._selector.register(client.connection, selectors.EVENT_READ, client)
            client.connection.sendall(self._requests[client.number % len(self._requests)])
        except OSError:
            self._broke(client)

    def _take(self, client: _Client) -> None:
        """Take bytes of an answer."""
        if client.connection is None:
            return
        try:
            got = client.connection.recv(_CHUNK_BYTES)
        except OSError:
            got = b""
        if not client.is_asking:
            self._hang_up(client)  # the server has closed a connection that waited for nothing
            return
        if not got:
            self._broke(client)
            return
        client.found = found = client.found + got if client.found else got
        end = found.find(_HEAD_END)
        if end < 0:
            return
        length = _LENGTH.search(found, 0, end + 2)
        assert length is not None, found[:200]
        body = found[end + len(_HEAD_END) :]
        if len(body) == int(length[1]):
            self._answered(client, found[: end + 2], body)

    def _answered(self, client: _Client, head: bytes, body: bytes) -> None:
        client.is_asking = False
        told, status = self._told, int(head[9:12])
        told.statuses[status] += 1
        if _CLOSE.search(head):
            self._hang_up(client)
        if status != 200:
            told.without_retry_after += status in {429, 503} and _RETRY_AFTER.search(head) is None
            self._pause(client)
            return
        told.seconds.append(time.perf_counter() - client.began)
        told.answers[client.number % len(self._requests)] = body
        self._busy -= 1
        if self._on_answer is not None:
            self._on_answer(len(told.seconds))
        self._next(client)

    def _broke(self, client: _Client) -> None:
        """Let a client ask again whose connection broke."""
        client.is_asking = False
        self._told.broken += 1
        client.breaks += 1
        self._told.broken_twice += client.breaks == 2
        self._hang_up(client)
        self._pause(client)

    def _pause(self, client: _Client) -> None:
        if client.tries < _MOST_TRIES:
            heapq.heappush(self._pausing, (time.perf_counter() + _PAUSE_SECONDS, client.name, client))
            return
        self._told.lost += 1
        self._busy -= 1
        self._next(client)

    def _wake(self) -> None:
        while self._pausing and self._pausing[0][0] <= time.perf_counter():
            self._ask(heapq.heappop(self._pausing)[2])

    def _patience(self) -> float | None:
        return max(0.0, self._pausing[0][0] - time.perf_counter()) if self._pausing else None

    def _hang_up(self, client: _Client) -> None:
        if client.connection is not None:
            self._selector.unregister(client.connection)
            client.connection.close()
            client.connection = None


class _Client:
    """A client, and the request that it asks."""

    __slots__ = ("began", "breaks", "connection", "found", "is_asking", "name", "number", "tries")

    def __init__(self, name: int) -> None:
        self.is_asking = False
        self.name, self.number, self.tries, self.breaks, self.began = name, 0, 0, 0, 0.0
        self.connection: socket.socket | None = None
        self.found = b""
