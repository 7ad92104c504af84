"""Tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Sequence

COLUMN_GAP = 3
LEAST_PARAMS_COLUMNS = 30
"""A narrower column of parameters says nothing."""


def width_of(names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Width in characters of a table with these headings and cells, its margin included."""
    return sum(max(map(len, column)) + COLUMN_GAP for column in zip(names, *rows, strict=True)) + 2
