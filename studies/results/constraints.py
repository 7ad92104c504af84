"""Constraints: bounds on metrics, how far metrics exceed them, and whether later epochs can still keep them.

An epoch is feasible if its metrics keep all bounds; cumulative metrics count up to this epoch. Only feasible saved
epochs belong to the archive and count for the hypervolume. A trial that violates a constraint has not failed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from studies.records.records import STATIC_METRICS, Constraint, EpochRecord, Objective, StudyRecord, TrialRecord
from studies.results import pareto
from studies.results.pareto import point, reference_of
from trainers.protocol import CUMULATIVE_METRICS

Side = Literal["min", "max"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """The lower or the upper bound of a constraint."""

    metric: str
    side: Side
    bound: float

    @property
    def name(self) -> str:
        """Name of the bound in Optuna, such as `latency_ms max`."""
        return f"{self.metric} {self.side}"

    @property
    def in_words(self) -> str:
        """The bound in words, such as `latency_ms at most 5`."""
        return f"{self.metric} {'at least' if self.side == 'min' else 'at most'} {_shown(self.bound)}"

    @property
    def is_final(self) -> bool:
        """Return whether a trial that violates the bound violates it at all later epochs.

        Dollars, seconds and peak memory never fall; size and latency never change.
        """
        if self.metric in CUMULATIVE_METRICS or self.metric == "peak_memory_bytes":
            return self.side == "max"
        return self.metric in STATIC_METRICS

    def excess(self, value: float) -> float:
        """Return how far a value exceeds the bound; 0 or negative if it keeps the bound."""
        if math.isnan(value):
            return math.inf
        return value - self.bound if self.side == "max" else self.bound - value

    def relative_excess(self, value: float) -> float:
        """Return the excess as a fraction of the bound, so that excesses can be added."""
        return self.excess(value) / (abs(self.bound) or 1.0)

    def violated_by(self, value: float) -> str:
        """Return the violation in words, such as `latency_ms was 6.2, above the constraint's max 5`."""
        where, (was, bound) = "above" if self.side == "max" else "below", self.told_apart(value)
        return f"{self.metric} was {was}, {where} the constraint's {self.side} {bound}"

    def told_apart(self, value: float) -> tuple[str, str]:
        """Return a value and the bound as text, with enough digits to look different."""
        pairs = [(_shown(value, digits), _shown(self.bound, digits)) for digits in range(6, 18)]
        return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])


def _shown(value: float, digits: int = 6) -> str:
    """Return a number as text; never rounds whole numbers."""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.{digits}g}"


def bounds_of(constraints: Iterable[Constraint]) -> tuple[Bound, ...]:
    """Return the bounds of all constraints, in the spec's order."""
    sides = ((one.metric, side, getattr(one, side)) for one in constraints for side in _SIDES)
    return tuple(Bound(metric=metric, side=side, bound=float(b)) for metric, side, b in sides if b is not None)


_SIDES: tuple[Side, ...] = ("min", "max")


def constraints_in(spec: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """Return the constraints of a stored spec."""
    return tuple(Constraint(**one) for one in spec.get("constraints") or ())


def value_of(bound: Bound, metrics: Mapping[str, float | None]) -> float:
    """Return the bounded metric; NaN, which violates every bound, if it was not measured."""
    value = metrics.get(bound.metric)
    return math.nan if value is None else float(value)


def excesses(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> dict[str, float]:
    """Return the excess over each bound, by the bound's name."""
    return {bound.name: bound.excess(value_of(bound, metrics)) for bound in bounds_of(constraints)}


def violated(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> tuple[Bound, ...]:
    """Return the bounds that an epoch's `metrics` violate."""
    return tuple(bound for bound in bounds_of(constraints) if bound.excess(value_of(bound, metrics)) > 0)


def is_feasible(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> bool:
    """Return whether an epoch's `metrics` keep all constraints."""
    return not violated(metrics, constraints)


def total_violation(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> float:
    """Return the sum of positive relative excesses (Deb et al. 2002, doi 10.1109/4235.996017)."""
    return sum(max(b.relative_excess(value_of(b, metrics)), 0.0) for b in bounds_of(constraints))


def never_feasible(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> Bound | None:
    """Return a bound that a trial violates now and at all later epochs, or None."""
    return next((bound for bound in violated(metrics, constraints) if bound.is_final), None)


def in_words(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> str:
    """Return all violations in words; empty if all bounds are kept."""
    return " and ".join(bound.violated_by(value_of(bound, metrics)) for bound in violated(metrics, constraints))


def wanted_in_words(constraints: Iterable[Constraint]) -> str:
    """Return all bounds in words, such as `latency_ms at most 5, accuracy at least 0.9`."""
    return ", ".join(bound.in_words for bound in bounds_of(constraints))


def broken_in_words(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> str:
    """Return the violated bounds in words, such as `latency_ms at most 5`; empty if all bounds are kept."""
    return ", ".join(bound.in_words for bound in violated(metrics, constraints))


def columns(objectives: Sequence[Objective], constraints: Sequence[Constraint]) -> tuple[Objective, ...]:
    """Return the metrics that a search forecasts: objectives, then other metrics with constraints.

    A learned metric with only a lower bound is maximised, so that its worst values violate the bound.
    """
    known = {objective.metric for objective in objectives}
    beside = (one for one in constraints if one.metric not in known)
    return (*objectives, *(Objective(metric=c.metric, direction=_direction(c)) for c in beside))


def _direction(constraint: Constraint) -> Literal["minimize", "maximize"]:
    is_learned = constraint.metric not in STATIC_METRICS | CUMULATIVE_METRICS
    return "maximize" if is_learned and constraint.max is None else "minimize"


def milestones(study: StudyRecord) -> list[tuple[TrialRecord, EpochRecord, pareto.Point]]:
    """Return all feasible saved epochs, with finite objectives signed so that smaller is better."""
    return [
        (trial, epoch, values)
        for trial in study.started
        for epoch in trial.epochs
        if epoch.is_milestone
        and is_feasible(epoch.metrics, study.constraints)
        and (values := point(epoch, study.objectives)) is not None
    ]


def hypervolume(study: StudyRecord, reference: Mapping[str, float] | None = None) -> float | None:
    """Return the archive's hypervolume; None without a reference point."""
    reference = reference or reference_of(study)
    if reference is None:
        return None
    bound = [o.signed(reference[o.metric]) for o in study.objectives]
    return pareto.hypervolume([values for _, _, values in milestones(study)], bound)


def best_values(study: StudyRecord) -> dict[str, float]:
    """Return the best value of each objective among feasible saved epochs; empty without them."""
    points = [values for _, _, values in milestones(study)]
    columns = zip(study.objectives, zip(*points, strict=True), strict=True) if points else ()
    return {objective.metric: objective.signed(min(column)) for objective, column in columns}


def is_trial_feasible(study: StudyRecord, trial: TrialRecord) -> bool | None:
    """Return whether a trial's last epoch is feasible; None before the first epoch."""
    return is_feasible(trial.epochs[-1].metrics, study.constraints) if trial.epochs else None


def feasible_in_words(study: StudyRecord) -> str:
    """Return how many trials are feasible, such as `3 of 12 measured trials`.

    If trials were feasible earlier: `0 of 12 measured trials at their last epoch, 2 more at an earlier one`.
    """
    measured = [trial for trial in study.started if trial.epochs]
    kept = {trial.id for trial in measured if is_trial_feasible(study, trial)}
    earlier = {trial.id for trial, _, _ in milestones(study)} - kept
    trials = "measured trial" if len(measured) == 1 else "measured trials"
    more = f" at their last epoch, {len(earlier)} more at an earlier one" if earlier else ""
    return f"{len(kept)} of {len(measured)} {trials}{more}"


def violations(study: StudyRecord, trial: TrialRecord) -> str:
    """Return the violations of a trial's last epoch in words; empty without violations."""
    return in_words(trial.epochs[-1].metrics, study.constraints) if trial.epochs else ""


def bounded(study: StudyRecord, trial: TrialRecord) -> dict[str, float]:
    """Return the metrics with constraints at a trial's last epoch; empty before the first epoch."""
    last = trial.epochs[-1].metrics if trial.epochs else {}
    return {one.metric: last[one.metric] for one in study.constraints if one.metric in last}


def violators(study: StudyRecord) -> dict[Bound, list[TrialRecord]]:
    """Return for each bound the trials whose last epoch violates it, sorted by number."""
    found: dict[Bound, list[TrialRecord]] = {one: [] for one in bounds_of(study.constraints)}
    for trial in study.started:
        for bound in violated(trial.epochs[-1].metrics, study.constraints) if trial.epochs else ():
            found[bound].append(trial)
    return found


def nothing_feasible(study: StudyRecord) -> str:
    """Return a sentence about the trial nearest to the bounds; empty if a trial is feasible."""
    measured = [trial for trial in study.started if trial.epochs]
    if not study.constraints or not measured or milestones(study) or any(is_trial_feasible(study, t) for t in measured):
        return ""
    nearest = min(measured, key=lambda t: total_violation(t.epochs[-1].metrics, study.constraints))
    wanted, count = wanted_in_words(study.constraints), len(measured)
    none = "the only measured trial is not feasible" if count == 1 else f"none of {count} measured trials is feasible"
    return f"{none} ({wanted}); nearest is trial {nearest.number}: {violations(study, nearest)}"
