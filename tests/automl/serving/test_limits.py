"""What a server does that has more to do than it can: requests wait, are refused or given up, and none is forgotten."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from automl.standalone.serving.errors import RequestError
from tests.automl.serving.conftest import TOKEN
from tests.automl.serving.models import lasting
from tests.support import optional
from tests.support.served import Load, Server


def test_a_full_queue_is_told_with_a_time_to_come_back(guarded_server: Server) -> None:
    with Load(guarded_server, 12, lambda: lasting(700), token=TOKEN) as clients:
        guarded_server.wait_for(lambda: {200, 429} <= clients.statuses.keys())
    refused = [reply for reply in clients.replies if reply.status == 429]
    assert clients.statuses.keys() <= {200, 429, 503}
    assert not clients.broken
    assert all(reply.headers["retry-after"] == "1" for reply in refused)
    assert refused[0].body["detail"].endswith("rows wait already, allowed: 4")
    assert guarded_server.ask("/predict", lasting(3), token=TOKEN).status == 200


def test_a_request_that_takes_too_long_is_given_up_and_the_next_one_answered(guarded_server: Server) -> None:
    length = 1000
    while (reply := guarded_server.ask("/predict", lasting(length), token=TOKEN)).status == 200:
        length = length * 3 // 2
        assert length < 20_000
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert reply.body["detail"] == "there was no answer in 2 seconds"

    def is_free() -> bool:
        return guarded_server.ask("/predict", lasting(3), token=TOKEN).status == 200

    guarded_server.wait_for(is_free)


def test_a_body_that_does_not_come_is_told_so(guarded_server: Server) -> None:
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 20\r\n\r\n"
    answer = _until_closed(guarded_server, head.encode() + b'{"row"')
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body: found no end in 2 seconds" in answer


def test_a_head_that_does_not_come_is_told_so(guarded_server: Server) -> None:
    answer = _until_closed(guarded_server, b"POST /predict HTTP/1.1\r\nHost: loc")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"head: found no end in 2 seconds" in answer
    assert _until_closed(guarded_server, b"") == b""


def test_a_head_that_is_too_large_is_refused(guarded_server: Server) -> None:
    endless = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2**21
    assert guarded_server.raw(endless)[:13] in {b"HTTP/1.1 431 ", b""}  # the rest of it may push the answer away
    assert guarded_server.ask("/health", X="x" * 30_000).status == 200


def _until_closed(server: Server, sent: bytes) -> bytes:
    """What comes until the server itself closes the connection."""
    found = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        end = time.monotonic() + 60
        while got := connection.recv(65_536):
            found += got
            assert time.monotonic() < end
    return found


def test_bodies_under_way_have_a_common_limit() -> None:
    request_of = optional.module("starlette.requests").Request
    bodies_of = optional.module("automl.standalone.serving.bodies").Bodies

    def sent(*parts: bytes) -> Any:
        messages = [{"type": "http.request", "body": one, "more_body": True} for one in parts]
        coming = iter([*messages, {"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Any:
            return next(coming)

        return request_of({"type": "http", "method": "POST", "headers": []}, receive)

    async def ask() -> None:
        bodies = bodies_of(10, 15)
        async with bodies.read(sent(b"12345", b"678")) as first:
            assert first == b"12345678"
            with pytest.raises(RequestError, match="found 16 bytes of requests under way, allowed: 15") as refused:
                async with bodies.read(sent(b"12345", b"678")):
                    pass
            assert (refused.value.status, refused.value.retry_seconds) == (429, 1)
            async with bodies.read(sent(b"1234567")):
                pass
        with pytest.raises(RequestError, match="found more than 10 bytes"):
            async with bodies.read(sent(b"12345", b"678901")):
                pass
        async with bodies.read(sent(b"1234567890")), bodies.read(sent(b"12345")):
            pass  # nothing of the others counts any more

    asyncio.run(ask())
