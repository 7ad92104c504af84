"""Expected values of the archive's points after confirmations: the best of many noisy values looks too good.

    lost        = confirmed mean - value in the search, of each confirmed point
    reliability = max(0, 1 - (variance of a confirmed mean) / (variance of lost))
    expected    = value in the search + mean lost + reliability x (lost - mean lost)

This is the empirical Bayes estimate of each point's luck. If the noise of seeds explains the losses, the order of the
points stays; otherwise the confirmed means decide. A point without confirmation gets the mean luck of the other points.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Any

from studies.records.records import Objective, StudyRecord
from studies.results.analysis import ArchivePoint
from studies.results.confirmations import confirmation_of


def expected_values(study: StudyRecord, points: Sequence[ArchivePoint]) -> list[list[float]]:
    """Return the expected signed objectives (smaller is better) of points, in the spec's order."""
    found = [confirmation_of(study, point.trial, point.epoch) for point in points]
    confirmed = [{} if one is None else one["metrics"] for one in found]
    columns = [_column(objective, points, confirmed) for objective in study.objectives]
    return [list(row) for row in zip(*columns, strict=True)]


def _column(
    objective: Objective, points: Sequence[ArchivePoint], confirmed: Sequence[Mapping[str, Any]]
) -> list[float]:
    name = objective.metric
    searched = [objective.signed(point.values[name]) for point in points]
    spreads = [metrics.get(name) for metrics in confirmed]
    lost = [
        None if spread is None else objective.signed(spread["mean"]) - value
        for value, spread in zip(searched, spreads, strict=True)
    ]
    known = [one for one in lost if one is not None]
    if not known:
        return searched
    mean, reliability = fmean(known), _reliability(known, [spread for spread in spreads if spread is not None])
    return [
        value + mean + (0.0 if one is None else reliability * (one - mean))
        for value, one in zip(searched, lost, strict=True)
    ]


def _reliability(lost: Sequence[float], spreads: Sequence[Mapping[str, Any]]) -> float:
    """Return the share of the variance of `lost` that seeds' noise does not explain; half if each has one seed."""
    differences = variance(lost) if len(lost) > 1 else 0.0
    if differences <= 0:
        return 0.0
    noises = [one["deviation"] ** 2 / len(one["values"]) for one in spreads if one["deviation"] is not None]
    return max(0.0, 1.0 - fmean(noises) / differences) if noises else 0.5
