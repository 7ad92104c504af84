"""Standardisation: values as multiples of a width around a centre, z = (value - centre) / width."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from studies.search.arrays import Array

Number = TypeVar("Number", float, Array)


@dataclass(frozen=True, slots=True)
class Standardisation(Generic[Number]):
    """A centre and a width, each one number for all values or one number per column.

    Attributes:
        centre: Value that becomes 0.
        width: Distance from the centre that becomes 1.
    """

    centre: Number
    width: Number

    def of(self, values: Array) -> Array:
        """Standardised values."""
        return (values - self.centre) / self.width

    def inverse(self, standardised: Array) -> Array:
        """Values of standardised ones."""
        return self.centre + self.width * standardised


IDENTITY = Standardisation(0.0, 1.0)


def by_median(values: Array, least_width: float) -> Standardisation[float]:
    """Median and standard deviation of values [n], with n at least 1."""
    return Standardisation(float(np.median(values)), max(float(values.std()), least_width))


def by_mean(values: Array, added_width: float) -> Standardisation[float]:
    """Mean and standard deviation of values [n]; the identity without values.

    Args:
        added_width: Number added to the standard deviation, so that few values that are alike are not blown up.
    """
    if not len(values):
        return IDENTITY
    return Standardisation(float(values.mean()), float(values.std()) + added_width)


def by_column(values: Array, deviations: float, added_width: float) -> Standardisation[Array]:
    """Mean of each column of values [n, K], and a number of its standard deviations plus a constant as its width."""
    return Standardisation(values.mean(axis=0), deviations * values.std(axis=0) + added_width)


def by_quartiles(values: Array) -> Standardisation[float]:
    """Median and interquartile range of values [n], with n at least 1, for values with outliers."""
    lower, centre, upper = np.quantile(values, [0.25, 0.5, 0.75])
    return Standardisation(float(centre), float(max(upper - lower, 1e-3 * max(abs(centre), 1e-6))))


def shrunk(prior: Standardisation[float], values: Array, prior_weight: int) -> Standardisation[float]:
    """A prior standardisation moved towards values [n]: few values that are alike prove little.

    Args:
        prior: Standardisation that is assumed without values.
    """
    if not len(values):
        return prior
    share = len(values) / (len(values) + prior_weight)
    centre = share * float(np.median(values)) + (1.0 - share) * prior.centre
    variance = share * float(((values - centre) ** 2).mean()) + (1.0 - share) * prior.width**2
    return Standardisation(centre, math.sqrt(variance))
