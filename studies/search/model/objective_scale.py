"""Transformation of a metric into z, the quantity whose course over the rungs is forecast.

    z = log y                      if the metric is never negative
    z = (y - centre) / width       otherwise, with the median and the interquartile range

z has a ceiling shortly after the value beyond which a metric is worthless: without it, exploding losses and failed
trials would make a cliff, and points near the cliff would look most uncertain.
"""

import math
from dataclasses import dataclass

import numpy as np

from studies.search.arrays import Array
from studies.search.marginals import Kind, Marginal
from studies.search.model.standardisation import IDENTITY, Standardisation, by_quartiles

ABOVE_BOUND = 1.5
"""Largest distance in z from the far end to the ceiling."""
ABOVE_REFERENCE = 0.15
"""Distance of an objective's ceiling from the reference point, as a fraction of the range from best to reference."""
LEAST_RANGE = 0.1
"""Smallest distance in z that is assumed between an objective's best value and the reference point."""
UNBOUNDED_CEILING = 5.0
"""Ceiling of a standardised metric while neither a bound nor a reference point defines the far end."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The function from a metric, to be minimised, to z; values below `low` are raised to it before the logarithm."""

    kind: Kind
    low: float = 0.0
    standardisation: Standardisation[float] = IDENTITY
    ceiling: float = UNBOUNDED_CEILING

    @staticmethod
    def of(values: Array, far_end: float | None, *, is_worthless_beyond: bool = False) -> "Scale":
        """Return the scale for the finite measured values; `far_end` is the reference point or upper bound, or None."""
        seen = values[np.isfinite(values)]
        if not len(seen):
            return Scale("gaussian")
        if seen.min() >= 0 and seen.max() > 0:
            low = float(seen[seen > 0].min()) / 2.0
            end = math.log(max(far_end if far_end is not None and far_end > 0 else float(np.median(seen)), low))
            best = math.log(max(float(seen.min()), low)) if is_worthless_beyond else None
            return Scale("lognormal", low=low, ceiling=_ceiling(end, best))
        own = by_quartiles(seen)
        best = (float(seen.min()) - own.centre) / own.width if is_worthless_beyond else None
        top = UNBOUNDED_CEILING if far_end is None else _ceiling((far_end - own.centre) / own.width, best)
        return Scale("gaussian", standardisation=own, ceiling=max(top, 1.0))

    def to_z(self, values: Array) -> Array:
        """Turn values of the metric into z; the ceiling for values that are not finite."""
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.log(np.maximum(values, self.low)) if self.kind == "lognormal" else self.standardisation.of(values)
        bounded: Array = np.minimum(np.where(np.isfinite(values), z, self.ceiling), self.ceiling)
        return bounded

    def from_z(self, z: Array) -> Array:
        """Return values of the metric for z."""
        value: Array = np.exp(z) if self.kind == "lognormal" else self.standardisation.inverse(z)
        return value

    def marginal(self, mean: Array, variance: Array) -> Marginal:
        """Return the marginal distribution of the metric, given mean and variance of z."""
        sd = np.sqrt(variance)
        if self.kind == "lognormal":
            return mean, sd, "lognormal"
        return self.standardisation.inverse(mean), self.standardisation.width * sd, "gaussian"


def _ceiling(far_end: float, best: float | None) -> float:
    """Return the ceiling of z; `best` is the best z if values beyond the far end are worthless, else None."""
    beyond = ABOVE_BOUND if best is None else min(ABOVE_REFERENCE * max(far_end - best, LEAST_RANGE), ABOVE_BOUND)
    return far_end + beyond
