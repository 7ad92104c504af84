"""Requests to a server, and their answers."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from automl.standalone.model import load
from tests.support.served import Load, Server

GOOD = {"age": 39, "city": "Oslo", "score": None}


def test_answers_are_those_of_the_model_row_by_row(
    server: Server, people_model: Path, rows: list[dict[str, Any]]
) -> None:
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


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"row": {"age": 39, "city": ', "body: found no JSON (Expecting value at line 1, column 29)"),
        (b"", "body: found no JSON"),
        (b"\xff\xfe", "body: found bytes that are not UTF-8"),
        (b"[1]", "body: found a list, allowed: an object with the key 'row' alone"),
        (b'{"rows": []}', "body: found the keys 'rows', allowed: an object with the key 'row' alone"),
        (b"{}", "body: found no key, allowed"),
        (b'{"row": {"age": NaN, "city": "Oslo", "score": 1}}', "body: found NaN, allowed: finite numbers"),
        (b'{"row": {"age": 1e999, "city": "Oslo", "score": 1}}', "row 1, column 'age': found inf"),
        (b'{"row": {"age": "old", "city": "Oslo", "score": 1}}', "row 1, column 'age': found 'old', allowed: a finite"),
        (b'{"row": {"age": [1], "city": "Oslo", "score": 1}}', "row 1, column 'age': found a list, allowed: a text"),
        (b'{"row": {"age": 1, "city": "Oslo"}}', "row 1: found no column 'score'"),
        (b'{"row": {"age": 1, "city": "Oslo", "scor": 1}}', "did you mean 'score'?"),
        (b'{"row": "Oslo"}', "row 1: found 'Oslo', allowed: a mapping"),
        (b'{"row": {"age": 1, "city": "\\ud800", "score": 1}}', "body: found half of a surrogate pair"),
        (b'{"row": ' + b"[" * 100_000, "body: found too many lists or objects in one another"),
        (b'{"row": {"age": 1, "city": "' + b"x" * 10_001 + b'", "score": 1}}', "column 'city': found a text of 10001"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(server: Server, raw: bytes, words: str) -> None:
    reply = server.ask("/predict", raw=raw)
    assert reply.status == 422
    assert words in reply.body["detail"]
    assert "\n" not in reply.body["detail"]


def test_of_several_rows_the_wrong_one_is_named(server: Server) -> None:
    reply = server.ask("/predict/batch", {"rows": [GOOD, GOOD | {"age": "x"}]})
    assert (reply.status, reply.body["detail"].partition(":")[0]) == (422, "row 2, column 'age'")
    reply = server.ask("/predict/batch", {"rows": [GOOD] * 101})
    assert (reply.status, reply.body["detail"]) == (422, "rows: found 101 rows, allowed: 1 to 100")
    assert server.ask("/predict/batch", {"rows": []}).status == 422


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Server) -> None:
    reply = server.ask("/predict", raw=b" " * (2**19 + 1))
    assert (reply.status, reply.body["detail"]) == (413, "body: found 524289 bytes, allowed: 524288")
    chunked = server.client()
    chunked._connection.request("POST", "/predict", iter([b" " * 2**18] * 3), encode_chunked=True)
    assert chunked._connection.getresponse().status == 413
    chunked.close()


def test_the_other_paths(server: Server) -> None:
    assert server.ask("/").headers["location"] == "docs"
    assert "Authorize" in server.ask("/docs").body
    assert server.ask("/health").body == {
        "status": "ok", "model_loaded": True, "model": "t/0@2", "challenger": None, "problem": None,
    }  # fmt: skip
    assert server.ask("/nothing").status == 404
    assert server.ask("/predict").status == 405
    before = server.figures()
    server.ask("/predict/batch", {"rows": [GOOD] * 5})
    after = server.figures()
    name = 'automl_serve_rows_total{model="t/0@2"}'
    assert after[name] == before.get(name, 0) + 5
    assert after['automl_serve_requests_total{path="/predict/batch",status="200"}'] >= 1


def test_requests_that_overlap_go_through_the_model_together(server: Server, rows: list[dict[str, Any]]) -> None:
    one = itertools.cycle(rows)
    before = server.figures()
    with Load(server, 16, lambda: {"row": next(one)}) as load_of_clients:
        load_of_clients.more(400)
    after = server.figures()
    assert {reply.status for reply in load_of_clients.replies} == {200}
    batches = 'automl_serve_batch_rows_count{model="t/0@2"}'
    answered = 'automl_serve_rows_total{model="t/0@2"}'
    assert after[answered] - before[answered] > 1.5 * (after[batches] - before[batches])
