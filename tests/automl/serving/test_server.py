"""Requests to a server and its answers: routes, limits, the queue, and clients that are slow or speak no HTTP."""

import asyncio
import itertools
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from automl.standalone.model import load
from automl.standalone.serving.app import _Endpoints, json_reply
from automl.standalone.serving.errors import RequestError
from automl.standalone.serving.settings import settings_of
from tests.automl.serving.conftest import TOKEN
from tests.automl.serving.models import Expected, lasting
from tests.support.served import Load, Server, check_routes

GOOD = {"age": 39, "city": "Oslo", "score": None}
POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
NOISE = random.Random(0).randbytes(5000)
GARBAGE: dict[str, bytes] = {
    "noise": NOISE,
    "TLS": bytes.fromhex("16030100f8010000f40303") + NOISE[:200],
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "half a body": POST + b'Content-Length: 100\r\n\r\n{"row"',
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "no chunks": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a huge chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{",
    "headers behind a body": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 500_000,
    "a huge header": b"GET / HTTP/1.1\r\nX: " + b"x" * 3_000_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500_000 + b"\r\n",
    "a huge path": b"GET /" + b"x" * 3_000_000 + b" HTTP/1.1\r\n\r\n",
    "a path that is no text": b"GET /\xff\xfe%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a tunnel": b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a WebSocket": b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a request and rubbish": HEALTH + NOISE[:500],
    "many requests at once": HEALTH * 300,
    "a host that is no text": b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
}


def test_answers_are_those_of_the_model_row_by_row(server, people_model, rows):
    odd = [{"age": "39", "city": "", "score": "?"}, {"age": 1e300, "city": True, "score": -5}, GOOD | {"rich": "yes"}]
    rows = [*rows, *odd]
    model = load(people_model)
    alone = [model.predict([row])[0] for row in rows]
    with ThreadPoolExecutor(16) as pool:
        singly = list(pool.map(lambda row: server.ask("/predict", {"row": row}).body, rows))
    together = server.ask("/predict/batch", {"rows": rows}).body
    assert together["model"] == "t/0@2"
    for expected, *found in zip(alone, singly, together["answers"], strict=True):
        for one in found:
            assert one["label"] == expected["label"]
            assert one["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
    assert {one["model"] for one in singly} == {"t/0@2"}


def test_of_several_rows_the_wrong_one_is_named(server: Server) -> None:
    reply = server.ask("/predict/batch", {"rows": [GOOD, GOOD | {"age": "x"}]})
    assert (reply.status, reply.body["detail"].partition(":")[0]) == (422, "row 2, column 'age'")
    reply = server.ask("/predict/batch", {"rows": [GOOD] * 101})
    assert (reply.status, reply.body["detail"]) == (422, "rows: found 101 rows, allowed: 1 to 100")
    assert server.ask("/predict/batch", {"rows": []}).status == 422


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Server) -> None:
    reply = server.ask("/predict", raw=b" " * (2**19 + 1))
    assert (reply.status, reply.body["detail"]) == (413, "body: it has 524289 bytes, but at most 524288 are allowed")
    chunked = server.client()
    chunked._connection.request("POST", "/predict", iter([b" " * 2**18] * 3), encode_chunked=True)
    assert chunked._connection.getresponse().status == 413
    chunked.close()


def test_the_other_paths_and_the_id_of_a_request(server: Server) -> None:
    assert server.ask("/").headers["location"] == "docs"
    assert "Authorize" in server.ask("/docs").body
    found = {"status": "ok", "model_loaded": True, "model": "t/0@2", "problem": None}
    assert server.ask("/health").body == found
    assert server.ask("/nothing").status == 404
    assert server.ask("/predict").status == 405
    before = server.figures()
    reply = server.ask("/predict/batch", {"rows": [GOOD] * 5}, **{"X-Request-ID": "an-id:1"})
    assert reply.headers["x-request-id"] == "an-id:1"
    assert len(server.ask("/predict", {"row": GOOD}, **{"X-Request-ID": "no id"}).headers["x-request-id"]) == 32
    after = server.figures()
    name = 'automl_serve_rows_total{model="t/0@2"}'
    assert after[name] == before.get(name, 0) + 6
    assert after['automl_serve_requests_total{path="/predict/batch",status="200"}'] >= 1


def test_requests_that_overlap_go_through_the_model_together(server: Server, rows: list[dict[str, Any]]) -> None:
    one = itertools.cycle(rows)
    before = server.figures()
    with Load(server, 16, lambda: {"row": next(one)}) as clients:
        clients.more(400)
    after = server.figures()
    assert clients.statuses.keys() == {200}
    batches, answered = 'automl_serve_batch_rows_count{model="t/0@2"}', 'automl_serve_rows_total{model="t/0@2"}'
    assert after[answered] - before.get(answered, 0) > 1.5 * (after[batches] - before.get(batches, 0))


def test_a_full_queue_is_told_with_a_time_to_come_back(guarded_server: Server) -> None:
    with Load(guarded_server, 12, lambda: lasting(700), token=TOKEN) as clients:
        guarded_server.wait_for(lambda: {200, 429} <= clients.statuses.keys())
    refused = [reply for reply in clients.replies if reply.status == 429]
    assert clients.statuses.keys() <= {200, 429, 503}
    assert not clients.broken
    assert all(reply.headers["retry-after"] == "1" for reply in refused)
    assert refused[0].body["detail"].endswith("rows wait already, and at most 4 may wait")


def test_a_request_that_takes_too_long_is_given_up_and_the_next_one_answered(guarded_server: Server) -> None:
    length = 1000
    while (reply := guarded_server.ask("/predict", lasting(length), token=TOKEN)).status == 200:
        length = length * 3 // 2
        assert length < 20_000
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert reply.body["detail"] == "no answer within 2 seconds. Try again"
    guarded_server.wait_for(lambda: guarded_server.ask("/predict", lasting(3), token=TOKEN).status == 200)


def test_clients_that_send_half_a_request_stop_nobody(guarded_server: Server) -> None:
    head = POST + f"Authorization: Bearer {TOKEN}\r\nContent-Length: 20\r\n".encode()
    with ExitStack() as stack:
        halves = []
        for number in range(1500):  # more than the 1024 files that a process may have open by default
            half = stack.enter_context(socket.create_connection(("127.0.0.1", guarded_server.port), timeout=60))
            half.sendall(head + b'\r\n{"row"' if number < 20 else head)  # at once: the oldest without a head are closed
            halves.append(half)
        assert guarded_server.ask("/predict", lasting(3), token=TOKEN).status == 200
        answer = halves[0].recv(65_536)
        while b"}" not in answer:  # head and body may come apart
            more = halves[0].recv(65_536)
            assert more, answer
            answer += more
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body: the request was still incomplete after 2 seconds" in answer


def test_bodies_under_way_have_a_common_limit() -> None:
    endpoints = _Endpoints(settings_of({"body_mib": 10 / 2**20}), None)

    def sent(body: bytes) -> Request:
        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        return Request({"type": "http", "method": "POST", "headers": []}, receive)

    async def ask() -> None:
        async with AsyncExitStack() as stack:
            for _ in range(4):
                await stack.enter_async_context(endpoints._body(sent(b" " * 10)))
            with pytest.raises(
                RequestError, match="all open requests together have 41 bytes; the limit is 40"
            ) as refused:
                await stack.enter_async_context(endpoints._body(sent(b" ")))
            assert (refused.value.status, refused.value.retry_seconds) == (429, 1)
        async with endpoints._body(sent(b" ")) as body:
            assert body == b" "

    asyncio.run(ask())


def test_garbage_gets_a_refusal_or_nothing_and_nobody_else_notices(server, people_model, rows):
    expected = Expected({"t/0@2": people_model}, rows)
    one = itertools.cycle(rows)
    workers = server.workers()
    with Load(server, 4, lambda: {"row": next(one)}, pause_seconds=0.02) as clients:
        for kind, garbage in GARBAGE.items():
            answer = server.raw(garbage)
            statuses = [line.split()[1] for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
            assert all(one[:1] in b"234" for one in statuses), (kind, answer[:500])
        clients.more(50)
    expected.check(clients.replies)
    assert not clients.broken
    assert not clients.refused
    assert server.workers() == workers
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_an_answer_that_is_no_number_is_never_sent(number: float) -> None:
    reply = json_reply({"outputs": [1.0, number]})
    assert reply.status_code == 422
    assert b"rows: the numbers are so large that the model's prediction is not finite" in bytes(reply.body)


@pytest.mark.large
@pytest.mark.parametrize(("name", "examples"), [
    ("guarded_server", 5), pytest.param("server", 100, marks=pytest.mark.slow),
    pytest.param("guarded_server", 100, marks=pytest.mark.slow),
])  # fmt: skip
def test_schemathesis_finds_nothing(name: str, examples: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: Server = request.getfixturevalue(name)
    token = ["--header", f"Authorization: Bearer {TOKEN}"] if name == "guarded_server" else []
    said = check_routes(f"http://127.0.0.1:{server.port}", tmp_path, "--max-examples", str(examples), *token)
    assert "Tested: 4" in said
    assert "Traceback" not in server.log.read_text()
