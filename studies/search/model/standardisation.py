"""Scales of metrics: z = (value - centre) / width, and normal scores of ranks."""

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from scipy.special import ndtri

from studies.search.arrays import Array, Kind, Marginal

Number = TypeVar("Number", float, Array)


@dataclass(frozen=True, slots=True)
class Standardisation(Generic[Number]):
    """Centre and width of a scale: numbers, or arrays with one number per column."""

    centre: Number
    width: Number

    def of(self, values: Array) -> Array:
        """Return standardised values."""
        return (values - self.centre) / self.width

    def inverse(self, standardised: Array) -> Array:
        """Return the original values of standardised values."""
        return self.centre + self.width * standardised


IDENTITY = Standardisation(0.0, 1.0)


def by_median(values: Array, least_width: float) -> Standardisation[float]:
    """Return the scale with median and standard deviation of n >= 1 values [n]."""
    return Standardisation(float(np.median(values)), max(float(values.std()), least_width))


def by_mean(values: Array, added_width: float) -> Standardisation[float]:
    """Return the scale with mean and standard deviation + `added_width`; identity for n = 0."""
    if not len(values):
        return IDENTITY
    return Standardisation(float(values.mean()), float(values.std()) + added_width)


def by_column(values: Array, deviations: float, added_width: float) -> Standardisation[Array]:
    """Return the scale of columns [n, K] with mean and standard deviation x `deviations` + `added_width`."""
    return Standardisation(values.mean(axis=0), deviations * values.std(axis=0) + added_width)


def by_quartiles(values: Array) -> Standardisation[float]:
    """Return the scale with median and interquartile range of n >= 1 values [n]."""
    lower, centre, upper = np.quantile(values, [0.25, 0.5, 0.75])
    return Standardisation(float(centre), float(max(upper - lower, 1e-3 * max(abs(centre), 1e-6))))


def shrunk(prior: Standardisation[float], values: Array, prior_weight: int) -> Standardisation[float]:
    """Return a scale between a prior scale and the scale of values [n]; the prior counts like `prior_weight` values."""
    if not len(values):
        return prior
    share = len(values) / (len(values) + prior_weight)
    centre = share * float(np.median(values)) + (1.0 - share) * prior.centre
    variance = share * float(((values - centre) ** 2).mean()) + (1.0 - share) * prior.width**2
    return Standardisation(centre, math.sqrt(variance))


BY_RANK = 0.6
"""Weight of the rank for many values; the standardised value, which keeps distances, has the remaining weight."""
BY_RANK_FROM = 4
"""Number of values at which half of `BY_RANK` is reached."""
CLIP_START = (-5.0, 3.0)
"""Range to which standardised values are clipped."""
LEAST_WIDTH = 1e-3
"""Smallest width of a scale."""
TAIL_QUANTILE = 0.25
"""Quantile of z that limits the tail of good values."""
EXTRAPOLATION = 2.0
"""Slope of z per score below the smallest value, as a multiple of the tail's slope: searches look for outliers."""
TAIL_PRIOR, TAIL_PRIOR_WEIGHT = 0.2, 6
"""Prior slope of z per score below the smallest value, and the number of values that weigh as much as this prior."""
TOWARDS_BETTER = 2.0
"""Distance below the mean score, in standard deviations, at which the spread of z is measured."""
LEAST_SLOPE = 0.1
"""Lower bound on the local slope, as a fraction of the slope below the smallest value, so that forecasts do not become
certain on flat parts or among failures."""


@dataclass(frozen=True, slots=True)
class NormalScores:
    """An increasing function from distinct, ascending values z [k] to normal scores [k]."""

    z: Array
    scores: Array
    slope_below: float

    @staticmethod
    def of(z: Array) -> "NormalScores":
        """Return the function for n >= 0 measured values [n]."""
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
        """Return the scores of values [n] within the measured range."""
        return np.interp(z, self.z, self.scores)

    def to_z(self, scores: Array) -> Array:
        """Return the values for scores [n], at most the worst measured value."""
        z: Array = np.interp(scores, self.scores, self.z) - self.slope_below * np.maximum(self.scores[0] - scores, 0.0)
        return z

    def forecast(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return median of z, and variance of its better half, for normal scores."""
        z, sd = self.to_z(mean), np.sqrt(variance)
        spread = (z - self.to_z(mean - TOWARDS_BETTER * sd)) / TOWARDS_BETTER
        return z, np.maximum(spread, np.maximum(LEAST_SLOPE * self.slope_below * sd, 1e-5)) ** 2


def _slope_below(values: Array, scores: Array, quarter: float, count: int) -> float:
    """Return the slope of z below the smallest score, from the tail's slope and its prior."""
    upper = min(max(int(np.searchsorted(values, quarter)), 1), len(values) - 1)
    rise = float(scores[upper] - scores[0])
    seen = float(values[upper] - values[0]) / rise if rise > 0 else 0.0
    return (EXTRAPOLATION * seen * count + TAIL_PRIOR * TAIL_PRIOR_WEIGHT) / (count + TAIL_PRIOR_WEIGHT)


ABOVE_BOUND = 1.5
"""Largest distance in z from the far end to the ceiling."""
ABOVE_REFERENCE = 0.15
"""Distance of an objective's ceiling from the reference point, as a fraction of the range from best to reference."""
LEAST_RANGE = 0.1
"""Smallest assumed distance in z from an objective's best value to the reference point."""
UNBOUNDED_CEILING = 5.0
"""Ceiling of a standardised metric without bound and reference point."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The function from a minimised metric to z: a logarithm if positive, else linear."""

    kind: Kind
    low: float = 0.0
    standardisation: Standardisation[float] = IDENTITY
    ceiling: float = UNBOUNDED_CEILING

    @staticmethod
    def of(values: Array, far_end: float | None, *, is_worthless_beyond: bool = False) -> "Scale":
        """Return the scale for measured values; `far_end`: reference point or upper bound."""
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
        """Return z for values of the metric; the ceiling if larger or not finite."""
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.log(np.maximum(values, self.low)) if self.kind == "lognormal" else self.standardisation.of(values)
        return np.minimum(np.where(np.isfinite(values), z, self.ceiling), self.ceiling)

    def from_z(self, z: Array) -> Array:
        """Return the metric's values for z."""
        return np.exp(z) if self.kind == "lognormal" else self.standardisation.inverse(z)

    def marginal(self, mean: Array, variance: Array) -> Marginal:
        """Return the distribution of the metric from mean and variance of z."""
        sd = np.sqrt(variance)
        if self.kind == "lognormal":
            return mean, sd, "lognormal"
        return self.standardisation.inverse(mean), self.standardisation.width * sd, "gaussian"


def _ceiling(far_end: float, best: float | None) -> float:
    """Return the largest z; `best` is the best z if values beyond the far end are worthless."""
    beyond = ABOVE_BOUND if best is None else min(ABOVE_REFERENCE * max(far_end - best, LEAST_RANGE), ABOVE_BOUND)
    return far_end + beyond
