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
        self._taken: dict[int, frozenset[int]] = {}
        self._milestone_ends: dict[int, list[Columns]] = {}
        self._objectives = objectives
        self.archive: Array = np.zeros((0, objectives))

    def add(self, trial: Snapshot) -> None:
        """Add the milestones that a trial has reached since it was last added, and the model that it ended with.

        Its earlier milestones get other ends where the trial has become complete before the planned last epoch.
        """
        models = {e: v for e, v in trial.at.items() if self._is_model(trial, e) and all(map(math.isfinite, v))}
        self._milestone_ends[trial.number] = [trial.ends.get(epoch, values) for epoch, values in models.items()]
        known = self._taken.get(trial.number, frozenset())
        fresh = [values for epoch, values in models.items() if epoch not in known and self._feasible(values)]
        self._taken[trial.number] = frozenset(models)
        if fresh:
            points: list[Values] = [*map(tuple, self.archive.tolist()), *(one[: self._objectives] for one in fresh)]
            self.archive = np.array([points[i] for i in pareto.archive(points)])

    def _is_model(self, trial: Snapshot, epoch: int) -> bool:
        return epoch in self._milestones or epoch == trial.last_model

    def reference(self) -> Array:
        """Reference point as a study works it out from its milestones [objectives]; ones without any."""
        ends = [one for of_trial in self._milestone_ends.values() for one in of_trial]
        columns = list(zip(*ends, strict=True))[: self._objectives] if ends else [()] * self._objectives
        return np.array([pareto.reference_coordinate(column) if column else 1.0 for column in columns])
