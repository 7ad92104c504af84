"""The policy: what a free slot does, and whether a trial continues at a decision epoch (rung). No I/O."""

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
    """A decision about a trial, with its reason in words and, if the pruner makes forecasts, forecasts by metric."""

    action: Action
    reason: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    forecasts: Forecasts = field(default_factory=dict)


def stop_for_good(metrics: Mapping[str, float | None], constraints: Sequence[Constraint]) -> Decision | None:
    """Return the decision to stop a trial that can never keep all constraints; None if it still can."""
    bound = never_feasible(metrics, constraints)
    if bound is None:
        return None
    value = value_of(bound, metrics)
    numbers = {bound.metric: value, bound.side: bound.bound}
    return Decision(action="stop", reason=f"infeasible for good: {bound.violated_by(value)}", numbers=numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fresh:
    """A free slot starts a new trial with the next untried configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thaw:
    """A free slot resumes a paused trial."""

    number: int
    decision: Decision


@dataclass(kw_only=True, slots=True)
class History:
    """A study's results as the policy sees them; objectives are signed so that smaller is better."""

    at_rung: dict[int, dict[int, Values]] = field(default_factory=dict)  # by rung and number
    violations: dict[int, dict[int, float]] = field(default_factory=dict)  # by rung and number; 0 if missing
    paused: dict[int, int] = field(default_factory=dict)
    trials: Sequence[Snapshot] = ()  # all started trials, in the order of their numbers
    upcoming: Mapping[str, ParameterValue] | None = None  # next untried configuration; None while being computed
    fresh_allowed: bool = True

    def violations_of(self, numbers: Sequence[int], rung: int) -> list[float]:
        """Return the total constraint violation of each trial at a rung; 0 if it kept all constraints."""
        there = self.violations.get(rung, {})
        return [there.get(number, 0.0) for number in numbers]


class Pruner(Protocol):
    """A rule that decides about trials at rungs. `studies.search.pruners.by_name` shows how to write one."""

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return the epochs at which the rule decides: ascending, and below `epochs`, the length of a full training."""
        ...

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Decide whether a trial continues, pauses or stops at a rung; `history` has its values there."""
        ...

    def thaw(self, history: History) -> Thaw | None:
        """Return a paused trial that deserves a free slot more than a new configuration does; None without one."""
        ...

    def prepare(self, history: History) -> None:
        """Compute the inputs of the next `thaw` in advance. Fast rules do nothing."""
        ...

    def worth_least(self, history: History) -> int | None:
        """Return the number of the least valuable paused trial; None if the rule does not rank paused trials."""
        ...


class StoppingPruner:
    """Base class of pruners that never pause a trial; subclasses define only `rungs` and `decide`."""

    def thaw(self, history: History) -> Thaw | None:  # noqa: ARG002 - the interface of a pruner
        """Return None, since no trial is ever paused."""
        return None

    def prepare(self, history: History) -> None:
        """Do nothing, since no trial is ever paused."""

    def worth_least(self, history: History) -> int | None:  # noqa: ARG002 - the interface of a pruner
        """Return None, since no trial is ever paused."""
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Applies a study's pruner to its trials."""

    pruner: Pruner

    def worth_least(self, history: History) -> int:
        """Return the paused trial to prune first; by default the first trial at the earliest rung."""
        chosen = self.pruner.worth_least(history)
        if chosen is not None and chosen in history.paused:
            return chosen
        return min(history.paused, key=lambda one: (history.paused[one], one))

    def prepare(self, history: History) -> None:
        """Compute the decision for the next free slot in advance."""
        self.pruner.prepare(history)

    def for_free_slot(self, history: History) -> Fresh | Thaw | None:
        """Return whether a free slot starts a new trial or resumes a paused trial; None if it does neither."""
        return self.pruner.thaw(history) or (Fresh() if history.fresh_allowed else None)

    def at_rung(self, history: History, number: int, rung: int) -> Decision:
        """Decide whether a trial continues, pauses or stops at a rung."""
        return self.pruner.decide(history, number, rung)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunerContext:
    """Seed, problem and model for a pruner. `sampler_fits`: the sampler already fits the model's parameters."""

    seed: int
    problem: Problem
    model: Callable[[], CurveModel]
    sampler_fits: bool
