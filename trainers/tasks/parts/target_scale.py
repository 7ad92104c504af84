"""The scale of the column that a model of tables learns: its classes, or its mean and deviation."""

from __future__ import annotations

from dataclasses import dataclass, fields

from trainers.protocol import TaskError
from trainers.tasks.parts.splits import Rows
from trainers.tasks.parts.tables import Table
from trainers.tasks.parts.targets import target_numbers


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
