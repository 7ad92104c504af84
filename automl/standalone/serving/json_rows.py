"""Parses JSON bodies, `{"row": ROW}` or `{"rows": [ROW, ...]}`, and checks their rows."""

import base64
import binascii
import io
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ..batches import Encoded
from ..errors import InputError
from ..image_rows import IMAGE_FORMATS, opened_image
from ..model import Rows
from .errors import RequestError

LONGEST_TEXT = 10_000
MOST_PIXELS = 50_000_000
UNPROCESSABLE = 422


def rows_in(body: bytes, key: str, most: int, kind: str = "") -> list[Any]:
    """Return the rows of a UTF-8 body. Raises RequestError for other content than at most `most` rows.

    `key` is "row" or "rows"; `kind` is the kind of the model's rows.
    """
    content = _json(body)
    keys = keys_of(key, kind)
    if not isinstance(content, dict) or len(content) != 1 or not content.keys() <= set(keys):
        names = ", ".join(map(repr, content))[:80] if isinstance(content, dict) else ""
        found = (f"the keys {names}" if names else "no key") if isinstance(content, dict) else _kind(content)
        raise _refused(f"body: found {found}, allowed: an object with only the key {' or '.join(map(repr, keys))}")
    (name, rows), *_ = content.items()
    if key == "row":
        return [rows]
    if not isinstance(rows, list):
        raise _refused(f"{name}: found {_kind(rows)}, allowed: a list of rows")
    if not 1 <= len(rows) <= most:
        raise _refused(f"{name}: found {len(rows)} rows, allowed: 1 to {most}")
    return rows


def keys_of(key: str, kind: str) -> tuple[str, ...]:
    """Return the keys that a body may use: `key`, and for texts also "text" or "texts"."""
    return (key, {"row": "text", "rows": "texts"}[key]) if kind == "text" else (key,)


def encoded_rows(rows: list[Any], by: Rows) -> list[Encoded]:
    """Encode rows for the model. Raises RequestError for the first row that does not fit."""
    prepare = _PREPARE[by.kind]
    found = []
    for number, row in enumerate(rows):
        try:
            found.append(_finite(by.encode(prepare(row, number), number), number))
        except InputError as error:
            raise _refused(" ".join(str(error).split())) from None
        except RecursionError:
            raise _refused(f"row {number + 1}: lists are nested too deeply") from None
        except OverflowError:
            raise _refused(
                f"row {number + 1}: found a whole number beyond any float, allowed: finite numbers"
            ) from None
    return found


def _json(body: bytes) -> Any:
    try:
        content = _DECODE(_without_mark(body.decode("utf-8")))
        if b"\\u" in body:
            json.dumps(content, ensure_ascii=False).encode("utf-8")  # refuses halves of surrogate pairs
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _refused(f"body: this is not JSON ({error.msg} at {where})") from None
    except UnicodeEncodeError:
        raise _refused("body: a text has half of a surrogate pair. Send whole characters") from None
    except UnicodeDecodeError:
        raise _refused("body: some bytes are not UTF-8. Send JSON in UTF-8") from None
    except RecursionError:
        raise _refused("body: lists or objects are nested too deeply") from None
    except ValueError as error:
        raise _refused(f"body: found {' '.join(str(error).split())[:120]}, allowed: finite numbers") from None
    return content


def _constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODE = json.JSONDecoder(parse_constant=_constant).decode


def _without_mark(text: str) -> str:
    if text.startswith("\ufeff"):
        raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
    return text


def _table_row(row: Any, number: int) -> Any:
    if not isinstance(row, Mapping):
        return row
    for name, cell in row.items():
        if type(cell) is float or (type(cell) is str and len(cell) <= LONGEST_TEXT):  # most cells, in few steps
            continue
        if isinstance(cell, list | dict):
            found, allowed = _kind(cell), "a text, a number, true, false or null"
        elif isinstance(cell, str):
            found, allowed = f"a text of {len(cell)} characters", f"at most {LONGEST_TEXT}"
        else:
            continue
        where = f"row {number + 1}, column {name[:80]!r}"
        raise InputError(number, f"{where}: found {found}, allowed: {allowed}")
    return row


def _text_row(row: Any, number: int) -> Any:
    if not isinstance(row, str):
        raise InputError(number, f"row {number + 1}: found {_kind(row)}, allowed: a text")
    if not 1 <= len(row) <= LONGEST_TEXT:
        allowed = f"1 to {LONGEST_TEXT} characters"
        raise InputError(number, f"row {number + 1}: found a text of {len(row)} characters, allowed: {allowed}")
    return row


def _image_row(row: Any, number: int) -> bytes:
    """Return an image file's bytes, never a string: the encoder would open it as a path."""
    where, allowed = f"row {number + 1}", "the content of an image file in base64"
    if not isinstance(row, str):
        raise InputError(number, f"{where}: found {_kind(row)}, allowed: {allowed}")
    try:
        content = base64.b64decode(row, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(number, f"{where}: this is not base64 ({error}). Send {allowed}") from None
    try:
        with opened_image(io.BytesIO(content)) as opened:
            pixels = opened.width * opened.height
    except Exception:  # noqa: BLE001 - Pillow's readers may raise any exception
        formats = ", ".join(IMAGE_FORMATS)
        raise InputError(number, f"{where}: this is not an image. Send {allowed} ({formats})") from None
    if pixels > MOST_PIXELS:
        raise InputError(number, f"{where}: the image has {pixels} pixels, more than {MOST_PIXELS}")
    return content


def _array_row(row: Any, number: int) -> Any:
    """Check that all numbers in nested lists have the same depth, or their shape would be misread."""
    level = [row]
    while isinstance(level[0], list):
        if not all(isinstance(one, list) and one for one in level):
            break
        level = [one for some in level for one in some]
    if any(isinstance(one, list) for one in level):
        found = "an empty list, or lists beside numbers"
        raise InputError(number, f"row {number + 1}: found {found}, allowed: numbers, or lists of equal shape")
    return row


_PREPARE: Mapping[str, Callable[[Any, int], Any]] = {
    "table": _table_row, "text": _text_row, "image": _image_row, "array": _array_row,
}  # fmt: skip


def _finite(row: Encoded, number: int) -> Encoded:
    if row.dtype == "float32" and any(map(math.isinf, row.numbers)):
        raise InputError(
            number, f"row {number + 1}: found a number beyond the largest float32, allowed: finite numbers"
        )
    return row


def _refused(line: str) -> RequestError:
    return RequestError(UNPROCESSABLE, line)


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names[type(value)]
