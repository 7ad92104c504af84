"""Significance test for two models on the same samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

SURE = 0.05
"""Significance level: differences with p < 0.05 count."""


def chance_of(differences: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Return the one-sided p-value of a mean difference below 0, by the paired t-test.

    It is at least 2^-n, the probability that all n differences favour the new model by chance: fewer than five samples
    show nothing, however alike their differences are.

    Args:
        weights: Weight of each sample in the mean m = sum(w d) / sum(w), with the variance
            n / (n - 1) sum(w^2 (d - m)^2) / sum(w)^2; None is 1 each. Samples of weight 0 do not count in n.
    """
    weights = [1.0] * len(differences) if weights is None else weights
    pairs = [(weight, one) for one, weight in zip(differences, weights, strict=True) if weight]
    count, total = len(pairs), math.fsum(weights)
    mean = math.fsum(weight * one for weight, one in pairs) / total if total else 0.0
    if count < 2 or not math.isfinite(mean):
        return 1.0
    return max(0.5**count, _chance_below(mean, pairs, total))


def _chance_below(mean: float, pairs: Sequence[tuple[float, float]], total: float) -> float:
    """Return the one-sided p-value of the t-test; `pairs` have weight and difference of each sample."""
    from scipy.special import stdtr  # takes a moment, which other commands need not wait for

    count = len(pairs)
    squares = math.fsum((weight * (one - mean)) ** 2 for weight, one in pairs)
    error = math.sqrt(squares * count / (count - 1)) / total
    if error == 0:
        return 0.0 if mean < 0 else 1.0
    return float(stdtr(count - 1, mean / error))
