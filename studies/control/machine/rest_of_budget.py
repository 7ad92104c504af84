"""Choice of a trial for a free slot that makes the best use of the remaining budget.

    chance(trial) = probability that the trial starts and ends its next epoch before running epochs are cut

* The policy's choice starts if its chance is one half or more.
* Else another trial with such a chance: a drained one, the paused one with the best objective, or an untried one.
* Else the trial with the largest chance, since an idle slot costs the same.
* Nothing, if that chance is slight and only a negligible share of the budget is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from studies.control.machine.live_study import LiveStudy, decision
from studies.control.machine.live_trials import Trial
from studies.search.policy import Thaw

Chosen: TypeAlias = "tuple[Trial, Thaw | None]"  # a trial, and the policy's decision if it thaws the trial

EXPECTED = 0.5  # smallest chance at which an epoch is expected to end in time
SLIGHT = 0.05  # chance below which an epoch is not worth its cost
NEGLIGIBLE_SHARE = 0.05  # largest share of a budget that may be left over when nothing fits


class RestOfBudget:
    """Chooses a trial for a free slot, by the policy's choice and by the remaining budget."""

    def __init__(self, live: LiveStudy) -> None:
        self._live = live

    def choose(self, natural: Chosen) -> Chosen | None:
        """Return the trial to start; None if the rest is negligible and no epoch is likely to fit into it."""
        if self._chance(natural[0]) >= EXPECTED:
            return natural
        best, best_chance = natural, self._chance(natural[0])
        for chosen in self._others():
            chance = self._chance(chosen[0])
            if chance >= EXPECTED:
                return chosen
            if chance > max(best_chance, SLIGHT):  # a slight chance is no reason to change the order of trials
                best, best_chance = chosen, chance
        account, now = self._live.account, self._live.now
        if best_chance < SLIGHT and account.left_share(now) <= NEGLIGIBLE_SHARE:
            return None
        return best

    def _others(self) -> Iterator[Chosen]:
        live, room = self._live, len(self._live.free)
        paused = [trial for trial in live.registry.in_state("paused") if live.ranks(trial) <= room]
        for trial in sorted((one for one in paused if one.paused_by != "policy"), key=lambda one: one.started_number):
            yield trial, None
        for trial in sorted((one for one in paused if one.paused_by == "policy"), key=self._rank):
            reason = "the rest of the budget has time for an epoch of this trial, but not of the trials ahead of it"
            made = decision("continue", reason)
            yield trial, Thaw(number=trial.started_number, decision=made)
        queued = live.registry.next_queued()
        if queued is not None and live.fresh_allowed and queued.world_size <= room:
            yield queued, None

    def _rank(self, trial: Trial) -> tuple[float, int]:
        first = self._live.setup.objectives[0]
        return first.signed(trial.last_metrics[first.metric]), trial.started_number

    def _chance(self, trial: Trial) -> float:
        ranks = self._live.ranks(trial)
        wait = self._free_in_seconds(ranks)
        return self._live.account.chance(trial, self._live.now, starting=True, ranks=ranks, wait_seconds=wait)

    def _free_in_seconds(self, slots: int) -> float:
        """Return the expected time until `slots` are free, if no running gang continues beyond its rung."""
        live, room = self._live, len(self._live.free)
        if slots <= room:
            return 0.0
        running = [(trial, trial.attempt) for trial in live.registry.running]
        ends = sorted((stint_seconds(live, trial), len(attempt.slots)) for trial, attempt in running if attempt)
        for seconds, held in ends:
            room += held
            if room >= slots:
                return seconds
        return 0.0  # the missing slots are processes that restart, which takes a moment


def stint_seconds(live: LiveStudy, trial: Trial) -> float:
    """Return the expected time until a trial's gang reaches its rung, or its next rung if it continued now."""
    forecast = live.account.forecast(trial)
    if forecast is None:
        return 0.0
    if trial.attempt is None or trial.attempt.until <= trial.epochs_done:
        until = next((rung for rung in live.rungs if rung > trial.epochs_done), trial.epochs_done)
        return forecast.start_seconds + (until - trial.epochs_done) * forecast.epoch_seconds
    epochs = 1 if trial.attempt.is_draining else trial.attempt.until - trial.epochs_done
    return epochs * forecast.epoch_seconds
