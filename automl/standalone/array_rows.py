"""Encodes rows of numbers, nested lists in the model's input shape."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .batches import Encoded, encoded
from .errors import InputError


class ArrayRows:
    """Encodes nested lists of numbers with a `dtype` (float32, int64, uint8) and a `shape` (-1: variable length)."""

    kind = "array"
    fill: int | None = None  # no padding, because it would change the meaning of shorter rows

    def __init__(self, form: Mapping[str, Any]) -> None:
        self.dtype = str(form["dtype"])
        self.shape = tuple(int(length) for length in form["shape"])

    def encode(self, row: Any, number: int) -> Encoded:
        """Encode a row. Raises InputError for another shape, or a value that is not finite."""
        where = f"row {number + 1}"
        found = _shape(row)
        fits = len(found) == len(self.shape) and all(
            expected in (-1, length) for expected, length in zip(self.shape, found, strict=True)
        )
        numbers = list(_flat(row))
        if not fits or len(numbers) != math.prod(found):
            allowed = f"numbers of the shape {list(self.shape)}"
            raise InputError(number, f"{where}: found the shape {list(found)}, allowed: {allowed}")
        for value in numbers:
            if not _is_finite(value):
                raise InputError(number, f"{where}: found {_short(value)}, allowed: finite numbers")
        try:
            return encoded(self.dtype, found, numbers)
        except (TypeError, OverflowError) as error:
            raise InputError(number, f"{where}: found {error}, allowed: numbers of the type {self.dtype}") from None


def _shape(row: Any) -> tuple[int, ...]:
    lengths = []
    while isinstance(row, Sequence) and not isinstance(row, str | bytes):
        lengths.append(len(row))
        if not row:
            break
        row = row[0]
    return tuple(lengths)


def _flat(row: Any) -> Iterator[Any]:
    if isinstance(row, Sequence) and not isinstance(row, str | bytes):
        for one in row:
            yield from _flat(one)
    else:
        yield row


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def _short(value: Any) -> str:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return "a whole number beyond any float" if is_whole else repr(str(value)[:80])
