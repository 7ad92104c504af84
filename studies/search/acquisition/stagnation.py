"""Stagnation: forecasts promise nothing noticeable, or what they promised did not come.

It asks for full trainings, which show what forecasts do not know of: configurations that start slowly. With V the
hypervolume, S the dollars spent and lambda the largest index, a search stagnates while a full training still fits into
the budget and either

    lambda S < WORTHWHILE V                                             nothing noticeable is promised, or
    S - S_0 >= max(GROWING_SHARE S, GROWING_TRIALS x cost of a full training)

where S_0 is what had been spent when V last grew noticeably (`studies.search.model.progress`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from studies.search.model.progress import Progress

WORTHWHILE = 0.02
"""Share of the hypervolume that as much money as was spent has to promise."""
GROWING_SHARE = 0.4
"""Share of the spent money after which a lack of progress counts as stagnation."""
GROWING_TRIALS = 5.0
"""Smallest amount of money without progress that counts as stagnation, in usual full trainings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stagnation:
    """Judges a study's progress.

    Attributes:
        progress: What the study's money has bought so far.
        budget_usd: Dollars that the study may spend in all; infinite without a limit.
        slots: Number of slots that spend the budget.
    """

    progress: Progress
    budget_usd: float = math.inf
    slots: int = 1

    def is_worthwhile(self, index: float, volume: float) -> bool:
        """Whether as much money again as was spent would buy a noticeable part of the hypervolume.

        Args:
            index: Largest index, in hypervolume per dollar.
            volume: Hypervolume of the archive.
        """
        return index * self.progress.spent_usd >= WORTHWHILE * volume

    def is_stagnating(self, index: float, volume: float) -> bool:
        """Whether the search stagnates; never once there is no time for a full training.

        Args:
            index: Largest index, in hypervolume per dollar.
            volume: Hypervolume of the archive.
        """
        return self._has_time() and (self._lacks_progress() or not self.is_worthwhile(index, volume))

    def _has_time(self) -> bool:
        """Whether a usual full training that starts now ends before the slots have spent the budget."""
        full_slot_usd = self.progress.full_slot_usd
        return full_slot_usd is None or (self.budget_usd - self.progress.spent_usd) / self.slots >= full_slot_usd

    def _lacks_progress(self) -> bool:
        progress = self.progress
        if progress.grown_to == 0 or progress.full_usd is None:
            return False
        since_usd = progress.spent_usd - progress.grown_at_usd
        return since_usd >= max(GROWING_SHARE * progress.spent_usd, GROWING_TRIALS * progress.full_usd)
