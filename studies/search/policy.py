"""Pure policy (history in, decision out): work for a free slot, and whether a trial at its rung continues."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from studies.records.records import Action, Constraint, Forecasts
from studies.results.constraints import never_feasible, value_of
from studies.search.model.curve_model import CurveModel
from studies.search.model.problem import Problem
from studies.search.observations import Snapshot, Values
from trainers.protocol import ParameterValue


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A decision about a trial, with a non-empty reason in words, and forecasts by metric if the rule makes any."""

    action: Action
    reason: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    forecasts: Forecasts = field(default_factory=dict)


def stop_for_good(metrics: Mapping[str, float | None], constraints: Sequence[Constraint]) -> Decision | None:
    """Return a decision to stop a trial that can never become feasible, at any rank; None if it still may."""
    bound = never_feasible(metrics, constraints)
    if bound is None:
        return None
    value = value_of(bound, metrics)
    numbers = {bound.metric: value, bound.side: bound.bound}
    return Decision(action="stop", reason=f"infeasible for good: {bound.violated_by(value)}", numbers=numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fresh:
    """A free slot starts the next untried configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thaw:
    """A free slot resumes a paused trial."""

    number: int
    decision: Decision


@dataclass(kw_only=True, slots=True)
class History:
    """The input of a policy; objectives at rungs are signed so that smaller is better."""

    at_rung: dict[int, dict[int, Values]] = field(default_factory=dict)  # by rung and number
    violations: dict[int, dict[int, float]] = field(default_factory=dict)  # by rung and number; 0 if missing
    paused: dict[int, int] = field(default_factory=dict)
    trials: Sequence[Snapshot] = ()  # all started trials, in the order of their numbers
    upcoming: Mapping[str, ParameterValue] | None = None  # next untried configuration; None while being computed
    fresh_allowed: bool = True

    def violations_of(self, numbers: Sequence[int], rung: int) -> list[float]:
        """Return the amount of each trial's constraint violations at a rung; 0 if it kept the constraints."""
        there = self.violations.get(rung, {})
        return [there.get(number, 0.0) for number in numbers]


class Pruner(Protocol):
    """The rule that decides at rungs. `studies.search.pruners.by_name` describes how a spec names a custom rule."""

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return the epochs at which the rule decides, ascending and below `epochs`, the length of a full training."""
        ...

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Continue, pause or stop a trial at its rung; `history` has its values there."""
        ...

    def thaw(self, history: History) -> Thaw | None:
        """Return the paused trial that deserves a free slot more than an untried configuration, or None."""
        ...

    def prepare(self, history: History) -> None:
        """Compute the inputs of the next `thaw` in advance; a quick rule does nothing."""
        ...

    def worth_least(self, history: History) -> int | None:
        """Return the number of the least valuable paused trial; None if the rule cannot rank them."""
        ...


class StoppingPruner:
    """Base class of pruners that pause no trial; subclasses define `rungs` and `decide` only."""

    def thaw(self, history: History) -> Thaw | None:  # noqa: ARG002 - the interface of a pruner
        """Return None: no trial is paused."""
        return None

    def prepare(self, history: History) -> None:
        """Do nothing."""

    def worth_least(self, history: History) -> int | None:  # noqa: ARG002 - the interface of a pruner
        """Return None: no trial waits."""
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Applies a study's pruner to its trials."""

    pruner: Pruner

    def worth_least(self, history: History) -> int:
        """Return the paused trial whose checkpoint is evicted first; by default the first at the earliest rung."""
        chosen = self.pruner.worth_least(history)
        if chosen is not None and chosen in history.paused:
            return chosen
        return min(history.paused, key=lambda one: (history.paused[one], one))

    def prepare(self, history: History) -> None:
        """Compute the decision for the next free slot in advance."""
        self.pruner.prepare(history)

    def for_free_slot(self, history: History) -> Fresh | Thaw | None:
        """Return the next work for a free slot; None if there is none."""
        return self.pruner.thaw(history) or (Fresh() if history.fresh_allowed else None)

    def at_rung(self, history: History, number: int, rung: int) -> Decision:
        """Return whether a trial continues from its rung, is paused or is stopped."""
        return self.pruner.decide(history, number, rung)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunerContext:
    """Seed, problem and model (built at the first call); if `sampler_fits`, the sampler fits the hyperparameters."""

    seed: int
    problem: Problem
    model: Callable[[], CurveModel]
    sampler_fits: bool
