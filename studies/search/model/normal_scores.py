"""Where the first rung's values lie on the bell curve that their ranks suggest.

Most configurations of some spaces never begin to learn: their losses differ in the third digit, those of a few fall by
half, and a process on the losses themselves sees a flat land with spikes. Half-way to normal scores, ranks on the
scale of a standard normal variable, what tells a little better from a little worse counts as well (rank-based
transforms in Bayesian optimisation: Salinas et al. 2020, arXiv 1909.13595).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from studies.search.model.gaussian_process import Array

BY_RANK = 0.6
"""Weight of the normal score; the rest is that of the standardised value, which knows how far ranks are apart."""
BY_RANK_FROM = 4
"""Values with which half of that weight is reached."""
CLIP_START = (-5.0, 3.0)
"""Between these the standardised value is clipped."""
TAIL_PART, TAIL_STRETCH = 0.25, 2.0
"""Values better than the best go on as steeply as the best part, times this: whoever searches looks for outliers."""
TAIL_PRIOR, TAIL_WORTH = 0.2, 6
"""Change of z per score that is assumed of the tail, and for how many values that stands: few that are alike prove
little."""
TOWARDS_BETTER = 2.0
"""Deviations below the mean at which the spread is taken."""
LEAST_SPREAD = 0.1
"""Of that of the tail: on a flat part, or among failures, forecasts must not become certain."""


@dataclass(frozen=True, slots=True)
class NormalScores:
    """A growing function between values z, to be minimised, and their scores.

    Attributes:
        z: What was seen, ascending, each value once [k].
        scores: Theirs, ascending [k].
        tail: By how much z falls with each score below the smallest.
    """

    z: Array
    scores: Array
    tail: float

    @staticmethod
    def of(z: Array) -> NormalScores:
        """Scores of values [n]; n may be 0."""
        if not len(z):
            return NormalScores(np.zeros(1), np.zeros(1), TAIL_PRIOR)
        values, place, counts = np.unique(z, return_inverse=True, return_counts=True)
        probability = (np.arange(len(z)) + 0.5) / len(z)
        shared = np.bincount(np.sort(place), weights=probability) / counts  # equal values have one rank
        linear = np.clip((values - np.median(z)) / max(float(z.std()), 1e-3), *CLIP_START)
        by_rank = BY_RANK * len(z) / (len(z) + BY_RANK_FROM)
        scores = by_rank * ndtri(shared) + (1.0 - by_rank) * linear
        return NormalScores(values, scores, _tail(values, scores, float(np.quantile(z, TAIL_PART)), len(z)))

    def of_z(self, z: Array) -> Array:
        """Scores of values among those seen [n]."""
        scores: Array = np.interp(z, self.z, self.scores)
        return scores

    def to_z(self, scores: Array) -> Array:
        """The inverse; what is worse than all that was seen is as bad as the worst."""
        z: Array = np.interp(scores, self.scores, self.z) - self.tail * np.maximum(self.scores[0] - scores, 0.0)
        return z

    def forecast(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Median of z and its variance, as far as z is better than that, for normally distributed scores.

        The other side leads to what is bad, and would make a forecast vague that is firm where it matters.
        """
        z, sd = self.to_z(mean), np.sqrt(variance)
        spread = (z - self.to_z(mean - TOWARDS_BETTER * sd)) / TOWARDS_BETTER
        return z, np.maximum(spread, np.maximum(LEAST_SPREAD * self.tail * sd, 1e-5)) ** 2


def _tail(values: Array, scores: Array, quarter: float, count: int) -> float:
    upper = min(max(int(np.searchsorted(values, quarter)), 1), len(values) - 1)
    rise = float(scores[upper] - scores[0])
    seen = float(values[upper] - values[0]) / rise if rise > 0 else 0.0
    return (TAIL_STRETCH * seen * count + TAIL_PRIOR * TAIL_WORTH) / (count + TAIL_WORTH)
