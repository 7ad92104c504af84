"""The model of the archive to take: its knee, and what its neighbours offer instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studies import analysis
from studies.analysis import ArchivePoint
from studies.confirmations import confirmation_of
from studies.expected_values import expected_values
from studies.pareto import archive, knee_of, least_ranges
from studies.records import NANO, Objective, StudyRecord
from trainers.protocol import ParameterValue


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """A model to take.

    Attributes:
        point: The knee of the archive: the smallest sum of the objectives, each scaled to its range in the archive, and
            dollars to `least_ranges` if that is more. Objectives that `automl confirm` has measured count as confirmed
            (`expected_values`).
        params: Parameters of its trial.
        confirmed: What `automl confirm` found out about it, as `confirmation_of` returns it; None if nothing.
        better: The next better model in the first objective, which is worse in another one; None if there is none.
        worse: The next worse model in the first objective, which is better in another one; None if there is none.
        instead_of: The knee by the values of the search alone, where that is another one; else None.
    """

    point: ArchivePoint
    params: Mapping[str, ParameterValue]
    confirmed: Mapping[str, Any] | None
    better: ArchivePoint | None
    worse: ArchivePoint | None
    instead_of: ArchivePoint | None = None

    def __str__(self) -> str:
        return name_of(self.point)

    def plain(self) -> dict[str, Any]:
        """Return plain values: `trial`, `epoch`, `values`, `params`, `confirmed`, `better` and `worse` (`12@9`).

        Where confirmed values have changed the choice, `instead_of` has the point that the search alone would name.
        """
        return {
            "trial": self.point.trial,
            "epoch": self.point.epoch,
            "values": dict(self.point.values),
            "params": dict(self.params),
            "confirmed": self.confirmed,
            "better": None if self.better is None else name_of(self.better),
            "worse": None if self.worse is None else name_of(self.worse),
            **({} if self.instead_of is None else {"instead_of": name_of(self.instead_of)}),
        }


def recommended(study: StudyRecord) -> Recommendation | None:
    """Return the model to take; None if the archive has no model that was kept.

    All points of the archive keep the constraints.
    """
    points = takeable(study)
    if not points:
        return None
    values = expected_values(study, points)
    ranges = _ranges(study)
    knee, by_search = knee_of(values, ranges), knee_of(_searched(study, points), ranges)
    chosen, value = points[knee], values[knee][0]
    ranked = sorted(archive(values), key=values.__getitem__)
    better = [place for place in ranked if values[place][0] < value]
    worse = [place for place in ranked if values[place][0] > value]
    return Recommendation(
        point=chosen,
        params=dict(study.started[chosen.trial].params),
        confirmed=confirmation_of(study, chosen.trial, chosen.epoch),
        better=points[better[-1]] if better else None,
        worse=points[worse[0]] if worse else None,
        instead_of=None if by_search == knee else points[by_search],
    )


def ranked_points(study: StudyRecord, points: Sequence[ArchivePoint]) -> list[ArchivePoint]:
    """Return points of the archive, the best of the first objective first, by what is expected of them."""
    values = expected_values(study, points)
    return [points[place] for place in sorted(range(len(points)), key=values.__getitem__)]


def best_points(study: StudyRecord, points: Sequence[ArchivePoint]) -> list[tuple[Objective, ArchivePoint]]:
    """Return each objective with the point that is the best in it, by what is expected of them; none without points."""
    values = expected_values(study, points) if points else []
    places = range(len(points))
    return [
        (objective, points[min(places, key=lambda place: values[place][column])])
        for column, objective in enumerate(study.objectives if points else ())
    ]


def takeable(study: StudyRecord) -> list[ArchivePoint]:
    """Return the points of the archive whose model was kept; of a simulated study, which keeps none, all."""
    return [point for point in analysis.archive(study) if point.checkpoint or study.is_simulated]


def knee(study: StudyRecord, points: Sequence[ArchivePoint]) -> ArchivePoint:
    """Return the best trade-off of at least one point, by what is expected of each."""
    ranges = _ranges(study)
    return points[knee_of(expected_values(study, points), ranges)]


def name_of(point: ArchivePoint) -> str:
    """Return the name by which commands know a point, such as `12@9`: trial 12 after epoch 9."""
    return f"{point.trial}@{point.epoch}"


def _ranges(study: StudyRecord) -> list[float]:
    return least_ranges([one.metric for one in study.objectives], study.cost_nano_usd / NANO)


def _searched(study: StudyRecord, points: Sequence[ArchivePoint]) -> list[list[float]]:
    return [[one.signed(point.values[one.metric]) for one in study.objectives] for point in points]
