"""MO-ASHA: asynchronous successive halving with ranks by Pareto dominance.

After Schmucker et al. 2021, arXiv 2106.12639, with their epsilon-net as the order inside a front. All trials ever
measured at a rung are ranked; feasible trials come first (`pareto.constrained_layers`).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from studies.results.pareto import best_first, rank_of
from studies.search.observations import Values
from studies.search.policy import Decision, History, Thaw


@dataclass(frozen=True, kw_only=True, slots=True)
class MoAsha:
    """Continues the best 1 / eta of the trials at each of the rungs grace, grace eta, grace eta^2, ...

    "stopping" ends the other trials. "promotion" pauses all trials, and free slots resume the best.
    """

    variant: Literal["stopping", "promotion"] = "stopping"
    grace: int = field(default=3, metadata={"at_least": 1})
    eta: int = field(default=3, metadata={"at_least": 2})

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return grace * eta^k for k = 0, 1, ..., below the last epoch."""
        rungs, rung = [], self.grace
        while rung < epochs:
            rungs.append(rung)
            rung *= self.eta
        return tuple(rungs)

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Stop unless the rank is at most max(1, floor(n / eta)); with "promotion", pause."""
        # Reasons call the rank a place, since users know "rank" as a process of a trial.
        numbers_at_rung, values = _in_order(history.at_rung[rung])
        violations = history.violations_of(numbers_at_rung, rung)
        place, count = numbers_at_rung.index(number), len(values)
        rank = rank_of(place, values, numbers_at_rung, violations)
        allowed = max(1, count // self.eta)
        numbers: dict[str, float | int] = {"rank": rank, "trials_at_rung": count, "ranks_that_go_on": allowed}
        if violations[place] > 0:
            numbers["violation"] = violations[place]
        if self.variant == "promotion":
            reason = f"waits at rung {rung} for promotion: place {rank} of {count}, the best {allowed} continue"
            return Decision(action="pause", reason=reason, numbers=numbers)
        verb = "is among" if rank <= allowed else "is not among"
        reason = f"place {rank} of {count} at rung {rung} {verb} the best {allowed}"
        return Decision(action="continue" if rank <= allowed else "stop", reason=reason, numbers=numbers)

    def thaw(self, history: History) -> Thaw | None:
        """Return the best paused trial that may continue, from the highest rung down, or None."""
        if self.variant == "stopping":
            return None
        for rung in sorted(history.at_rung, reverse=True):
            waiting = {number for number, at in history.paused.items() if at == rung}
            if waiting and (thaw := self._promotion(history, waiting, rung)):
                return thaw
        return None

    def prepare(self, history: History) -> None:
        """Do nothing, since `thaw` is fast."""

    def worth_least(self, history: History) -> int | None:
        """Return the worst-ranked paused trial at the earliest rung with paused trials."""
        if not history.paused:
            return None
        rung = min(history.paused.values())
        return next(n for n in reversed(list(_ranked(history, rung))) if history.paused.get(n) == rung)

    def _promotion(self, history: History, waiting: set[int], rung: int) -> Thaw | None:
        count = len(history.at_rung[rung])
        allowed = max(1, count // self.eta)
        best = itertools.islice(enumerate(_ranked(history, rung), start=1), allowed)
        rank, number = next(((rank, number) for rank, number in best if number in waiting), (0, 0))
        if not rank:
            return None
        reason = f"promoted from rung {rung}: place {rank} of {count}, the best {allowed} continue"
        numbers = {"rank": rank, "trials_at_rung": count, "ranks_that_go_on": allowed}
        return Thaw(number=number, decision=Decision(action="continue", reason=reason, numbers=numbers))


def _ranked(history: History, rung: int) -> Iterator[int]:
    """Return the numbers of the trials measured at a rung, best first; infeasible trials come last."""
    numbers, values = _in_order(history.at_rung[rung])
    return (numbers[place] for place in best_first(values, numbers, history.violations_of(numbers, rung)))


def _in_order(at_rung: dict[int, Values]) -> tuple[list[int], list[Values]]:
    """Return trial numbers, ascending, and their values, so that ranks do not depend on arrival."""
    numbers = sorted(at_rung)
    return numbers, [at_rung[number] for number in numbers]
