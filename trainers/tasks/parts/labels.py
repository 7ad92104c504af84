"""Classes: the words of a label column as numbers from 0, the same in every process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from search_spaces.wording import listed, shown
from trainers.protocol import TaskError
from trainers.tasks.parts.splits import Rows
from trainers.tasks.parts.tables import Table, is_number, texts

_SMALLEST = 2


def fit_classes(table: Table, column: str) -> tuple[str, ...]:
    """Return the classes of a label column: sorted, as numbers if all are.

    Raises:
        TaskError: A label is missing, there are fewer than two classes, or one of them has a single row.
    """
    labels = texts(table.columns[column])
    check_no_gap(table, column)
    counts = {one["values"]: one["counts"] for one in pc.value_counts(labels).to_pylist()}
    classes = sorted(counts, key=_sort_key(counts))
    if len(classes) < _SMALLEST:
        problem = f"found one label only, {shown(classes[0])}, allowed: at least two classes"
        raise TaskError(f"{table.path}: column {column!r}: {problem}")
    rare = [one for one in classes if counts[one] < _SMALLEST]
    if rare:
        where = table.where(pc.index(labels, rare[0]).as_py())
        more = f", like {len(rare) - 1} other classes" if len(rare) > 1 else ""
        allowed = "two rows of each class, one to train on and one for validation"
        hint = "; for numbers to be estimated, kind: regression" if _all_numbers(counts) else ""
        raise TaskError(
            f"{where}, column {column!r}: found {shown(rare[0])} in this row only{more}, allowed: {allowed}{hint}"
        )
    return tuple(classes)


def encode_classes(table: Table, column: str, classes: Sequence[str]) -> Rows:
    """Return the class of each row, int64 [rows].

    A label that is no class but is one without the dot at its end counts as that: the test part of UCI's Adult data
    is written that way.

    Raises:
        TaskError: A label is missing, or no class.
    """
    check_no_gap(table, column)
    labels = texts(table.columns[column])
    known = pa.array(classes, pa.string())
    plain = pc.if_else(pc.is_in(labels, known), labels, pc.replace_substring_regex(labels, r"\.$", ""))
    numbers = pc.index_in(plain, known)
    if numbers.null_count:
        row = pc.index(pc.is_null(numbers), True).as_py()
        problem = (
            f"found the label {shown(labels[row].as_py())}, allowed: the training data's classes, {listed(classes)}"
        )
        raise TaskError(f"{table.where(row)}, column {column!r}: {problem}")
    return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.int64)


def check_no_gap(table: Table, column: str) -> None:
    """Check that every row has a value.

    Raises:
        TaskError: The first row that has none, and how many there are.
    """
    values = table.columns[column]
    if values.null_count:
        row = pc.index(pc.is_null(values), True).as_py()
        more = f" ({values.null_count} rows have none)" if values.null_count > 1 else ""
        problem = f"found no value in the target column {column!r}{more}"
        raise TaskError(f"{table.where(row)}: {problem}, allowed: a value in every row")


def _all_numbers(words: Sequence[str] | dict[str, int]) -> bool:
    return bool(pc.all(is_number(pa.array(list(words), pa.string()))).as_py())


def _sort_key(words: dict[str, int]) -> Callable[[str], Any]:
    return float if _all_numbers(words) else str
