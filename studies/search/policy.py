"""A policy answers two questions: what a free slot does, and whether a trial at its rung goes on.

It is pure: history in, decision out. Clock, randomness and I/O stay outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from studies.records.forecasts import Forecasts
from studies.records.records import Action, Constraint
from studies.results.constraints import never_feasible, value_of
from studies.search.observations import Snapshot, Values
from trainers.protocol import ParameterValue


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What happens to a trial, and why.

    Attributes:
        reason: Reason in words; never empty.
        forecasts: What the trial was expected to reach, by the objective's metric; empty with a rule that forecasts
            nothing.
    """

    action: Action
    reason: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    forecasts: Forecasts = field(default_factory=dict)


def stop_for_good(metrics: Mapping[str, float | None], constraints: Sequence[Constraint]) -> Decision | None:
    """Returns the stop of a trial that can never become feasible, whatever its rank; None if it still may."""
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
    """A free slot goes on with a paused trial."""

    number: int
    decision: Decision


@dataclass(kw_only=True, slots=True)
class History:
    """What a policy may look at.

    Attributes:
        at_rung: Objectives of every trial measured at a rung, turned so that smaller is better, by rung and number.
        violations: Amount by which trials violated the constraints at a rung, by rung and number; trials that kept
            them are left out.
        trials: All trials that were started, in the order of their numbers, as far as they got.
        upcoming: Configuration that a free slot would start; None while it is being looked for.
    """

    at_rung: dict[int, dict[int, Values]] = field(default_factory=dict)
    violations: dict[int, dict[int, float]] = field(default_factory=dict)
    paused: dict[int, int] = field(default_factory=dict)
    trials: Sequence[Snapshot] = ()
    upcoming: Mapping[str, ParameterValue] | None = None
    fresh_allowed: bool = True

    def violations_of(self, numbers: Sequence[int], rung: int) -> list[float]:
        """Returns the amount by which each of these trials violated the constraints at a rung; 0 if it kept them."""
        there = self.violations.get(rung, {})
        return [there.get(number, 0.0) for number in numbers]


class Pruner(Protocol):
    """The rule that decides at rungs. `studies.search.pruners.by_name` says how to name one's own in a spec."""

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Returns the epochs at which it decides, ascending and below the last epoch.

        Args:
            epochs: Number of epochs of a full training.
        """
        ...

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Returns whether a trial goes on from its rung, is paused or is stopped.

        Args:
            history: The study so far, with the trial's own values at this rung.
        """
        ...

    def thaw(self, history: History) -> Thaw | None:
        """Returns the paused trial that deserves a free slot more than an untried configuration; None if none does."""
        ...

    def prepare(self, history: History) -> None:
        """Works out ahead of time what the next call of `thaw` needs; a quick rule does nothing."""
        ...

    def worth_least(self, history: History) -> int | None:
        """Returns the number of the paused trial that has the least to give; None if the rule has no opinion."""
        ...


class StoppingPruner:
    """Base class of a pruner that pauses no trial: it has to define `rungs` and `decide` only."""

    def thaw(self, history: History) -> Thaw | None:  # noqa: ARG002 - the interface of a pruner
        """Returns None: no trial is paused."""
        return None

    def prepare(self, history: History) -> None:
        """Does nothing: there is nothing to prepare."""

    def worth_least(self, history: History) -> int | None:  # noqa: ARG002 - the interface of a pruner
        """Returns None: no trial waits."""
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What a study does with its trials, by its pruner."""

    pruner: Pruner

    def worth_least(self, history: History) -> int:
        """Returns the number of the paused trial that gives its checkpoint up when too many wait; some trial waits.

        For a pruner that names none of those which it has paused it is the first that waits at the earliest rung.
        """
        chosen = self.pruner.worth_least(history)
        if chosen is not None and chosen in history.paused:
            return chosen
        return min(history.paused, key=lambda one: (history.paused[one], one))

    def prepare(self, history: History) -> None:
        """Works out ahead of time what the next free slot will do."""
        self.pruner.prepare(history)

    def for_free_slot(self, history: History) -> Fresh | Thaw | None:
        """Returns what a free slot does; None if there is nothing to do for it."""
        return self.pruner.thaw(history) or (Fresh() if history.fresh_allowed else None)

    def at_rung(self, history: History, number: int, rung: int) -> Decision:
        """Returns whether a trial goes on from its rung, is paused or is stopped."""
        return self.pruner.decide(history, number, rung)
