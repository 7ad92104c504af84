"""A request is answered alike whichever way it takes: directly, or through the application."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import socket
import threading
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from automl.standalone.batches import Encoded, encoded
from automl.standalone.model import Model
from automl.standalone.serving.access import Gate
from automl.standalone.serving.app import make_app
from automl.standalone.serving.batching import Batcher
from automl.standalone.serving.connections import guarded
from automl.standalone.serving.direct import Direct
from automl.standalone.serving.errors import RequestError
from automl.standalone.serving.messages import channel_on
from automl.standalone.serving.metrics import Metrics
from automl.standalone.serving.predictions import Predictions
from automl.standalone.serving.served import Served
from automl.standalone.serving.settings import Settings
from automl.standalone.serving.state import ServingState
from automl.standalone.serving.worker import Worker
from tests.automl.serving.conftest import TOKEN
from tests.automl.serving.models import lasting
from tests.support.served import Server

GOOD = {"row": {"age": 39, "city": "Oslo", "score": None}}
ROW = {"row": [1.0, 2.0]}
CASES: dict[str, tuple[int, str, Any, dict[str, str]]] = {
    "a row": (200, "/predict", GOOD, {}),
    "rows": (200, "/predict/batch", {"rows": [GOOD["row"]] * 70}, {}),
    "no JSON": (422, "/predict", b'{"row": ', {}),
    "a mark of the order of bytes": (422, "/predict", b"\xef\xbb\xbf{}", {}),
    "an empty body": (422, "/predict", b"", {}),
    "another key": (422, "/predict/batch", GOOD, {}),
    "a wrong cell": (422, "/predict", {"row": GOOD["row"] | {"age": "old"}}, {}),
    "too many rows": (422, "/predict/batch", {"rows": [GOOD["row"]] * 101}, {}),
    "another host": (403, "/predict", GOOD, {"Host": "evil.example"}),
    "an id": (200, "/predict", GOOD, {"X-Request-ID": "a:b-1.2"}),
    "a key": (200, "/predict", GOOD, {"AB-Key": "somebody"}),
    "the last request": (200, "/predict", GOOD, {"Connection": "close"}),
}
CHUNKED = {"Transfer-Encoding": "chunked", "Content-Length": ""}


def request(path: str, content: Any, headers: dict[str, str], *, ends: bytes = b"", length: int | None = None) -> bytes:
    """The bytes of a request, with more headers at the end of its head."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    told = {"Host": "localhost", "X-Request-ID": "one", "Content-Length": str(len(body) if length is None else length)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in (told | headers).items() if value)
    return f"POST {path} HTTP/1.1\r\n{lines}".encode() + ends + b"\r\n" + body


def reply(found: Any) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer; the date is left out."""
    got = http.client.HTTPResponse(found)
    got.begin()
    headers = {name.lower(): value for name, value in got.getheaders() if name.lower() != "date"}
    return got.status, headers, got.read()


class Answer(io.BytesIO):
    """Bytes that `http.client` reads like a socket."""

    def makefile(self, *_: Any) -> io.BytesIO:
        return self

    def close(self) -> None:
        """Stay open for the next answer."""


def asked(server: Server, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        return reply(connection)


def asked_in_parts(server: Server, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send a request byte by byte at first; that another one is answered in between shows that the server has them."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for end in range(5):
            connection.sendall(sent[end : end + 1])
        server.ask("/health")
        middle = sent.index(b"\r\n\r\n") + 5
        connection.sendall(sent[5:middle])
        server.ask("/health")
        connection.sendall(sent[middle:])
        return reply(connection)


@pytest.mark.parametrize("name", CASES)
def test_both_ways_lead_to_the_same_answer(server: Server, name: str) -> None:
    status, path, content, headers = CASES[name]
    directly = asked(server, request(path, content, headers))
    body = request(path, content, {}).partition(b"\r\n\r\n")[2]
    chunks = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    through = [
        asked(server, request(f"{path}?x", content, headers)),
        asked_in_parts(server, request(path, content, headers)),
        asked(server, request(path, chunks + b"0\r\n\r\n", headers | CHUNKED)),
    ]
    for one in through:
        assert one == directly
    assert directly[0] == status
    if directly[0] == 200:
        assert directly[1]["x-request-id"] == headers.get("X-Request-ID", "one")
    assert ("connection" in directly[1]) == (name == "the last request")


@pytest.mark.parametrize("value", ["", "Bearer wrong", f"Bearer {TOKEN}"])
def test_both_ways_ask_for_the_token(guarded_server: Server, value: str) -> None:
    headers = {"Authorization": value, "Host": "anything"}
    directly = asked(guarded_server, request("/predict", ROW, headers))
    assert directly == asked(guarded_server, request("/predict?x", ROW, headers))
    assert directly[0] == (200 if TOKEN in value else 401)


def test_both_ways_are_counted(server: Server) -> None:
    def counted() -> list[float]:
        figures = server.figures()
        names = [f'automl_serve_requests_total{{path="/predict",status="{status}"}}' for status in (200, 422)]
        timed = 'automl_serve_request_seconds_count{path="/predict"}'
        return [figures.get(name, 0) for name in (*names, timed)]

    before = counted()
    for path in ("/predict", "/predict?x"):
        asked(server, request(path, GOOD, {}))
        asked(server, request(path, b"", {}))
    assert [after - old for after, old in zip(counted(), before, strict=True)] == [2, 2, 4]


def test_a_body_that_is_announced_too_large_is_refused(server: Server) -> None:
    for length in (2**19 + 1, 10**17):
        assert asked(server, request("/predict", b"", {}, length=length))[0] == 413
    assert asked(server, request("/predict", b"", {}, length=10**30))[0] == 400


def test_requests_on_one_connection_are_answered_in_their_order(guarded_server: Server) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    contents = [lasting(600), ROW, lasting(600), ROW, {"row": []}, ROW]
    sent = b"".join(
        request("/predict", content, headers | {"X-Request-ID": str(number)}) for number, content in enumerate(contents)
    )
    last = {"Connection": "close", "X-Request-ID": "last"}
    found = Answer(guarded_server.raw(sent + request("/predict", ROW, headers | last)))
    replies = [reply(found) for _ in range(len(contents) + 1)]
    assert [one[1].get("x-request-id") for one in replies] == ["0", "1", "2", "3", None, "5", "last"]
    assert [one[0] for one in replies] == [200, 200, 200, 200, 422, 200, 200]


class Held:
    """A program in memory that answers when it may, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.has_begun, self.may_answer = threading.Event(), threading.Event()

    def run(self, batch: Encoded, *, last: bool = False) -> list[Any]:
        self.has_begun.set()
        assert self.may_answer.wait(60)
        self.asked += batch.numbers
        return [[number] for number in batch.numbers]


class Wire(asyncio.Transport):
    """A transport in memory, which notes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


class BrokenDevice:
    """A program whose device has failed for good."""

    def run(self, batch: Encoded, *, last: bool = False) -> list[Any]:
        raise RuntimeError("CUDA error: device-side assert triggered")


def test_a_worker_whose_device_is_broken_answers_500_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("automl.standalone.serving.worker.Metrics", Mock)  # a process has one of them
    manifest = {"rows": {"kind": "array", "dtype": "int64", "shape": [1]}, "answers": {"kind": "array"}}
    served = Served(Model(manifest, [BrokenDevice()]), "m/1")

    async def run() -> tuple[RequestError, bool]:
        mine, its = socket.socketpair()
        with mine, its, socket.create_server(("127.0.0.1", 0)) as listening:
            mine.setblocking(False)
            channel = await channel_on(mine)
            worker = Worker(channel, listening, Settings())
            worker._state.replace({"champion": served}, {})
            async with asyncio.timeout(15):
                running = asyncio.create_task(worker.run())
                with pytest.raises(RequestError) as failed:
                    await worker._batcher.answers(served, [encoded("int64", (1,), [10**6])])
                await running
            channel.close()
            await asyncio.sleep(0)
            return failed.value, worker._state.is_draining

    error, is_draining = asyncio.run(run())
    assert (error.status, is_draining) == (500, True), "/health says 503 while a worker drains"


def test_nothing_is_run_for_a_client_that_is_gone() -> None:
    program = Held()
    manifest = {"rows": {"kind": "array", "dtype": "float32", "shape": [1]}, "answers": {"kind": "array"}}

    async def run() -> list[bytes]:
        settings, metrics = Settings(), Metrics()
        state = ServingState(0.0, metrics)
        state.replace({"champion": Served(Model(manifest, [program]), "m/1")}, {})
        batcher = Batcher(batch_rows=1, wait_seconds=0.0, queue_rows=9, watcher=metrics)
        predictions = Predictions(settings, state, batcher)
        gate = Gate(make_app(settings, state, predictions), settings, metrics)
        make: Any = guarded(60.0, Direct(settings, state, gate, predictions))
        config = uvicorn.Config(gate, http=make, log_config=None, lifespan="off", ws="none")
        wires = []
        for number in range(3):
            connection, wire = make(config=config, server_state=ServerState(), app_state={}), Wire()
            connection.connection_made(wire)
            connection.data_received(request("/predict", {"row": [float(number)]}, {}))
            await asyncio.to_thread(program.has_begun.wait, 60)
            if number == 1:
                connection.connection_lost(ConnectionResetError())
            wires.append(wire)
        program.may_answer.set()
        async with asyncio.timeout(60):
            while not wires[2].written:
                await asyncio.sleep(0.001)
        await asyncio.to_thread(batcher.close)
        return [wire.written for wire in wires]

    first, gone, last = asyncio.run(run())
    assert program.asked == [0.0, 2.0]
    assert gone == b""
    assert first.endswith(b'{"outputs":[0.0],"model":"m/1"}')
    assert last.endswith(b'{"outputs":[2.0],"model":"m/1"}')
