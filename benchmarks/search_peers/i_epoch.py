"""i-Epoch: train many configurations for i epochs, then only the best of them to the end (arXiv 2307.15422).

Half of the budget goes into the first part. "Best" is the order of MO-ASHA: by non-domination, inside a front by
epsilon-net.
"""

from __future__ import annotations

from studies.results.pareto import best_first
from studies.search.policy import Decision, History, Thaw
from studies.search.pruners.none import NoPruner
from studies.simulation.setting import Setting

FIRST_PART = 0.5


class IEpoch(NoPruner):
    """Pauses every trial at one epoch, and goes on with the best once enough have been there.

    Args:
        setting: The simulated study.
        epoch: i.
    """

    def __init__(self, setting: Setting, epoch: int) -> None:
        self._epoch = epoch
        table = setting.table
        seconds = table.seconds[:, epoch - 1] + setting.start_epochs * table.mean_epoch_seconds
        per_trial = float((seconds * table.world_sizes).mean()) * setting.usd_per_slot_hour / 3600.0
        self._first = min(int(FIRST_PART * setting.budget_usd / per_trial), len(table) - 1)

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """The one epoch."""
        return (self._epoch,) if self._epoch < epochs else ()

    def decide(self, history: History, number: int, rung: int) -> Decision:  # noqa: ARG002 - the interface of a pruner
        """Pause."""
        return Decision(action="pause", reason=f"waits at epoch {rung} until all have been there")

    def thaw(self, history: History) -> Thaw | None:
        """The best that waits, once all have been started."""
        at_rung = history.at_rung.get(self._epoch, {})
        if not history.paused or max(at_rung, default=0) + 1 < self._first:
            return None
        numbers = sorted(at_rung)
        order = list(best_first([at_rung[number] for number in numbers], numbers))
        place, best = next((p, numbers[i]) for p, i in enumerate(order, start=1) if numbers[i] in history.paused)
        reason = f"place {place} of {len(numbers)} at epoch {self._epoch}"
        return Thaw(number=best, decision=Decision(action="continue", reason=reason))
