"""What one trial may cost: later epochs are out of its reach."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from studies.search.arrays import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialLimits:
    """Limits of each trial, infinite by default."""

    usd: float = math.inf
    seconds: float = math.inf

    def most_usd(self, seconds_per_usd: Array) -> Array:
        """Dollars after which trials are ended, from their seconds per dollar [m] and whichever limit comes first."""
        most: Array = np.minimum(self.usd, self.seconds / seconds_per_usd)
        return most


UNLIMITED = TrialLimits()
