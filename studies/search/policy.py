"""A policy answers two questions: what does a free slot do, and does a trial at its rung go on.

It is pure: history in, decision out. Clock, randomness and I/O stay outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from studies.constraints import never_feasible, value_of
from studies.records import Action, Constraint
from studies.search.model.search_model import SearchModel
from studies.search.observations import Snapshot, Values
from trainers.protocol import ParameterValue


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What happens to a trial, why, and the numbers that were compared. The reason is never empty."""

    action: Action
    reason: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)


def stop_for_good(metrics: Mapping[str, float | None], constraints: Sequence[Constraint]) -> Decision | None:
    """The end of a trial that nobody has to rank, since it can never become feasible; None if it still may."""
    bound = never_feasible(metrics, constraints)
    if bound is None:
        return None
    value = value_of(bound, metrics)
    numbers = {bound.metric: value, bound.side: bound.bound}
    return Decision(action="stop", reason=f"infeasible for good: {bound.violated_by(value)}", numbers=numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fresh:
    """A free slot starts the next configuration that nobody has tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thaw:
    """A free slot goes on with the paused trial of this number."""

    number: int
    decision: Decision


@dataclass(kw_only=True, slots=True)
class History:
    """What a policy may look at.

    Attributes:
        at_rung: For each rung, the objectives (turned so that smaller is better) of every trial measured there.
        violations: For each rung, by how much trials violated the constraints there; the others kept them.
        paused: Trials that the policy paused, and the rung at which each waits.
        trials: All that were started, by number, as far as they got.
        upcoming: The configuration that a free slot would start; None while it is being looked for.
        fresh_allowed: Whether a free slot may start one.
    """

    at_rung: dict[int, dict[int, Values]] = field(default_factory=dict)
    violations: dict[int, dict[int, float]] = field(default_factory=dict)
    paused: dict[int, int] = field(default_factory=dict)
    trials: Sequence[Snapshot] = ()
    upcoming: Mapping[str, ParameterValue] | None = None
    fresh_allowed: bool = True

    def violations_of(self, numbers: Sequence[int], rung: int) -> list[float]:
        """By how much each of these trials violated the constraints at a rung; 0 where it kept them."""
        there = self.violations.get(rung, {})
        return [there.get(number, 0.0) for number in numbers]


class Pruner(Protocol):
    """The rule that decides at rungs."""

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Epochs before the last at which it decides, ascending."""
        ...

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Whether the trial goes on from this rung; its own values are in the history already."""
        ...

    def thaw(self, history: History) -> Thaw | None:
        """The paused trial that deserves a free slot more than an untried configuration, if there is one."""
        ...

    def prepare(self, history: History) -> None:
        """Work out ahead of time what the next call of `thaw` will need; a rule that is quick does nothing."""
        ...

    def worth_least(self, history: History) -> int | None:
        """The paused trial that has the least to give, or None if this rule has no opinion."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A sampler and a pruner together. The sampler's part, suggesting parameters, runs ahead of time elsewhere.

    Attributes:
        pruner: Decides.
        model: What `cokriging` and `break_even` share.
    """

    pruner: Pruner
    model: SearchModel | None = None

    def worth_least(self, history: History) -> int:
        """The paused trial that gives its checkpoint up when too many wait; some do.

        Pruners that have no opinion let the one go that waits at the earliest rung, and there the first.
        """
        chosen = self.pruner.worth_least(history)
        return min(history.paused, key=lambda one: (history.paused[one], one)) if chosen is None else chosen

    def prepare(self, history: History) -> None:
        """Think of the next free slot while there is none."""
        self.pruner.prepare(history)

    def for_free_slot(self, history: History) -> Fresh | Thaw | None:
        """What a free slot does; None when there is nothing to do for it."""
        return self.pruner.thaw(history) or (Fresh() if history.fresh_allowed else None)

    def at_rung(self, history: History, number: int, rung: int) -> Decision:
        """Whether the trial goes on."""
        return self.pruner.decide(history, number, rung)


__all__ = ["Decision", "Fresh", "History", "Policy", "Pruner", "Thaw", "Values", "stop_for_good"]
