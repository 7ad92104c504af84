"""Standardisation: values as multiples of a width around a centre, z = (value - centre) / width."""

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from studies.search.arrays import Array

Number = TypeVar("Number", float, Array)


@dataclass(frozen=True, slots=True)
class Standardisation(Generic[Number]):
    """A centre, which becomes 0, and a width, which becomes 1: numbers, or arrays with one number per column."""

    centre: Number
    width: Number

    def of(self, values: Array) -> Array:
        """Return standardised values."""
        return (values - self.centre) / self.width

    def inverse(self, standardised: Array) -> Array:
        """Return values from standardised values."""
        return self.centre + self.width * standardised


IDENTITY = Standardisation(0.0, 1.0)


def by_median(values: Array, least_width: float) -> Standardisation[float]:
    """Return the median and standard deviation of values [n], with n at least 1."""
    return Standardisation(float(np.median(values)), max(float(values.std()), least_width))


def by_mean(values: Array, added_width: float) -> Standardisation[float]:
    """Return mean of values [n], and standard deviation plus `added_width` (they may be alike); identity for n = 0."""
    if not len(values):
        return IDENTITY
    return Standardisation(float(values.mean()), float(values.std()) + added_width)


def by_column(values: Array, deviations: float, added_width: float) -> Standardisation[Array]:
    """Return each column's mean of values [n, K], and as width `deviations` standard deviations + `added_width`."""
    return Standardisation(values.mean(axis=0), deviations * values.std(axis=0) + added_width)


def by_quartiles(values: Array) -> Standardisation[float]:
    """Return the median and interquartile range of values [n], with n at least 1, for values with outliers."""
    lower, centre, upper = np.quantile(values, [0.25, 0.5, 0.75])
    return Standardisation(float(centre), float(max(upper - lower, 1e-3 * max(abs(centre), 1e-6))))


def shrunk(prior: Standardisation[float], values: Array, prior_weight: int) -> Standardisation[float]:
    """Return a prior standardisation moved towards values [n], which prove little if they are few and alike."""
    if not len(values):
        return prior
    share = len(values) / (len(values) + prior_weight)
    centre = share * float(np.median(values)) + (1.0 - share) * prior.centre
    variance = share * float(((values - centre) ** 2).mean()) + (1.0 - share) * prior.width**2
    return Standardisation(centre, math.sqrt(variance))
