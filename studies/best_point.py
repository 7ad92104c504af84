"""The best model of a study by one objective, among those that keep bounds on the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.errors import UserError
from search_spaces.wording import found, listed, nearest, shown
from studies import analysis
from studies.analysis import ArchivePoint
from studies.confirmations import confirmation_of
from studies.expected_values import expected_values
from studies.records import Objective, StudyRecord, TrialState
from trainers.protocol import ParameterValue

AT_MOST, AT_LEAST = "under", "over"
_SIDES = {AT_MOST: "at most", AT_LEAST: "at least"}


class BestPointError(UserError, ValueError):
    """No point was asked for that the archive can have, or it has none that keeps the bounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BestPoint:
    """A point of the archive, with all that is known of it.

    Attributes:
        trial: Number of the trial.
        epoch: Number of the epoch in the trial, from 1.
        state: State of the trial.
        values: Objectives at this epoch by name.
        metrics: All metrics at this epoch by name.
        params: Parameters of the trial by name, inactive ones left out.
        checkpoint: Absolute path or URL of the kept model, None if it was not kept.
        confirmed: What `automl confirm` found out about it, as `confirmation_of` returns it; None if nothing.
    """

    trial: int
    epoch: int
    state: TrialState
    values: Mapping[str, float]
    metrics: Mapping[str, float]
    params: Mapping[str, ParameterValue]
    checkpoint: str | None
    confirmed: Mapping[str, Any] | None = None


def best_point(
    study: StudyRecord,
    metric: str,
    *,
    under: Mapping[str, float] | None = None,
    over: Mapping[str, float] | None = None,
) -> BestPoint:
    """Return the archive's best point by one objective, in the objective's direction.

    The archive holds points that keep the constraints of the spec. A bound limits how bad an objective may be; one
    that limits how good it may be would ask for points that the archive leaves out. Of points that are equal in
    `metric` the one that is better in the next objective is taken. Bounds hold for the values of the search; points are
    compared by what is expected of them where some were confirmed.

    Args:
        study: Study as committed.
        metric: Objective to be best in.
        under: Largest allowed values of objectives that are minimized, by name.
        over: Least allowed values of objectives that are maximized, by name.

    Raises:
        BestPointError: `metric` or a bound names no objective, a bound is on the wrong side or no number, or no point
            keeps the bounds; the message names what is allowed, or the nearest value.
    """
    objectives = {objective.metric: objective for objective in study.objectives}
    first = _objective(objectives, metric, "metric")
    bounds = _bounds(objectives, under or {}, AT_MOST) | _bounds(objectives, over or {}, AT_LEAST)
    archive = left = analysis.archive(study)
    if not left:
        raise BestPointError(f"best: the archive of {study.name} has no point yet")
    for place, (name, bound) in enumerate(bounds.items()):
        objective = objectives[name]
        keeping = [point for point in left if objective.signed(point.values[name]) <= objective.signed(bound)]
        if not keeping:
            raise BestPointError(_nothing_left(objective, bound, left, kept=list(bounds)[:place]))
        left = keeping
    columns = [study.objectives.index(one) for one in (first, *(one for one in study.objectives if one != first))]
    kept = [
        (values, point) for values, point in zip(expected_values(study, archive), archive, strict=True) if point in left
    ]
    _, best = min(kept, key=lambda one: [one[0][column] for column in columns])
    return _with_details(study, best)


def _objective(objectives: Mapping[str, Objective], name: object, place: str) -> Objective:
    if name not in objectives:
        raise BestPointError(
            f"best: {place}: {found(name, f'the objectives {listed(objectives)}', nearest(name, objectives))}"
        )
    return objectives[str(name)]


def _bounds(objectives: Mapping[str, Objective], given: Mapping[str, float], side: str) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise BestPointError(f"best: {side}: {found(given, 'a mapping of objectives to numbers')}")
    for name, bound in given.items():
        objective = _objective(objectives, name, side)
        right = AT_MOST if objective.direction == "minimize" else AT_LEAST
        if side != right:
            problem = f"found {shown(name)}, which is {objective.direction}d, allowed: {right}={{{shown(name)}: ...}}"
            raise BestPointError(f"best: {side}: {problem}")
        if isinstance(bound, bool) or not isinstance(bound, int | float) or bound != bound:  # noqa: PLR0124 - NaN
            raise BestPointError(f"best: {side}.{name}: {found(bound, 'a number')}")
    return dict(given)


def _nothing_left(objective: Objective, bound: float, left: list[ArchivePoint], kept: list[str]) -> str:
    """What to tell somebody whose bounds no point keeps: how near the nearest one comes."""
    name = objective.metric
    near = min(left, key=lambda point: objective.signed(point.values[name]))
    side = _SIDES[AT_MOST if objective.direction == "minimize" else AT_LEAST]
    among = f" and the bounds on {listed(kept)}" if kept else ""
    return (
        f"best: no point of the archive keeps {name} {side} {bound:g}{among}; "
        f"nearest is {near.trial}@{near.epoch} with {near.values[name]:.6g}"
    )


def _with_details(study: StudyRecord, point: ArchivePoint) -> BestPoint:
    trial = next(one for one in study.started if one.number == point.trial)
    return BestPoint(
        trial=point.trial,
        epoch=point.epoch,
        state=point.state,
        values=dict(point.values),
        metrics=dict(trial.epochs[point.epoch - 1].metrics),
        params=dict(trial.params),
        checkpoint=point.checkpoint,
        confirmed=confirmation_of(study, point.trial, point.epoch),
    )
