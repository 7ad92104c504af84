"""The policy decides about free slots, and about trials at decision epochs (rungs). No I/O."""

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
    """A decision about a trial, with its reason in words and the pruner's forecasts by metric, if any."""

    action: Action
    reason: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    forecasts: Forecasts = field(default_factory=dict)


def stop_for_good(metrics: Mapping[str, float | None], constraints: Sequence[Constraint]) -> Decision | None:
    """Return the decision to stop a trial that can never be feasible; None if it still can."""
    bound = never_feasible(metrics, constraints)
    if bound is None:
        return None
    value = value_of(bound, metrics)
    numbers = {bound.metric: value, bound.side: bound.bound}
    return Decision(action="stop", reason=f"infeasible for good: {bound.violated_by(value)}", numbers=numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fresh:
    """A free slot starts a trial with the next untried configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thaw:
    """A free slot resumes a paused trial."""

    number: int
    decision: Decision


@dataclass(kw_only=True, slots=True)
class History:
    """A study's results for the policy; objectives are signed so that smaller is better."""

    at_rung: dict[int, dict[int, Values]] = field(default_factory=dict)  # by rung and number
    violations: dict[int, dict[int, float]] = field(default_factory=dict)  # by rung and number; 0 if missing
    paused: dict[int, int] = field(default_factory=dict)
    trials: Sequence[Snapshot] = ()  # all started trials, in the order of their numbers
    upcoming: Mapping[str, ParameterValue] | None = None  # next untried configuration; None while being computed
    fresh_allowed: bool = True

    def violations_of(self, numbers: Sequence[int], rung: int) -> list[float]:
        """Return each trial's total constraint violation at a rung; 0 if feasible."""
        there = self.violations.get(rung, {})
        return [there.get(number, 0.0) for number in numbers]


class Pruner(Protocol):
    """A rule that decides about trials at rungs; see `studies.search.pruners.by_name` for an example."""

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return the epochs at which the rule decides: ascending, below the full training's length `epochs`."""
        ...

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Decide whether a trial continues, pauses or stops at a rung; `history` has its values there."""
        ...

    def thaw(self, history: History) -> Thaw | None:
        """Return a paused trial that should get a free slot before a new configuration, or None."""
        ...

    def prepare(self, history: History) -> None:
        """Prepare the next `thaw` in advance; a fast rule does nothing."""
        ...

    def worth_least(self, history: History) -> int | None:
        """Return the least valuable paused trial; None if the rule does not rank them."""
        ...


class StoppingPruner:
    """Base class of pruners that never pause trials; subclasses define `rungs` and `decide`."""

    def thaw(self, history: History) -> Thaw | None:  # noqa: ARG002 - the interface of a pruner
        """Return None."""
        return None

    def prepare(self, history: History) -> None:
        """Do nothing."""

    def worth_least(self, history: History) -> int | None:  # noqa: ARG002 - the interface of a pruner
        """Return None."""
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Applies a study's pruner to its trials."""

    pruner: Pruner

    def worth_least(self, history: History) -> int:
        """Return the paused trial to prune first; by default, the first at the earliest rung."""
        chosen = self.pruner.worth_least(history)
        if chosen is not None and chosen in history.paused:
            return chosen
        return min(history.paused, key=lambda one: (history.paused[one], one))

    def prepare(self, history: History) -> None:
        """Prepare the decision about the next free slot."""
        self.pruner.prepare(history)

    def for_free_slot(self, history: History) -> Fresh | Thaw | None:
        """Return the start or resume for a free slot; None if the slot stays free."""
        return self.pruner.thaw(history) or (Fresh() if history.fresh_allowed else None)

    def at_rung(self, history: History, number: int, rung: int) -> Decision:
        """Decide whether a trial continues, pauses or stops at a rung."""
        return self.pruner.decide(history, number, rung)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunerContext:
    """Seed, problem and model for a pruner. `sampler_fits`: the sampler fits the model's hyperparameters."""

    seed: int
    problem: Problem
    model: Callable[[], CurveModel]
    sampler_fits: bool
