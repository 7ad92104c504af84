"""What points of the archive are worth after what `automl confirm` has found out: the best of many looks too good.

    expected(point) = mean of its confirmed values, or
                      its value in the search + mean over the confirmed points of (confirmed mean - value in the search)

The second line moves what was not confirmed by as much as the winners beside it lost on average, so that the two can be
compared. Without any confirmation both are the values of the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from studies.analysis import ArchivePoint
from studies.confirmations import confirmation_of
from studies.records import StudyRecord


def expected_values(study: StudyRecord, points: Sequence[ArchivePoint]) -> list[list[float]]:
    """Return the signed objectives (smaller is better) that are expected of points, in the spec's order.

    Args:
        study: Study as committed.
        points: Points of its archive.
    """
    confirmed = [_means(study, point) for point in points]
    columns = []
    for objective in study.objectives:
        name = objective.metric
        moved = [
            means[name] - point.values[name] for point, means in zip(points, confirmed, strict=True) if name in means
        ]
        shift = fmean(moved) if moved else 0.0
        columns.append(
            [
                objective.signed(means.get(name, point.values[name] + shift))
                for point, means in zip(points, confirmed, strict=True)
            ]
        )
    return [list(row) for row in zip(*columns, strict=True)]


def _means(study: StudyRecord, point: ArchivePoint) -> dict[str, float]:
    found = confirmation_of(study, point.trial, point.epoch)
    return {} if found is None else {name: one["mean"] for name, one in found["metrics"].items()}
