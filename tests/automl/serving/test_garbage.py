"""Clients that do not speak HTTP, or stop in the middle: nobody else notices them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from tests.automl.serving.models import Expected
from tests.support.served import Load, Server

POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "noise": random.Random(0).randbytes(5000),
    "a line": b"hello\r\n\r\n",
    "TLS": bytes.fromhex("16030100f8010000f40303") + random.Random(1).randbytes(200),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9": b"GET / HTTP/9.9\r\n\r\n",
    "half a head": b"POST /predict HTTP/1.1\r\nHost: loc",
    "half a body": POST + b'Content-Length: 100\r\n\r\n{"row"',
    "no body": POST + b"Content-Length: 100\r\n\r\n",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "a length and chunks": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no chunks": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
    "a huge chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{",
    "headers behind a body": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 500_000,
    "extensions of a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"x" * 3_000_000,
    "a header without a name": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    "control characters": b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
    "a huge header": b"GET / HTTP/1.1\r\nX: " + b"x" * 3_000_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500_000 + b"\r\n",
    "a huge path": b"GET /" + b"x" * 3_000_000 + b" HTTP/1.1\r\n\r\n",
    "no path": b"GET //[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path that is no text": b"GET /\xff\xfe%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a tunnel": b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a WebSocket": b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a request and rubbish": HEALTH + random.Random(2).randbytes(500),
    "rubbish in a row": HEALTH + POST + b"Content-Length: 3\r\n\r\n{}}" + HEALTH + b"\x00" * 99,
    "many requests at once": HEALTH * 300,
    "a host that is no text": b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
}


def server_errors(figures: dict[str, float]) -> float:
    return sum(value for name, value in figures.items() if "requests_total" in name and 'status="5' in name)


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_gets_a_refusal_or_nothing(server: Server, kind: str) -> None:
    answer = server.raw(GARBAGE[kind])
    statuses = [line.split()[1] for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    assert all(one[:1] in b"234" for one in statuses), answer[:500]
    assert server.ask("/health").status == 200
    log = server.log.read_text()
    assert "Traceback" not in log, log


def test_a_client_that_says_it_sends_no_more_gets_its_answer(server: Server) -> None:
    body = b'{"row": {"age": 39, "city": "Oslo", "score": null}}'
    answer = server.raw(POST + b"Content-Length: %d\r\n\r\n" % len(body), body)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'"model":"t/0@2"}')
    assert server.raw(HEALTH * 3).count(b"HTTP/1.1 200 ") == 3


def test_beside_garbage_every_request_is_answered(
    server: Server, people_model: Path, rows: list[dict[str, Any]]
) -> None:
    expected = Expected({"t/0@2": people_model}, rows)
    one = itertools.cycle(rows)
    before, workers = server_errors(server.figures()), server.workers()
    with Load(server, 4, lambda: {"row": next(one)}, pause_seconds=0.02) as clients:
        for garbage in GARBAGE.values():
            server.raw(garbage)
        clients.more(50)
    expected.check(clients.replies)
    assert not clients.broken
    assert not clients.refused
    assert server.workers() == workers
    assert server_errors(server.figures()) == before
