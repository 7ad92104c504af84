"""Cells of rows: a number of Python says what its text says."""

import random
from typing import Any

import pytest

from automl.standalone.errors import InputError
from automl.standalone.table_rows import TableRows


def rows_of(*missing: str, **others: Any) -> TableRows:
    number = {"name": "size", "is_date": False, "mean": 0.1, "deviation": 3.0, "median": 0.7, "marks": True}
    return TableRows(
        {"numbers": [number], "categories": [], "missing": ["", *missing], "known": ["size"], "farthest": 5.0} | others
    )


def numbers(rows: TableRows, cell: object) -> list[float]:
    return list(rows.encode({"size": cell}, 0).numbers)


@pytest.mark.parametrize("others", [{}, {"bound": 3.0}])
def test_a_float_is_what_its_text_is(others: dict[str, Any]) -> None:
    draw = random.Random(0)
    rows = rows_of(**others)
    cells = [draw.gauss(0, 1) * 10.0 ** draw.randint(-12, 12) for _ in range(500)]
    for cell in [*cells, 0.0, -0.0, 3.0, 1e16, 5e-324, 1.7976931348623157e308, -1e300]:
        assert numbers(rows, cell) == numbers(rows, repr(cell)), cell
    assert numbers(rows, 3.0) == numbers(rows, 3) == numbers(rows, "3")


def test_a_number_may_be_a_word_for_nothing_but_not_infinite_and_a_date_is_read_as_text() -> None:
    rows = rows_of("-999")
    nothing = numbers(rows, None)
    assert nothing[1] == 1.0
    assert numbers(rows, -999.0) == numbers(rows, -999) == numbers(rows, "-999") == nothing
    assert numbers(rows_of(), -999.0) != numbers(rows_of(), None)
    assert numbers(rows_of(), float("nan")) == numbers(rows_of(), None)
    for cell in (float("inf"), float("-inf"), "inf", 10**400):
        with pytest.raises(InputError, match=r"column 'size': found .*, allowed: a finite number"):
            numbers(rows_of(), cell)
    date = {"name": "size", "is_date": True, "mean": 0.0, "deviation": 1e5, "median": 0.0, "marks": False}
    with pytest.raises(InputError, match=r"found '20240101', allowed: a date such as 2024-12-31"):
        numbers(rows_of(numbers=[date]), 20240101.0)
    assert numbers(rows_of(numbers=[date]), "2024-01-01") == pytest.approx([0.19723])
