"""Progress of a study: growth of its hypervolume with the money spent."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np

from studies.results import pareto
from studies.search.arrays import Array
from studies.search.model.trial_arrays import TrialTable
from studies.search.observations import Columns, Snapshot, Values

GROWTH = 0.01
"""Relative growth of the hypervolume that counts as progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Dollars spent, and the hypervolume when it last grew noticeably.

    `grown_to` stays unchanged if an automatic reference point moves later (benchmarks/README.md).
    """

    spent_usd: float = 0.0
    grown_to: float = 0.0
    grown_at_usd: float = 0.0
    full_usd: float | None = None  # for a typical full training; None before any epoch was paid for
    full_slot_usd: float | None = None  # for each slot of a typical full training; None as for `full_usd`

    def after(self, volume: float, table: TrialTable, epochs: int, most_usd: Array) -> "Progress":
        """Return the progress after new measurements; a full training has `epochs`."""
        now = replace(self, spent_usd=float(table.paid_usd.sum()))
        if volume > (1.0 + GROWTH) * self.grown_to:
            now = replace(now, grown_to=volume, grown_at_usd=now.spent_usd)
        paid = table.rows_with_cost
        if not len(paid):
            return now
        complete = table.lengths[~np.isnan(table.lengths)]  # shorter than planned where trainings stop improving
        usual = float(np.median(complete)) if len(complete) else epochs

        def full(slots: Array) -> float:
            usd = usual * float(np.median(table.usd_per_epoch[paid] / slots))
            return min(usd, float(np.median(most_usd[paid] / slots)))

        return replace(now, full_usd=full(np.ones(len(paid))), full_slot_usd=full(table.world_sizes[paid]))


class ArchiveTracker:
    """The archive so far (non-dominated, feasible saved epochs), and the reference point."""

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
        """Add a trial's new saved epochs, and update its values extrapolated to the last epoch."""
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
        """Return the reference point for all saved epochs [objectives]; all 1 before the first."""
        ends = [one for of_trial in self._milestone_ends.values() for one in of_trial]
        columns = list(zip(*ends, strict=True))[: self._objectives] if ends else [()] * self._objectives
        return np.array([pareto.reference_coordinate(column) if column else 1.0 for column in columns])
