"""The median rule: stops a trial that is worse than the median of the other trials at its rung.

After Google Vizier (Golovin et al. 2017, section 3.2.2) and Optuna's `MedianPruner`, for one or several objectives.
Those compare with complete trials only. Here also pruned and running trials count; otherwise no trial could be pruned
before five trainings are complete.
"""

import math
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from studies.results.pareto import constrained_layers
from studies.search.observations import Values
from studies.search.policy import Decision, History, StoppingPruner

Combine = Literal["joint", "any", "all", "primary"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Median(StoppingPruner):
    """Stops a trial that is worse than the median of the other trials at its rung, or violates constraints more.

    The first rung is the epoch `grace`; each next rung is twice as late, up to 0.87 of the last epoch. No trial ends
    before `startup_trials` others were measured at the rung. `combine` defines when a trial is worse: in any objective
    ("any"), in all, in the first ("primary"), or "joint" if its layer of non-dominated sorting is worse than the median
    layer, so that no trial on the front of its rung ends.
    """

    grace: int = field(default=3, metadata={"at_least": 1})
    startup_trials: int = field(default=5, metadata={"at_least": 1})
    combine: Combine = "joint"

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return grace * 2^k for k = 0, 1, ..., up to 0.87 of the last epoch."""
        rungs, rung = [], self.grace
        while 100 * rung <= 87 * epochs:
            rungs.append(rung)
            rung *= 2
        return tuple(rungs)

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Stop the trial if it is worse than the median of the other trials; an equal trial continues."""
        at_rung = history.at_rung[rung]
        peers = [other for other in sorted(at_rung) if other != number]
        own, others = at_rung[number], [at_rung[other] for other in peers]
        violation, *violations = history.violations_of([number, *peers], rung)
        if len(others) < self.startup_trials:
            reason = f"{len(others)} other trials at rung {rung}: the median counts from {self.startup_trials} on"
            return Decision(action="continue", reason=reason, numbers={"trials_at_rung": len(others) + 1})
        if self.combine == "joint":
            return self._jointly([own, *others], [violation, *violations], rung)
        if violation > 0:
            return self._by_violation(violation, violations, rung)
        # A trial that violates a constraint is worse in every objective than a trial that keeps them all.
        worst = (math.inf,) * len(own)
        ranked = [worst if v > 0 else values for v, values in zip(violations, others, strict=True)]
        return self._by_objective(own, ranked, rung)

    def _jointly(self, points: list[Values], violations: list[float], rung: int) -> Decision:
        layer, *their_layers = constrained_layers(points, violations)
        middle = float(median(their_layers))
        stops = layer > middle
        verb = "is worse than" if stops else "is not worse than"
        reason = f"front {layer + 1} of {max(layer, *their_layers) + 1} at rung {rung} {verb} the median {middle + 1:g}"
        numbers = {"front": layer + 1, "median_front": middle + 1, "trials_at_rung": len(points)}
        return Decision(action="stop" if stops else "continue", reason=reason, numbers=numbers)

    def _by_violation(self, violation: float, others: list[float], rung: int) -> Decision:
        middle = float(median(others))
        stops = violation > middle
        verb = "is more than" if stops else "is not more than"
        reason = f"it violates the constraints at rung {rung} by {violation:.3g}, which {verb} the median {middle:.3g}"
        numbers = {"violation": violation, "median_violation": middle, "trials_at_rung": len(others) + 1}
        return Decision(action="stop" if stops else "continue", reason=reason, numbers=numbers)

    def _by_objective(self, own: Values, others: list[Values], rung: int) -> Decision:
        """Decide by single objectives; `numbers` counts objectives from 1 and negates maximised ones."""
        medians = [float(median(column)) for column in zip(*others, strict=True)]
        worse = [value > middle for value, middle in zip(own, medians, strict=True)]
        counted = worse[:1] if self.combine == "primary" else worse
        stops = all(counted) if self.combine == "all" else any(counted)
        numbers: dict[str, float | int | None] = {"trials_at_rung": len(others) + 1}
        for place, (value, middle) in enumerate(zip(own, medians, strict=True), start=1):
            numbers |= {f"objective_{place}": value, f"median_{place}": middle if math.isfinite(middle) else None}
        reason = (
            f"worse than the median in {sum(counted)} of {len(counted)} objectives at rung {rung}; "
            f"{self.combine} of them {'ends' if stops else 'would end'} it"
        )
        return Decision(action="stop" if stops else "continue", reason=reason, numbers=numbers)
