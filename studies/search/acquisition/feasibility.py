"""The probability that a milestone keeps the study's constraints: what multiplies its expected improvement.

    P = prod_c [F_c(max_c) - F_c(min_c)]

with F_c the forecast distribution of the bounded metric, the same marginal that an objective of its kind has: known,
from a regression, from the price per epoch, or from a chain over rungs. Constraints are taken as independent of each
other and of the objectives given the configuration (Gardner et al. 2014, Bayesian Optimization with Inequality
Constraints, ICML).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from studies.records import Constraint, Objective
from studies.search.acquisition.hypervolume_improvement import Marginal
from studies.search.model.gaussian_process import Array
from studies.search.observations import Columns

LEAST = 1e-9
"""Where nothing is likely to be feasible, improvements still tell configurations apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one column of `Seen.at`, in the column's sign; infinite where there is none."""

    column: int
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether the value is within both bounds."""
        return self.low <= value <= self.high

    def probability(self, mean: Array, sd: Array, kind: str) -> Array:
        """P(low <= Y <= high).

        Args:
            mean: Of Y, or of log Y where it is log-normal.
            sd: Likewise; 0 where the value is certain.
            kind: "gaussian" or "lognormal".
        """
        low, high = (_log(self.low), _log(self.high)) if kind == "lognormal" else (self.low, self.high)
        safe = np.maximum(sd, 1e-12)
        uncertain = ndtr((high - mean) / safe) - ndtr((low - mean) / safe)
        value = np.exp(mean) if kind == "lognormal" else mean
        probability: Array = np.where(sd > 1e-9, uncertain, (self.low <= value) & (value <= self.high))
        return probability


class Feasibility:
    """The constraints of a study, as its search looks at them.

    Args:
        columns: What `Seen.at` holds: the objectives, then bounded metrics that are none.
        constraints: Each about one of the columns.
    """

    def __init__(self, columns: Sequence[Objective], constraints: Iterable[Constraint]) -> None:
        place = {column.metric: j for j, column in enumerate(columns)}
        self.limits = tuple(_limits(place[one.metric], columns[place[one.metric]], one) for one in constraints)

    def holds(self, values: Columns) -> bool:
        """Whether measured values keep all constraints."""
        return all(one.holds(values[one.column]) for one in self.limits)

    def far_end(self, column: int, seen: Array) -> float | None:
        """The larger of a column's upper bound and the middle of what was seen; None without such a bound.

        Values far beyond need not be told apart. As long as all that was seen lies beyond the bound, they have to be.
        """
        high = next((one.high for one in self.limits if one.column == column), math.inf)
        if not math.isfinite(high):
            return None
        return max(high, float(np.median(seen))) if len(seen) else high

    def probability(self, marginal_of: Callable[[int], Marginal]) -> Array:
        """The probability of each candidate to be feasible, with the axes of the marginals; 1 without constraints.

        Args:
            marginal_of: Mean, deviation and kind of a column.
        """
        likely: Array = np.ones(1)
        for one in self.limits:
            likely = likely * one.probability(*marginal_of(one.column))
        return np.maximum(likely, LEAST) if self.limits else likely


def _limits(column: int, of: Objective, constraint: Constraint) -> Limits:
    low = -math.inf if constraint.min is None else constraint.min
    high = math.inf if constraint.max is None else constraint.max
    if of.direction == "maximize":
        low, high = -high, -low
    return Limits(column=column, low=low, high=high)


def _log(bound: float) -> float:
    """Of a bound on a positive quantity: any that is not above 0 lies below all of it."""
    return math.log(bound) if bound > 0 else -math.inf
