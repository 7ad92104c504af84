"""When what the search expects is not to be relied on: forecasts promise nothing, or what they promised did not come.

Doubt asks for full trainings, which show what forecasts do not know of: configurations that start slowly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from studies.search.model.trial_table import TrialTable

WORTHWHILE = 0.02
"""Share of the hypervolume that as much money as was spent has to promise."""
GROWTH, GROWING_PART, GROWING_TRIALS = 0.01, 0.4, 5.0
"""By so much has the hypervolume to grow with the latest part of the money, at least so many usual full trainings, or
forecasts are doubted."""


@dataclass(slots=True)
class Stagnation:
    """What a study's money has bought so far, and may buy yet.

    Attributes:
        epochs: Of a full training.
        budget_usd: What the study may spend in all.
        slots: That spend it.
        spent_usd: What it had spent when it was last looked at.
    """

    epochs: int
    budget_usd: float = math.inf
    slots: int = 1
    spent_usd: float = 0.0
    _grown_to: float = 0.0
    _grown_at_usd: float = 0.0
    _full_usd: float | None = None
    _full_slot_usd: float | None = None

    def look(self, volume: float, table: TrialTable) -> None:
        """Note the hypervolume of what has been found, and what was spent by now."""
        self.spent_usd = float(table.paid_usd.sum())
        if volume > (1.0 + GROWTH) * self._grown_to:
            self._grown_to, self._grown_at_usd = volume, self.spent_usd
        usd = table.usd_per_epoch[table.paid]
        if len(usd):
            self._full_usd = self.epochs * float(np.median(usd))
            self._full_slot_usd = self.epochs * float(np.median(usd / table.world_sizes[table.paid]))

    def is_worthwhile(self, price: float, volume: float) -> bool:
        """Whether as much money again as was spent would buy a noticeable part of the hypervolume.

        Args:
            price: In hypervolume per dollar.
            volume: The hypervolume.
        """
        return price * self.spent_usd >= WORTHWHILE * volume

    def is_doubtful(self, price: float, volume: float) -> bool:
        """Whether forecasts deserve doubt; never once there is no time for a full training. Arguments as above."""
        return self._has_time() and (self._has_stagnated() or not self.is_worthwhile(price, volume))

    def _has_time(self) -> bool:
        """Whether a usual full training that starts now ends before the slots have spent the budget."""
        return self._full_slot_usd is None or (self.budget_usd - self.spent_usd) / self.slots >= self._full_slot_usd

    def _has_stagnated(self) -> bool:
        if self._grown_to == 0 or self._full_usd is None:
            return False
        since_usd = self.spent_usd - self._grown_at_usd
        return since_usd >= max(GROWING_PART * self.spent_usd, GROWING_TRIALS * self._full_usd)
