"""Progress: what a study's money has bought so far."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from studies.search.arrays import Array
from studies.search.model.trial_table import TrialTable

GROWTH = 0.01
"""Relative growth of the hypervolume that counts as progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Dollars spent, and how the hypervolume grew with them.

    Attributes:
        spent_usd: Dollars spent by now.
        grown_to: Hypervolume when it last grew noticeably, from the reference point of that moment: an automatic one
            moves, and docs/search-experiments.md says why later volumes are compared with it all the same.
        grown_at_usd: Dollars that had been spent by then.
        full_usd: Dollars for a usual full training; None before any epoch was paid for.
        full_slot_usd: Dollars for each slot of a usual full training; None likewise.
    """

    spent_usd: float = 0.0
    grown_to: float = 0.0
    grown_at_usd: float = 0.0
    full_usd: float | None = None
    full_slot_usd: float | None = None

    def after(self, volume: float, table: TrialTable, epochs: int, most_usd: Array) -> Progress:
        """The progress after new measurements.

        Args:
            volume: Hypervolume of the archive.
            table: All trials that were started.
            epochs: Planned number of epochs of a full training.
            most_usd: Dollars after which each trial is ended [n].
        """
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
