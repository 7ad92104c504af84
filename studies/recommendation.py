"""The model of the archive to take: its knee, and what its neighbours offer instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studies import analysis
from studies.analysis import ArchivePoint
from studies.confirmations import confirmation_of
from studies.pareto import epsilon_net_order
from studies.records import Objective, StudyRecord
from trainers.protocol import ParameterValue


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """A model to take.

    Attributes:
        point: The knee of the archive: the smallest sum of the objectives, each scaled to its range in the archive.
        params: Parameters of its trial.
        confirmed: What `automl confirm` found out about its trial, as `confirmation_of` returns it; None if nothing.
        better: The next better model in the first objective, which is worse in another one; None if there is none.
        worse: The next worse model in the first objective, which is better in another one; None if there is none.
    """

    point: ArchivePoint
    params: Mapping[str, ParameterValue]
    confirmed: Mapping[str, Any] | None
    better: ArchivePoint | None
    worse: ArchivePoint | None

    def __str__(self) -> str:
        return name_of(self.point)

    def plain(self) -> dict[str, Any]:
        """Return plain values: `trial`, `epoch`, `values`, `params`, `confirmed`, `better` and `worse` (`12@9`)."""
        return {
            "trial": self.point.trial,
            "epoch": self.point.epoch,
            "values": dict(self.point.values),
            "params": dict(self.params),
            "confirmed": self.confirmed,
            "better": None if self.better is None else name_of(self.better),
            "worse": None if self.worse is None else name_of(self.worse),
        }


def recommended(study: StudyRecord) -> Recommendation | None:
    """Return the model to take; None if the archive has no model that was kept.

    All points of the archive keep the constraints.
    """
    points = takeable(study)
    if not points:
        return None
    chosen, first = knee(points, study.objectives), study.objectives[0]
    ranked = sorted(points, key=lambda one: _signed(one, study.objectives))
    place = ranked.index(chosen)
    value = first.signed(chosen.values[first.metric])
    better = [one for one in ranked[:place] if first.signed(one.values[first.metric]) < value]
    worse = [one for one in ranked[place + 1 :] if first.signed(one.values[first.metric]) > value]
    return Recommendation(
        point=chosen,
        params=dict(study.started[chosen.trial].params),
        confirmed=confirmation_of(study, chosen.trial),
        better=better[-1] if better else None,
        worse=worse[0] if worse else None,
    )


def takeable(study: StudyRecord) -> list[ArchivePoint]:
    """Return the points of the archive whose model was kept; of a simulated study, which keeps none, all."""
    return [point for point in analysis.archive(study) if point.checkpoint or study.is_simulated]


def knee(points: Sequence[ArchivePoint], objectives: Sequence[Objective]) -> ArchivePoint:
    """Return the best trade-off of at least one point."""
    return points[epsilon_net_order([_signed(one, objectives) for one in points])[0]]


def name_of(point: ArchivePoint) -> str:
    """Return the name by which commands know a point, such as `12@9`: trial 12 after epoch 9."""
    return f"{point.trial}@{point.epoch}"


def _signed(point: ArchivePoint, objectives: Sequence[Objective]) -> list[float]:
    return [one.signed(point.values[one.metric]) for one in objectives]
