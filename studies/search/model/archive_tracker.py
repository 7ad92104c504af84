"""All milestones that were measured: their archive, and the reference point that follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import numpy as np

from studies import pareto
from studies.search.arrays import Array
from studies.search.observations import Columns, Snapshot, Values


class ArchiveTracker:
    """Keeps the archive, and the values from which the reference point is worked out.

    Args:
        milestones: Epochs whose model is a deliverable.
        objectives: Number of objectives.
        feasible: Says whether a milestone's columns keep the study's constraints; others do not enter the archive.

    Attributes:
        archive: Non-dominated feasible milestones [n, objectives].
    """

    def __init__(
        self,
        milestones: Collection[int],
        *,
        objectives: int,
        feasible: Callable[[Columns], bool] = lambda _values: True,
    ) -> None:
        self._milestones, self._feasible = frozenset(milestones), feasible
        self._taken: dict[int, int] = {}
        self._columns: list[list[float]] = [[] for _ in range(objectives)]
        self.archive: Array = np.zeros((0, objectives))

    def add(self, trial: Snapshot) -> None:
        """Add the milestones that a trial has reached since it was last added."""
        before = self._taken.get(trial.number, 0)
        if before == len(trial.at):
            return
        self._taken[trial.number] = len(trial.at)
        fresh = [(e, v) for e, v in list(trial.at.items())[before:] if e in self._milestones]
        fresh = [(epoch, values) for epoch, values in fresh if all(map(math.isfinite, values))]
        for epoch, values in fresh:
            for column, value in zip(self._columns, trial.ends.get(epoch, values), strict=False):
                column.append(value)
        if feasible := [values[: len(self._columns)] for _, values in fresh if self._feasible(values)]:
            points: list[Values] = [*map(tuple, self.archive.tolist()), *feasible]
            self.archive = np.array([points[i] for i in pareto.archive(points)])

    def reference(self) -> Array:
        """Reference point as a study works it out from its milestones [objectives]; ones without any."""
        return np.array([pareto.reference_coordinate(column) if column else 1.0 for column in self._columns])
