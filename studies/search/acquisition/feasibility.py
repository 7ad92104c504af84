"""Probability of feasibility: the factor by which the expected improvement of a milestone is multiplied.

    P = prod_c [F_c(high_c) - F_c(low_c)]

with F_c the forecast distribution of the column that constraint c bounds. Constraints are taken as independent of each
other and of the objectives given the configuration (Gardner et al. 2014, Bayesian Optimization with Inequality
Constraints, ICML).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtr

from studies.search.arrays import Array
from studies.search.marginals import Kind, Marginal
from studies.search.model.column_limits import ColumnLimit, ColumnLimits

LEAST = 1e-9
"""Smallest probability: where no configuration is likely to be feasible, improvements still tell them apart."""


def probability_of_feasibility(limits: ColumnLimits, marginal_of: Callable[[int], Marginal]) -> Array:
    """The probability of each candidate to be feasible, in the shape of the marginals; 1 without constraints.

    Args:
        limits: Constraints of the study.
        marginal_of: Gives the marginal distribution of a column.
    """
    probability: Array = np.ones(1)
    for one in limits.each:
        probability = probability * _within(one, *marginal_of(one.column))
    return np.maximum(probability, LEAST) if limits.each else probability


def _within(limit: ColumnLimit, mean: Array, sd: Array, kind: Kind) -> Array:
    """P(low <= Y <= high) of a marginal distribution."""
    low, high = (_log(limit.low), _log(limit.high)) if kind == "lognormal" else (limit.low, limit.high)
    safe = np.maximum(sd, 1e-12)
    uncertain = ndtr((high - mean) / safe) - ndtr((low - mean) / safe)
    value = np.exp(mean) if kind == "lognormal" else mean
    probability: Array = np.where(sd > 1e-9, uncertain, (limit.low <= value) & (value <= limit.high))
    return probability


def _log(bound: float) -> float:
    """Logarithm of a bound on a positive quantity; minus infinity for a bound that is not above 0."""
    return math.log(bound) if bound > 0 else -math.inf
