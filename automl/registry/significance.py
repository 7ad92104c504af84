"""Whether one model is better than another one beyond chance: on the same samples, and on samples of its own each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SURE = 0.05
"""A difference counts if, were there none, so great a one came by chance less often than this."""
FEWEST = 30
"""Number of known outcomes of each version from which on the normal approximation is used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossDifference:
    """The difference between the mean losses of a challenger and a champion.

    Attributes:
        difference: Mean loss of the challenger less that of the champion; below 0 the challenger is better.
        low: Lower end of the 95 % confidence interval of the difference.
        high: Upper end of that interval.
        chance: Two-sided p-value of a difference of 0.
        verdict: "better", "worse" or "undecided", of the challenger.
    """

    difference: float
    low: float
    high: float
    chance: float
    verdict: str

    def plain(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def compare_losses(challenger: Sequence[float], champion: Sequence[float]) -> LossDifference | None:
    """Compare mean losses by Welch's test, with the normal distribution for large samples.

    Args:
        challenger: Loss of each row that the challenger has answered.
        champion: Loss of each row that the champion has answered.

    Returns:
        None where either has fewer than `FEWEST` rows.
    """
    if min(len(challenger), len(champion)) < FEWEST:
        return None
    difference = statistics.fmean(challenger) - statistics.fmean(champion)
    squared = sum(statistics.variance(one) / len(one) for one in (challenger, champion))
    error, normal = math.sqrt(squared), statistics.NormalDist()
    margin = normal.inv_cdf(0.975) * error
    chance = 2 * normal.cdf(-abs(difference) / error) if error else float(difference == 0)
    is_sure = chance < SURE  # NaN is never
    verdict = ("better" if difference < 0 else "worse") if is_sure else "undecided"
    return LossDifference(
        difference=difference, low=difference - margin, high=difference + margin, chance=chance, verdict=verdict
    )


def chance_of(differences: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Return the one-sided p-value of a mean difference below 0, by the paired t-test.

    It is never less than 2^-n: if no model were better, all n differences would favour the new one so often. Fewer than
    five samples therefore show nothing, however alike their differences are.

    Args:
        differences: Difference of each sample.
        weights: How much each sample counts in the mean m = sum(w d) / sum(w), whose variance is taken as
            n / (n - 1) sum(w^2 (d - m)^2) / sum(w)^2; None counts each once. Those with weight 0 are left out of n.
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
