"""Cost limits of single trials, for forecasts: a trial never reaches epochs beyond them."""

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
        """Return the dollars at which trials end, from their seconds per dollar [m] and the limit reached first."""
        most: Array = np.minimum(self.usd, self.seconds / seconds_per_usd)
        return most


UNLIMITED = TrialLimits()
