"""Bodies of requests: what becomes a row of each kind of model, and what is refused in a line that names the place."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest

from automl.standalone.model import Rows, load
from automl.standalone.serving.errors import RequestError
from automl.standalone.serving.json_rows import encoded_rows, rows_in
from tests.support import optional

Taken = dict[str, Rows]


@pytest.fixture(scope="session")
def kinds(people_model: Path, text_model: Path, image_model: Path, cubes_model: Path) -> Taken:
    """What turns rows of each kind into numbers."""
    models = {"table": people_model, "text": text_model, "image": image_model, "array": cubes_model}
    return {name: load(path).rows for name, path in models.items()}


def refusal(raw: bytes, by: Rows, key: str = "row") -> str:
    """The line that a body is refused with; empty if it is taken."""
    try:
        assert encoded_rows(rows_in(raw, key, 100), by)
    except RequestError as error:
        return f"{error.status} {error}".replace("\n", "a second line").removeprefix("422 ")
    return ""


def of(row: Any) -> bytes:
    return json.dumps({"row": row}).encode()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"row": {"age": 39, "city": ', "body: this is not JSON (Expecting value at line 1, column 29)"),
        (b"", "body: this is not JSON"),
        (b"\xff\xfe", "body: some bytes are not UTF-8"),
        (b"[1]", "body: found a list, allowed: an object with only the key 'row'"),
        (b'{"rows": []}', "body: found the keys 'rows', allowed: an object with only the key 'row'"),
        (b"{}", "body: found no key, allowed"),
        (b'{"row": {"age": NaN, "city": "Oslo", "score": 1}}', "body: found NaN, allowed: finite numbers"),
        (b'{"row": {"age": "1e999", "city": "Oslo", "score": 1}}', "row 1, column 'age': found '1e999'"),
        (b'{"row": {"age": 1e999, "city": "Oslo", "score": 1}}', "row 1, column 'age': found inf"),
        (b'{"row": {"age": "old", "city": "Oslo", "score": 1}}', "row 1, column 'age': found 'old', allowed: a finite"),
        (b'{"row": {"age": [1], "city": "Oslo", "score": 1}}', "row 1, column 'age': found a list, allowed: a text"),
        (b'{"row": {"age": 1, "city": "Oslo"}}', "row 1: found no column 'score'"),
        (b'{"row": {"age": 1, "city": "Oslo", "scor": 1}}', "did you mean 'score'?"),
        (b'{"row": "Oslo"}', "row 1: found 'Oslo', allowed: a mapping"),
        (b'{"row": {"age": 1, "city": "\\ud800", "score": 1}}', "body: a text has half of a surrogate pair"),
        (b'{"row": ' + b"[" * 100_000, "body: lists or objects are nested too deeply"),
        (b'{"row": {"age": 1, "city": "' + b"x" * 10_001 + b'", "score": 1}}', "column 'city': found a text of 10001"),
    ],
)
def test_a_wrong_body_is_refused_in_one_line(kinds: Taken, raw: bytes, words: str) -> None:
    assert words in refusal(raw, kinds["table"])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        *[(text, "") for text in ("a", "\u0000", "\U0001f600" * 9999, "  ", "\n", "ümläut", "x" * 10_000)],
        ("", "row 1: found a text of 0 characters, allowed: 1 to 10000 characters"),
        ("x" * 10_001, "row 1: found a text of 10001 characters, allowed: 1 to 10000 characters"),
        (None, "row 1: found null, allowed: a text"),
        (7, "row 1: found a number, allowed: a text"),
        (["a"], "row 1: found a list, allowed: a text"),
        ({"text": "a"}, "row 1: found an object, allowed: a text"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_texts(kinds: Taken, row: Any, words: str) -> None:
    assert refusal(of(row), kinds["text"]) == words


def test_texts_have_keys_of_their_own() -> None:
    assert rows_in(b'{"text": "a"}', "row", 2, "text") == rows_in(b'{"row": "a"}', "row", 2, "text") == ["a"]
    assert rows_in(b'{"texts": ["a", "b"]}', "rows", 2, "text") == ["a", "b"]
    for body, key, kind, words in (
        (b'{"text": "a"}', "row", "table", "allowed: an object with only the key 'row'"),
        (b'{"text": "a", "row": "a"}', "row", "text", "allowed: an object with only the key 'row' or 'text'"),
        (b'{"texts": ["a", "b", "c"]}', "rows", "text", "texts: found 3 rows, allowed: 1 to 2"),
        (b'{"texts": "a"}', "rows", "text", "texts: found a text, allowed: a list of rows"),
    ):
        with pytest.raises(RequestError, match=words):
            rows_in(body, key, 2, kind)


def picture(form: str, size: tuple[int, int] = (20, 24), mode: str = "RGB", colour: Any = (200, 10, 40)) -> str:
    file = io.BytesIO()
    optional.module("PIL.Image").new(mode, size, colour).save(file, form)
    return base64.b64encode(file.getvalue()).decode()


def test_images_come_in_base64_and_nothing_else_does(kinds: Taken, image_model: Path) -> None:
    for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        assert refusal(of(picture(form)), kinds["image"]) == ""
    path = next(image_model.parent.glob("train/*/*.png"))
    allowed = "Send the content of an image file in base64"
    cut = base64.b64encode(base64.b64decode(picture("PNG"))[:-30]).decode()
    cases = {
        str(path): f"row 1: this is not base64 (Only base64 data is allowed). {allowed}",
        "": f"row 1: this is not an image. {allowed}",
        "aGVsbG8=": f"row 1: this is not an image. {allowed}",
        "abc": "row 1: this is not base64 (Incorrect padding)",
        picture("EPS"): f"row 1: this is not an image. {allowed}",
        cut: "row 1: the content of a file is not a complete image",
        picture("PNG", (8000, 7000), "1", 0): "row 1: the image has 56000000 pixels, more than 50000000",
    }
    for row, words in cases.items():
        assert refusal(of(row), kinds["image"]).startswith(words)
    assert all(refusal(of(row), kinds["image"]) for row in (None, 3, [1], {}))


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
        (b"[[[1]], [2]]", "row 1: found an empty list, or lists beside numbers"),
        (b"{}", "row 1: found the shape []"),
        (b"[1" + b"0" * 400 + b"]", "row 1: found a whole number beyond any float, allowed: finite numbers"),
        (b"[1e39, 1]", "row 1: found a number beyond the largest float32, allowed: finite numbers"),
        (b"[" * 300 + b"1" + b"]" * 300, "row 1: found the shape [1, 1, 1, "),
    ],
    ids=lambda value: str(value)[:20],
)
def test_rows_of_numbers(kinds: Taken, raw: bytes, words: str) -> None:
    assert refusal(b'{"row": ' + raw + b"}", kinds["array"]).startswith(words)
