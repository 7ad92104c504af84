"""Rows as numbers in plain memory, which torch and numpy read without a copy."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_CODES = {"float32": "f", "int64": "q", "uint8": "B"}
DTYPES = tuple(_CODES)


@dataclass(frozen=True)
class Encoded:
    """Numbers of one row, or of stacked rows along a new first dimension."""

    dtype: str
    shape: tuple[int, ...]
    numbers: array[Any]


def encoded(dtype: str, shape: Sequence[int], numbers: Sequence[float] | bytes) -> Encoded:
    """Return numbers as `Encoded`. Too large floats become infinite; unfit numbers raise OverflowError or TypeError."""
    return Encoded(dtype, tuple(shape), array(_CODES[dtype], numbers))


def stacked(rows: Sequence[Encoded], fill: int = 0) -> Encoded:
    """Stack rows to a batch. Shorter rows of one dimension are padded with `fill`."""
    first = rows[0]
    longest = max(row.shape[0] for row in rows) if len(first.shape) == 1 else 0
    numbers: array[Any] = array(_CODES[first.dtype])
    for row in rows:
        numbers.extend(row.numbers)
        if len(row.shape) == 1 and row.shape[0] < longest:
            numbers.extend(array(_CODES[first.dtype], [fill]) * (longest - row.shape[0]))
    shape = (longest,) if len(first.shape) == 1 else first.shape
    return Encoded(first.dtype, (len(rows), *shape), numbers)
