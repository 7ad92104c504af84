"""Clients that ask a server again and again, each on a connection that it keeps.

They speak HTTP by themselves: a general client takes as much processor time for a request as the server, and on two
cores would measure itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_PAUSE_SECONDS = 0.05
_MOST_TRIES = 100


@dataclass(kw_only=True, slots=True)
class Told:
    """What clients were told.

    Attributes:
        seconds: Time of each request, from its first byte to the last one of its answer.
        statuses: How often each status came.
        without_retry_after: Number of answers 429 and 503 that do not say when to come again.
        broken: Number of connections that broke while a request was under way; each request was asked again.
        lost: Number of requests that never got an answer 200.
        answers: The answer to each row that was asked about, by the row's number; the last one if it was asked often.
        wall_seconds: Time from the first request to the last answer.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    without_retry_after: int = 0
    broken: int = 0
    lost: int = 0
    answers: dict[int, Any] = field(default_factory=dict)
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
    return asyncio.run(_asked(port, requests, clients, count, on_answer))


async def _asked(
    port: int, requests: Sequence[bytes], clients: int, count: int, on_answer: Callable[[int], None] | None
) -> Told:
    told, numbers = Told(), iter(range(count))
    started = time.perf_counter()

    async def client() -> None:
        connection: Connection | None = None
        for number in numbers:
            connection = await _until_answered(port, connection, requests, number, told)
            if on_answer is not None:
                on_answer(len(told.seconds))
        if connection is not None:
            connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    told.wall_seconds = time.perf_counter() - started
    return told


async def _until_answered(
    port: int, connection: Connection | None, requests: Sequence[bytes], number: int, told: Told
) -> Connection | None:
    """Ask until the answer has status 200, as a client that repeats its request does; returns the connection."""
    row, began = number % len(requests), time.perf_counter()
    for _ in range(_MOST_TRIES):
        try:
            connection = connection or await Connection.opened(port)
            status, head, body = await connection.ask(requests[row])
        except (OSError, asyncio.IncompleteReadError):
            told.broken += 1
            connection = None
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        told.statuses[status] += 1
        if b"connection: close" in head:
            connection.close()
            connection = None
        if status == 200:
            told.seconds.append(time.perf_counter() - began)
            told.answers[row] = body
            return connection
        told.without_retry_after += status in {429, 503} and b"retry-after:" not in head
        await asyncio.sleep(_PAUSE_SECONDS)
    told.lost += 1
    return connection


class Connection:
    """A connection that is kept.

    Args:
        reader: What comes from the server.
        writer: What goes to it.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def opened(cls, port: int) -> Connection:
        """Return a new connection."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: bytes) -> tuple[int, bytes, bytes]:
        """Send a request, and return status, head in small letters, and body."""
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        return int(head[9:12]), head, body

    def close(self) -> None:
        """Close it."""
        self._writer.close()
