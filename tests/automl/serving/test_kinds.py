"""Rows of each kind: what a server makes of them is what the model does, and what it refuses it names."""

from __future__ import annotations

import base64
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from automl.standalone.model import load
from automl.standalone.serving.answer_log import AnswerLog, answer_files
from automl.standalone.serving.predictions import Asked, Predictions
from automl.standalone.serving.replies import json_reply
from automl.standalone.serving.served import Served
from tests.automl.serving.conftest import TOKEN
from tests.support import optional
from tests.support.served import Server


def same(answer: dict[str, Any], expected: dict[str, Any]) -> bool:
    near = {name: pytest.approx(value, abs=1e-6) for name, value in expected["probabilities"].items()}
    return answer["label"] == expected["label"] and answer["probabilities"] == near


@pytest.mark.parametrize(
    "row",
    [
        {"age": 39, "city": "Ulan Bator", "score": 0.5},
        {"age": 39, "city": None, "score": None},
        {"age": "39", "city": "", "score": "?"},
        {"age": 39.0, "city": 7, "score": " 0.5 "},
        {"age": 1e300, "city": True, "score": -5},
        {"age": 39, "city": "Oslo", "score": 0, "rich": "yes"},
    ],
)
def test_cells_mean_what_they_meant_in_training(server: Server, people_model: Path, row: dict[str, Any]) -> None:
    reply = server.ask("/predict", {"row": row})
    assert reply.status == 200, reply.body
    assert same(reply.body, load(people_model).predict([row])[0])


def test_every_unseen_category_is_the_same_one(server: Server) -> None:
    rows = [{"age": 39, "city": city, "score": 0.5} for city in ("Ulan Bator", "oslo", "x" * 10_000, "Oslo")]
    first, *others, known = server.ask("/predict/batch", {"rows": rows}).body["answers"]
    assert others == [first, first]
    assert known != first


@pytest.mark.large
@pytest.mark.parametrize("length", [1, 10_000])
def test_texts_of_these_lengths_are_answered(text_server: Server, text_model: Path, length: int) -> None:
    text = ("good film " * 1000)[:length]
    reply = text_server.ask("/predict", {"row": text})
    assert reply.status == 200, reply.body
    assert same(reply.body, load(text_model).predict([text])[0])


@pytest.mark.parametrize("text", ["a", "\u0000", "\U0001f600" * 9999, "  ", "\n", "ümläut"])
def test_any_text_is_answered(text_server: Server, text_model: Path, text: str) -> None:
    assert same(text_server.ask("/predict", {"row": text}).body, load(text_model).predict([text])[0])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("", "row 1: found a text of 0 characters, allowed: 1 to 10000 characters"),
        ("x" * 10_001, "row 1: found a text of 10001 characters, allowed: 1 to 10000 characters"),
        (None, "row 1: found null, allowed: a text"),
        (7, "row 1: found a number, allowed: a text"),
        (["a"], "row 1: found a list, allowed: a text"),
        ({"text": "a"}, "row 1: found an object, allowed: a text"),
    ],
)
def test_other_texts_are_refused(text_server: Server, row: Any, words: str) -> None:
    reply = text_server.ask("/predict", {"row": row})
    assert (reply.status, reply.body["detail"]) == (422, words)
    reply = text_server.ask("/predict/batch", {"rows": ["good", row]})
    assert (reply.status, reply.body["detail"]) == (422, words.replace("row 1", "row 2"))


def test_short_texts_are_answered_the_same_beside_long_ones(text_server: Server) -> None:
    texts = ["good", "bad film " * 30, "the plot"]
    together = text_server.ask("/predict/batch", {"rows": texts}).body["answers"]
    for text, answer in zip(texts, together, strict=True):
        assert same(answer, text_server.ask("/predict", {"row": text}).body)


def picture(form: str, size: tuple[int, int] = (20, 24), mode: str = "RGB", colour: Any = (200, 10, 40)) -> str:
    file = io.BytesIO()
    optional.module("PIL.Image").new(mode, size, colour).save(file, form)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.large
@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_images_come_in_base64(image_server: Server, image_model: Path, form: str) -> None:
    row = picture(form)
    reply = image_server.ask("/predict", {"row": row})
    assert reply.status == 200, reply.body
    assert same(reply.body, load(image_model).predict([base64.b64decode(row)])[0])


def test_what_is_no_image_is_refused(image_server: Server, image_model: Path) -> None:
    path = next(image_model.parent.glob("train/*/*.png"))
    whole = picture("PNG")
    allowed = "allowed: the content of an image file in base64"
    cases = {
        str(path): f"row 1: found no base64 (Only base64 data is allowed), {allowed}",
        "": f"row 1: found no image, {allowed}",
        "aGVsbG8=": f"row 1: found no image, {allowed}",
        "abc": "row 1: found no base64 (Incorrect padding)",
        picture("EPS"): f"row 1: found no image, {allowed}",
        base64.b64encode(base64.b64decode(whole)[:-30]).decode(): "row 1: found the content of a file, which is ",
        picture("PNG", (8000, 7000), "1", 0): "row 1: found an image of 56000000 pixels, allowed: at most 50000000",
    }
    for row, words in cases.items():
        reply = image_server.ask("/predict", {"row": row})
        assert reply.status == 422
        assert reply.body["detail"].startswith(words)
    for row in (None, 3, [1], {}):
        assert image_server.ask("/predict", {"row": row}).status == 422
    assert image_server.ask("/predict", {"row": whole}).status == 200


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"[1, 2, 3]", ""),
        (b"[]", "row 1: found an empty list, or lists beside numbers, allowed: numbers, or lists of equal shape"),
        (b"[[1]]", "row 1: found the shape [1, 1], allowed: numbers of the shape [-1]"),
        (b"7", "row 1: found the shape [], allowed: numbers of the shape [-1]"),
        (b'["1"]', "row 1: found '1', allowed: finite numbers"),
        (b"[true]", "row 1: found 'True', allowed: finite numbers"),
        (b"[1, [2]]", "row 1: found an empty list, or lists beside numbers"),
        (b"[[1], 2]", "row 1: found an empty list, or lists beside numbers"),
        (b"[[[1]], [2]]", "row 1: found an empty list, or lists beside numbers"),
        (b"{}", "row 1: found the shape []"),
        (b"[1" + b"0" * 400 + b"]", "row 1: found a whole number beyond any float, allowed: finite numbers"),
        (b"[1e39, 1]", "row 1: found a number beyond the largest float32, allowed: finite numbers"),
        (b"[" * 300 + b"1" + b"]" * 300, "row 1: found the shape [1, 1, 1, "),
        (b"[" * 2000 + b"]" * 2000, ""),
    ],
    ids=lambda value: str(value)[:20],
)
def test_rows_of_numbers(guarded_server: Server, raw: bytes, words: str) -> None:
    reply = guarded_server.ask("/predict", raw=b'{"row": ' + raw + b"}", token=TOKEN)
    is_good = raw == b"[1, 2, 3]"
    assert reply.status == (200 if is_good else 422)
    assert is_good or reply.body["detail"].startswith(words)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_an_answer_that_is_no_number_is_never_sent(number: float) -> None:
    reply = json_reply({"outputs": [1.0, number]})
    assert reply.status == 422
    assert b"rows: found numbers so large that the model's answer is not finite" in reply.body


def test_an_answer_that_is_not_sent_is_not_kept(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, 2**20)
    unused: Any = None
    predictions = Predictions(unused, unused, unused, log)
    for number, value in enumerate([1.0, float("nan")]):
        asked = Asked(Served(unused, "v/1"), "champion", "row", f"row-{number}", time.perf_counter())
        assert predictions.reply(asked, [{"value": value}]).status == (200, 422)[number]
    log.close()
    (file,) = answer_files(tmp_path)
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == ["row-0"]
