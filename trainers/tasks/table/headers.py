"""Finds out if the first row of a text file names the columns."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from automl.standalone.cells import is_missing, milliseconds_of, parts, value_of

_SAMPLE = 300
_YEARS = range(1800, 2201)
_COUNTED = 3  # number of cells 0, 1, 2 or 1, 2, 3 from which a first row of numbers counts the columns

_Kind = Literal["number", "date", "word"]


def find_header(columns: Sequence[Any], expected: Sequence[str | int]) -> tuple[bool, bool]:
    """Return whether the first cells are names, and whether that is sure. `columns` are Arrow strings.

    Names are distinct. A word is a name over numbers, or if it does not occur below. A number is a name beside a word
    over numbers, in a row of counted or equally spaced whole numbers, or of years, which are unlike the cells below,
    and in a row of whole numbers over fractions.
    """
    first = [column[0].as_py() for column in columns]
    if has_expected(first, expected):
        return True, True
    present = [(cell, column[1:]) for cell, column in zip(first, columns, strict=True) if cell is not None]
    cells = [cell for cell, _ in present]
    if len(cells) < max(1, len(first) - 1) or len(set(cells)) < len(cells):
        return False, True
    below = [[text for text in column.drop_null().to_pylist() if not is_missing(text)] for _, column in present]
    kinds, kinds_below = [_kind(cell) for cell in cells], [_usual_kind(texts) for texts in below]
    if any(one == other == "date" for one, other in zip(kinds, kinds_below, strict=True)):
        return False, False
    numbers = [index for index, kind in enumerate(kinds) if kind == "number"]
    if any(
        one == "word" != other and other and not is_missing(cell)
        for cell, one, other in zip(cells, kinds, kinds_below, strict=True)
    ):
        return True, not numbers
    if numbers:
        of_numbers = [cells[one] for one in numbers], [below[one] for one in numbers]
        has_names = _are_names(*of_numbers, has_blank=len(cells) < len(first))
        words = [(cells[one], below[one]) for one in range(len(cells)) if one not in numbers]
        return has_names and not any(word in texts for word, texts in words), False
    return not any(cell in texts for cell, texts in zip(cells, below, strict=True)), "number" in kinds_below


def has_expected(cells: Sequence[str | None], expected: Sequence[str | int]) -> bool:
    """Return whether one of the cells is an expected name; a number that could count the columns is none."""
    width = len(cells)
    return any(str(one) in cells and not (isinstance(one, int) and -width <= one < width) for one in expected)


def _are_names(cells: Sequence[str], below: Sequence[Sequence[str]], *, has_blank: bool) -> bool:
    if not all(cell.isdigit() for cell in cells):
        return False
    values = [int(cell) for cell in cells]
    steps = {after - before for before, after in pairwise(values)}
    if (len(values) >= _COUNTED or has_blank) and steps <= {1} and values[0] in {0, 1}:
        return True
    if len(values) >= _COUNTED and len(set(values)) == len(values) and all(map(_are_fractions, below)):
        return True
    is_row = len(steps) == 1 and min(steps) > 0
    are_years = all(value in _YEARS for value in values) and len(set(values)) == len(values)
    return (is_row or are_years) and all(_is_unlike(value, texts) for value, texts in zip(values, below, strict=True))


def _is_unlike(value: int, below: Sequence[str]) -> bool:
    """Return whether a whole number lies outside the range of the cells below, or they are fractions."""
    numbers = _numbers(below)
    return not numbers or _are_fractions(below) or not min(numbers) <= value <= max(numbers)


def _are_fractions(texts: Sequence[str]) -> bool:
    numbers = _numbers(texts)
    return sum(not number.is_integer() for number in numbers) > len(numbers) / 2


def _numbers(texts: Sequence[str]) -> list[float]:
    read = [parts(text) for text in texts]
    values = (value_of(one[0], mark) for one in read if one is not None for mark in ".,")
    return [value for value in values if value is not None]


def _usual_kind(texts: Sequence[str]) -> _Kind | None:
    kinds = Counter(_kind(text) for text in texts[:_SAMPLE])
    return kinds.most_common(1)[0][0] if kinds else None


def _kind(text: str) -> _Kind:
    found = parts(text)
    is_number = found is not None and any(value_of(found[0], mark) is not None for mark in ".,")
    if found is not None and is_number and not any(letter.isalpha() for letter in found[1]):
        return "number"
    dates = (milliseconds_of(text, is_day_first=is_day_first) for is_day_first in (True, False))
    return "word" if all(date is None for date in dates) else "date"
