"""Recommends a model of a study, and finds the best model for an objective within bounds on others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any

from search_spaces.messages import UserError, found, listed, nearest, shown
from studies.records.records import NANO, Objective, StudyRecord, TrialState
from studies.results import analysis
from studies.results.analysis import ArchivePoint, judged_objective
from studies.results.baselines import Baseline, baselines
from studies.results.confirmations import confirmation_of, test_of
from studies.results.pareto import archive, knee_of, least_ranges
from trainers.protocol import CUMULATIVE_METRICS, STDERR, ParameterValue

AT_MOST, AT_LEAST = "under", "over"
_SIDES = {AT_MOST: "at most", AT_LEAST: "at least"}


class BestPointError(UserError, ValueError):
    """An unknown objective or an invalid bound, or no model keeps the bounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BestPoint:
    """A model of the archive, with its trial's details."""

    trial: int
    epoch: int  # from 1
    state: TrialState
    values: Mapping[str, float]  # objectives at this epoch
    metrics: Mapping[str, float]  # all metrics at this epoch
    params: Mapping[str, ParameterValue]
    checkpoint: str | None  # absolute path or URL of the kept model; None if it was not kept
    confirmed: Mapping[str, Any] | None = None  # from `confirmation_of`; None if nothing confirmed it


def best_point(
    study: StudyRecord,
    metric: str | None = None,
    *,
    under: Mapping[str, float] | None = None,
    over: Mapping[str, float] | None = None,
) -> BestPoint:
    """Return the best model of the archive for the objective `metric`, within bounds; by default the recommended model.

    A bound limits how bad an objective may be; the opposite limit is refused, since the archive leaves such models out.
    Models with equal values of `metric` are compared by the next objective. Bounds apply to values of the search;
    models are compared by expected values. BestPointError names the allowed values or the nearest model.
    """
    objectives = {objective.metric: objective for objective in study.objectives}
    if metric is None and not under and not over and (found_one := recommended(study)) is not None:
        return _with_details(study, found_one.point)
    first = judged_objective(study.objectives) if metric is None else _objective(objectives, metric, "metric")
    bounds = _bounds(objectives, under or {}, AT_MOST) | _bounds(objectives, over or {}, AT_LEAST)
    archive = left = analysis.archive(study)
    if not left:
        wait = "Give the study a larger budget" if study.state == "closed" else "Wait for more trials"
        raise BestPointError(f"best: {study.name} has no saved model yet that keeps all constraints. {wait}")
    for place, (name, bound) in enumerate(bounds.items()):
        objective = objectives[name]
        keeping = [point for point in left if objective.signed(point.values[name]) <= objective.signed(bound)]
        if not keeping:
            raise BestPointError(_nothing_left(objective, bound, left, kept=list(bounds)[:place]))
        left = keeping
    columns = [study.objectives.index(one) for one in (first, *(one for one in study.objectives if one != first))]
    kept = [(values, one) for values, one in zip(expected_values(study, archive), archive, strict=True) if one in left]
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
    name = objective.metric
    near = min(left, key=lambda point: objective.signed(point.values[name]))
    side = _SIDES[AT_MOST if objective.direction == "minimize" else AT_LEAST]
    among = f" and the bounds on {listed(kept)}" if kept else ""
    return (
        f"best: no model keeps {name} {side} {bound:g}{among}; "
        f"the nearest is {near.trial}@{near.epoch} with {near.values[name]:.6g}"
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """The recommended model: the best in the judged objective, up to noise.

    Of models within one standard error of the best value, finished trials come before pruned trials; then objectives
    other than training costs decide, such as latency. Training costs only break ties.
    """

    point: ArchivePoint
    params: Mapping[str, ParameterValue]
    confirmed: Mapping[str, Any] | None  # from `confirmation_of`; None if nothing confirmed it
    tested: Mapping[str, float] | None  # from `test_of`; None if the study has no test part, or has not ended
    judged: Objective  # from `judged_objective`
    stderr: float | None  # standard error of the judged objective; None if unknown
    unbeaten: Baseline | None  # the best baseline, if the model is not better by more than the noise
    lowest: ArchivePoint | None  # the best value of the judged objective, if another model was chosen within its noise
    better: ArchivePoint | None  # next better model in the judged objective, worse in another
    worse: ArchivePoint | None  # next worse model in the judged objective, better in another
    trade_offs: Sequence[ArchivePoint] = ()  # models that are better in another objective, the nearest first
    instead_of: ArchivePoint | None = None  # the choice by the values of the search alone, if it differs

    def __str__(self) -> str:
        return name_of(self.point)

    def plain(self) -> dict[str, Any]:
        """Return JSON data; `better` and `worse` are neighbours on the front, like `12@9`.

        `stderr` is the judged objective's standard error. `unbeaten_baseline` is not beaten by any model beyond noise.
        `instead_of` is the choice of the search, if confirmed values changed it.
        """
        return {
            "trial": self.point.trial,
            "epoch": self.point.epoch,
            "values": dict(self.point.values),
            "stderr": self.stderr,
            "params": dict(self.params),
            "confirmed": self.confirmed,
            "better": None if self.better is None else name_of(self.better),
            "worse": None if self.worse is None else name_of(self.worse),
            "unbeaten_baseline": None if self.unbeaten is None else self.unbeaten.name,
            **({} if self.tested is None else {"test": dict(self.tested)}),
            **({} if self.instead_of is None else {"instead_of": name_of(self.instead_of)}),
        }


def recommended(study: StudyRecord) -> Recommendation | None:
    """Return the recommended model; None if no model was saved."""
    return _recommended(study, takeable(study))


def best_to_train_again(study: StudyRecord) -> ArchivePoint | None:
    """Return the best model, saved or not; None without models."""
    found = _recommended(study, analysis.archive(study))
    return None if found is None else found.point


def _recommended(study: StudyRecord, points: Sequence[ArchivePoint]) -> Recommendation | None:
    if not points:
        return None
    judged = judged_objective(study.objectives)
    column = study.objectives.index(judged)
    values = expected_values(study, points)
    place = _choice(study, points, values, column)
    unconfirmed = replace(study, confirmations=())
    by_search = _choice(unconfirmed, points, expected_values(unconfirmed, points), column)
    chosen, value = points[place], values[place][column]
    stderr = standard_error(study, judged.metric, chosen.trial, chosen.epoch)
    ranked = sorted(archive(values), key=lambda one: (values[one][column], values[one]))
    better = [one for one in ranked if values[one][column] < value]
    worse = [one for one in ranked if values[one][column] > value]
    return Recommendation(
        point=chosen,
        params=dict(study.started[chosen.trial].params),
        confirmed=confirmation_of(study, chosen.trial, chosen.epoch),
        tested=test_of(study, chosen.trial, chosen.epoch),
        judged=judged,
        stderr=stderr,
        unbeaten=_unbeaten(study, judged, value, stderr),
        lowest=points[ranked[0]] if better else None,
        better=points[better[-1]] if better else None,
        worse=points[worse[0]] if worse else None,
        trade_offs=[points[one] for one in _trade_offs(study, values, ranked, worse)],
        instead_of=None if by_search == place else points[by_search],
    )


def _choice(study: StudyRecord, points: Sequence[ArchivePoint], values: Sequence[Sequence[float]], column: int) -> int:
    """Return the index of the recommended point; `column` is the judged objective's index."""
    places = range(len(points))
    best = min(places, key=lambda place: (values[place][column], values[place]))
    name = study.objectives[column].metric
    noise = standard_error(study, name, points[best].trial, points[best].epoch) or 0.0
    others = [(place, one.metric) for place, one in enumerate(study.objectives) if place != column]
    of_use = [place for place, metric in others if metric not in CUMULATIVE_METRICS]
    sunk = [place for place, metric in others if metric in CUMULATIVE_METRICS]
    return min(
        (place for place in places if values[place][column] <= values[best][column] + noise),
        key=lambda place: (
            points[place].state != "complete", *(values[place][other] for other in (*of_use, column, *sunk)), place,
        ),
    )  # fmt: skip


def _trade_offs(
    study: StudyRecord, values: Sequence[Sequence[float]], ranked: Sequence[int], worse: Sequence[int]
) -> list[int]:
    """Return the next worse point, the knee and the cheapest point; only the knee if other objectives are costs."""
    knee = ranked[knee_of([values[place] for place in ranked], _ranges(study))]
    if sum(one.metric not in CUMULATIVE_METRICS for one in study.objectives) < 2:
        return [knee] if knee in worse else []
    return [place for place in dict.fromkeys((*worse[:1], knee, *worse[-1:])) if place in worse]


def _unbeaten(study: StudyRecord, judged: Objective, value: float, stderr: float | None) -> Baseline | None:
    """Return the best feasible baseline if `value` (signed) is not better by more than the noise, else None."""
    # Both are measured on the same samples. If their errors correlate by 0.5, the difference has the same error.
    known = [one for one in baselines(study) if judged.metric in one.values and not one.broken]
    if not known:
        return None
    best = min(known, key=lambda one: judged.signed(one.values[judged.metric]))
    own = None
    if best.trial is not None and best.epoch is not None:
        own = standard_error(study, judged.metric, best.trial, best.epoch)
    gain = judged.signed(best.values[judged.metric]) - value
    return None if gain > max(stderr or 0.0, own or 0.0) else best


def ranked_points(study: StudyRecord, points: Sequence[ArchivePoint]) -> list[ArchivePoint]:
    """Return models, best expected value of the first objective first."""
    values = expected_values(study, points)
    return [points[place] for place in sorted(range(len(points)), key=values.__getitem__)]


def best_points(study: StudyRecord, points: Sequence[ArchivePoint]) -> list[tuple[Objective, ArchivePoint]]:
    """Return the model with the best expected value of each objective; empty without models."""
    values = expected_values(study, points) if points else []
    places = range(len(points))
    return [
        (objective, points[min(places, key=lambda place: values[place][column])])
        for column, objective in enumerate(study.objectives if points else ())
    ]


def takeable(study: StudyRecord) -> list[ArchivePoint]:
    """Return the archive's saved models; all of them for a study that was not trained here."""
    return [point for point in analysis.archive(study) if point.checkpoint or study.not_trained_here]


def knee(study: StudyRecord, points: Sequence[ArchivePoint]) -> ArchivePoint:
    """Return the best trade-off by expected values."""
    return points[knee_of(expected_values(study, points), _ranges(study))]


def name_of(point: ArchivePoint) -> str:
    """Return a model's name for commands: `12@9` is trial 12 after epoch 9."""
    return f"{point.trial}@{point.epoch}"


def _ranges(study: StudyRecord) -> list[float]:
    return least_ranges([one.metric for one in study.objectives], study.cost_nano_usd / NANO)


def standard_error(study: StudyRecord, metric: str, trial: int, epoch: int) -> float | None:
    """Return the standard error of a metric of a trial after an epoch (from 1); None if unknown.

    After confirming two or more seeds, the standard error of their mean; else the metric with suffix `_stderr`.
    """
    confirmed = confirmation_of(study, trial, epoch)
    spread = None if confirmed is None else confirmed["metrics"].get(metric)
    if spread is not None and spread["deviation"] is not None:
        return float(spread["deviation"] / math.sqrt(len(spread["values"])))
    value = study.started[trial].epochs[epoch - 1].metrics.get(f"{metric}{STDERR}", math.nan)
    return value if math.isfinite(value) else None


def expected_values(study: StudyRecord, points: Sequence[ArchivePoint]) -> list[list[float]]:
    """Return the expected objectives of models, signed so that smaller is better, in the spec's order.

    The best of many noisy values looks better than it is. Confirmations show by how much:

        lost        = confirmed mean - value in the search, of each confirmed point
        reliability = max(0, 1 - (variance of a confirmed mean) / (variance of lost))
        expected    = value in the search + mean lost + reliability x (lost - mean lost)

    This is the empirical Bayes estimate of each model's luck. If the noise of seeds explains the losses, the order of
    models stays; otherwise confirmed means decide. Unconfirmed models get the mean luck.
    """
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
    """Return the share of variance that seeds do not explain; 0.5 with one seed for each model."""
    differences = variance(lost) if len(lost) > 1 else 0.0
    if differences <= 0:
        return 0.0
    noises = [one["deviation"] ** 2 / len(one["values"]) for one in spreads if one["deviation"] is not None]
    return max(0.0, 1.0 - fmean(noises) / differences) if noises else 0.5
