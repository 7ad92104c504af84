"""Constraints of a study as limits on the columns of its search."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from studies.records.records import Constraint, Objective
from studies.search.arrays import Array
from studies.search.observations import Columns


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnLimit:
    """Bounds of one column of `Snapshot.at`, in the column's sign; infinite where there is no bound."""

    column: int
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Return whether the value is within both bounds."""
        return self.low <= value <= self.high


class ColumnLimits:
    """All constraints of a study; `columns` are the objectives, then bounded metrics that are no objectives."""

    def __init__(self, columns: Sequence[Objective], constraints: Iterable[Constraint]) -> None:
        index = {column.metric: j for j, column in enumerate(columns)}
        self.each = tuple(_limit(index[one.metric], columns[index[one.metric]], one) for one in constraints)

    def holds(self, values: Columns) -> bool:
        """Return whether measured values keep all constraints."""
        return all(one.holds(values[one.column]) for one in self.each)

    def far_end(self, column: int, seen: Array) -> float | None:
        """Return the column's upper bound, or its measured median if larger; None without a bound."""
        high = next((one.high for one in self.each if one.column == column), math.inf)
        if not math.isfinite(high):
            return None
        return max(high, float(np.median(seen))) if len(seen) else high


def _limit(column: int, of: Objective, constraint: Constraint) -> ColumnLimit:
    low = -math.inf if constraint.min is None else constraint.min
    high = math.inf if constraint.max is None else constraint.max
    if of.direction == "maximize":
        low, high = -high, -low
    return ColumnLimit(column=column, low=low, high=high)
