"""The column that a model of tables learns: what it means, and the losses of what is learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from trainers.protocol import TaskError
from trainers.tasks.parts.columns import MOSTLY, Vector, values_of
from trainers.tasks.parts.split_task import Rows, check_no_gap
from trainers.tasks.parts.tables import Table, find_column, is_number

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Target:
    """The column to learn, and its scale.

    Attributes:
        column: Name of the column.
        classes: Class labels, sorted; empty for a number.
        mean: Mean of the training rows' numbers.
        deviation: Standard deviation of the training rows' numbers.
        variance: Variance of the validation rows' numbers in squared units of the target; what R2 compares with.
    """

    column: str
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0
    variance: float = 1.0

    def __repr__(self) -> str:
        """Return the text of which `DataMark` makes the mark of weights: with another one, stored ones are refused."""
        said = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))
        return f"_Target({', '.join(said)})"


def fit_target(
    table: Table, column: str, rows: tuple[Rows, Rows, Rows], validation: Table | None, classes: tuple[str, ...]
) -> Target:
    """Learn the target's classes or its scale.

    Raises:
        TaskError: A row has no target, or the number is the same in every training row.
    """
    if classes:
        return Target(column=column, classes=classes)
    numbers = target_numbers(table, column)
    judged = numbers[rows[1]] if validation is None else target_numbers(validation, column)
    known = numbers[rows[0]]
    if known.std() == 0:
        problem = f"found the same number, {known[0]:g}, in every training row"
        raise TaskError(f"{table.path}: column {column!r}: {problem}, allowed: a target that varies")
    return Target(
        column=column,
        mean=float(known.mean()),
        deviation=float(known.std()),
        variance=float(judged.var()) or float(known.var()),
    )


_MOST_WHOLE_CLASSES = 20
"""A target of whole numbers with more different values than this is one to estimate."""


def mean_of_members(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    """Return each sample's loss, the mean over members where outputs are [n, members, classes]; shape [n]."""
    if outputs.dim() == 2:
        return loss(outputs, targets)
    members = outputs.shape[1]
    return loss(outputs.flatten(0, 1), targets.repeat_interleave(members)).view(-1, members).mean(1)


def learned_part(targets: Tensor) -> Tensor:
    """Return what is learned of each row, [n]; targets of ranked rows say more."""
    return targets if targets.dim() == 1 else targets[:, 0]


def query_column(table: Table, query: str | int | None, kind: str, target: str) -> str | None:
    """Return the column of queries; None where rows are not ranked.

    Raises:
        TaskError: There is no such column, or kind and query do not go together.
    """
    if query is None:
        if kind == "ranking":
            raise TaskError("task_options.query: found nothing, allowed with kind ranking: the column of queries")
        return None
    if kind not in {"auto", "ranking"}:
        raise TaskError(f"task_options.kind: found {kind!r} with a query, allowed: ranking, or no query")
    column = find_column(table, query, "task_options.query")
    if column == target:
        raise TaskError(f"task_options.query: found {column!r}, the target, allowed: another column")
    return column


def target_numbers(table: Table, column: str) -> Vector:
    """Return the target as numbers, float64 [rows].

    Raises:
        TaskError: A row has none.
    """
    check_no_gap(table, column)
    return values_of(table, column)


def has_classes(table: Table, column: str) -> bool:
    """Whether the target is a class: a word, a boolean, or one of a few whole numbers.

    Raises:
        TaskError: It is a column of many numbers in which a word slipped.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = table.columns[column]
    if pa.types.is_boolean(cells.type):
        return True
    if pa.types.is_string(cells.type) and not _is_numeric(table, column):
        numbers, present = pc.sum(is_number(cells)).as_py() or 0, len(cells) - cells.null_count
        if numbers >= MOSTLY * present and len(pc.unique(cells)) > _MOST_WHOLE_CLASSES:
            values_of(table, column)
        return True
    return is_whole(table, column) and len(pc.unique(cells)) <= _MOST_WHOLE_CLASSES


def is_whole(table: Table, column: str) -> bool:
    """Whether a target could be classes as well as a number."""
    if not _is_numeric(table, column):
        return False
    values = values_of(table, column)
    known = values[~np.isnan(values)]
    return bool((known == np.round(known)).all())


def _is_numeric(table: Table, column: str) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = table.columns[column]
    if pa.types.is_string(cells.type):
        return bool(pc.all(is_number(cells)).as_py())
    return not pa.types.is_boolean(cells.type)


def feature_columns(table: Table, target: str, ignored: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to learn from.

    Raises:
        TaskError: There is none.
    """
    features = tuple(name for name in table.names if name != target and name not in ignored)
    if not features:
        raise TaskError(f"{table.path}: found no column beside the target {target!r}, allowed: at least one")
    return features
