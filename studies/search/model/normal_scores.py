"""Normal scores of the values at the first rung: ranks on the scale of a standard normal variable.

In some spaces most configurations never begin to learn: a process on the losses sees a flat function with spikes.
Partly using ranks separates slightly better configurations from slightly worse ones (rank-based transforms in Bayesian
optimisation: Salinas et al. 2020, arXiv 1909.13595). For n values z with ranks r(z) from 1 to n:

    score(z) = b Phi^-1((r(z) - 1/2) / n) + (1 - b) (z - median) / sd,   b = BY_RANK n / (n + BY_RANK_FROM)

and linear in between; below the smallest value, z falls by `slope_below` with each score.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from studies.search.arrays import Array
from studies.search.model.standardisation import by_median

BY_RANK = 0.6
"""Weight of the rank's score for many values; the standardised value, which keeps distances, has the other weight."""
BY_RANK_FROM = 4
"""Number of values at which half of that weight is reached."""
CLIP_START = (-5.0, 3.0)
"""Range to which standardised values are clipped."""
LEAST_WIDTH = 1e-3
"""Smallest divisor that standardises values."""
TAIL_QUANTILE = 0.25
"""Quantile of z below which values form the tail of good values."""
EXTRAPOLATION = 2.0
"""Slope of z per score below the smallest value, as a multiple of the mean slope in the tail, since searches look for
outliers."""
TAIL_PRIOR, TAIL_PRIOR_WEIGHT = 0.2, 6
"""Prior slope of z per score below the smallest value, and the number of values that the prior weighs as much as: few
similar values prove little."""
TOWARDS_BETTER = 2.0
"""Distance below the mean score, in standard deviations, at which the spread of z is taken."""
LEAST_SLOPE = 0.1
"""Lower bound on the local slope, as a fraction of the slope below the smallest value: forecasts must not become
certain on a flat part or among failures."""


@dataclass(frozen=True, slots=True)
class NormalScores:
    """A growing function from distinct measured values z [k], ascending, to their scores [k]."""

    z: Array
    scores: Array
    slope_below: float

    @staticmethod
    def of(z: Array) -> "NormalScores":
        """Return the function for measured values [n]; n may be 0."""
        if not len(z):
            return NormalScores(np.zeros(1), np.zeros(1), TAIL_PRIOR)
        values, inverse, counts = np.unique(z, return_inverse=True, return_counts=True)
        probability = (np.arange(len(z)) + 0.5) / len(z)
        shared = np.bincount(np.sort(inverse), weights=probability) / counts  # equal values have one rank
        linear = np.clip(by_median(z, LEAST_WIDTH).of(values), *CLIP_START)
        by_rank = BY_RANK * len(z) / (len(z) + BY_RANK_FROM)
        scores = by_rank * ndtri(shared) + (1.0 - by_rank) * linear
        return NormalScores(values, scores, _slope_below(values, scores, float(np.quantile(z, TAIL_QUANTILE)), len(z)))

    def of_z(self, z: Array) -> Array:
        """Return the scores of values within the range of the measured ones [n]."""
        scores: Array = np.interp(z, self.z, self.scores)
        return scores

    def to_z(self, scores: Array) -> Array:
        """Return values of scores [n]; the worst measured value for scores above its own."""
        z: Array = np.interp(scores, self.scores, self.z) - self.slope_below * np.maximum(self.scores[0] - scores, 0.0)
        return z

    def forecast(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return the median of z and the variance of its better half, for normal scores; the worse half reaches far."""
        z, sd = self.to_z(mean), np.sqrt(variance)
        spread = (z - self.to_z(mean - TOWARDS_BETTER * sd)) / TOWARDS_BETTER
        return z, np.maximum(spread, np.maximum(LEAST_SLOPE * self.slope_below * sd, 1e-5)) ** 2


def _slope_below(values: Array, scores: Array, quarter: float, count: int) -> float:
    """Return the slope of z below the smallest score: the mean slope up to `quarter`, mixed with a prior slope."""
    upper = min(max(int(np.searchsorted(values, quarter)), 1), len(values) - 1)
    rise = float(scores[upper] - scores[0])
    seen = float(values[upper] - values[0]) / rise if rise > 0 else 0.0
    return (EXTRAPOLATION * seen * count + TAIL_PRIOR * TAIL_PRIOR_WEIGHT) / (count + TAIL_PRIOR_WEIGHT)
