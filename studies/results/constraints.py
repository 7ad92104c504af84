"""Constraints: bounds on metrics, their violations, and which violations no later epoch can end.

A milestone is feasible if its own metrics keep all bounds; cumulative metrics count up to that epoch. Front, archive
and hypervolume hold feasible milestones only. A trial that violates a constraint has not failed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from studies.records.records import CUMULATIVE_METRICS, STATIC_METRICS, Constraint, Objective

Side = Literal["min", "max"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """One side of a constraint."""

    metric: str
    side: Side
    bound: float

    @property
    def name(self) -> str:
        """Return the name of the bound in the Optuna view, such as `latency_ms max`."""
        return f"{self.metric} {self.side}"

    @property
    def in_words(self) -> str:
        """Return the bound in words, such as `latency_ms at most 5`."""
        return f"{self.metric} {'at least' if self.side == 'min' else 'at most'} {_shown(self.bound)}"

    @property
    def is_final(self) -> bool:
        """Return whether a violation at one epoch lasts at all later epochs.

        Dollars, seconds and peak memory never fall, so their upper bounds are final. Size and latency are constant.
        """
        if self.metric in CUMULATIVE_METRICS or self.metric == "peak_memory_bytes":
            return self.side == "max"
        return self.metric in STATIC_METRICS

    def excess(self, value: float) -> float:
        """Return the distance of a value beyond the bound, in the metric's unit; 0 or less if it keeps the bound."""
        if math.isnan(value):
            return math.inf
        return value - self.bound if self.side == "max" else self.bound - value

    def relative_excess(self, value: float) -> float:
        """Return the excess in units of the bound, so that excesses over several bounds can be added."""
        return self.excess(value) / (abs(self.bound) or 1.0)

    def violated_by(self, value: float) -> str:
        """Return the violation as a clause, such as `latency_ms was 6.2, above the constraint's max 5`."""
        where, (was, bound) = "above" if self.side == "max" else "below", self.told_apart(value)
        return f"{self.metric} was {was}, {where} the constraint's {self.side} {bound}"

    def told_apart(self, value: float) -> tuple[str, str]:
        """Return a value and the bound with six digits, or with as many digits as make them look different."""
        pairs = [(_shown(value, digits), _shown(self.bound, digits)) for digits in range(6, 18)]
        return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])


def _shown(value: float, digits: int = 6) -> str:
    """Return a number as text, whole numbers in full: numbers that differ by one must look different."""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.{digits}g}"


def bounds_of(constraints: Iterable[Constraint]) -> tuple[Bound, ...]:
    """Return all bounds of all constraints, in the spec's order."""
    sides = ((one.metric, side, getattr(one, side)) for one in constraints for side in _SIDES)
    return tuple(Bound(metric=metric, side=side, bound=float(b)) for metric, side, b in sides if b is not None)


_SIDES: tuple[Side, ...] = ("min", "max")


def constraints_in(spec: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """Return the constraints of a stored spec."""
    return tuple(Constraint(**one) for one in spec.get("constraints") or ())


def value_of(bound: Bound, metrics: Mapping[str, float | None]) -> float:
    """Return the bounded metric's value; NaN, which violates every bound, if it was not measured."""
    value = metrics.get(bound.metric)
    return math.nan if value is None else float(value)


def excesses(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> dict[str, float]:
    """Return the excess over each bound by its name, in the metric's unit; 0 or less where the bound is kept."""
    return {bound.name: bound.excess(value_of(bound, metrics)) for bound in bounds_of(constraints)}


def violated(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> tuple[Bound, ...]:
    """Return the bounds that an epoch's metrics violate."""
    return tuple(bound for bound in bounds_of(constraints) if bound.excess(value_of(bound, metrics)) > 0)


def is_feasible(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> bool:
    """Return whether an epoch's metrics keep all constraints."""
    return not violated(metrics, constraints)


def total_violation(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> float:
    """Return the violations' sum in units of their bounds (Deb et al. 2002, section VI, doi 10.1109/4235.996017)."""
    return sum(max(b.relative_excess(value_of(b, metrics)), 0.0) for b in bounds_of(constraints))


def never_feasible(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> Bound | None:
    """Return a bound that a trial with these metrics violates now and at every later epoch, if there is one."""
    return next((bound for bound in violated(metrics, constraints) if bound.is_final), None)


def in_words(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> str:
    """Return all violations as one clause; empty without any."""
    return " and ".join(bound.violated_by(value_of(bound, metrics)) for bound in violated(metrics, constraints))


def wanted_in_words(constraints: Iterable[Constraint]) -> str:
    """Return all bounds in words, such as `latency_ms at most 5, accuracy at least 0.9`."""
    return ", ".join(bound.in_words for bound in bounds_of(constraints))


def broken_in_words(metrics: Mapping[str, float | None], constraints: Iterable[Constraint]) -> str:
    """Return the violated bounds as `wanted_in_words` shows them; empty without any."""
    return ", ".join(bound.in_words for bound in violated(metrics, constraints))


def columns(objectives: Sequence[Objective], constraints: Sequence[Constraint]) -> tuple[Objective, ...]:
    """Return the metrics that a search models: objectives, then other bounded metrics.

    A learned metric with a lower bound alone is maximised, so that its worst values violate the bound.
    """
    known = {objective.metric for objective in objectives}
    beside = (one for one in constraints if one.metric not in known)
    return (*objectives, *(Objective(metric=c.metric, direction=_direction(c)) for c in beside))


def _direction(constraint: Constraint) -> Literal["minimize", "maximize"]:
    is_learned = constraint.metric not in STATIC_METRICS | CUMULATIVE_METRICS
    return "maximize" if is_learned and constraint.max is None else "minimize"
