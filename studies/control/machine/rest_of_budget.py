"""What a free slot does with the rest of a budget: the policy's choice, or else what is likely to end an epoch in it.

    chance(trial) = probability that the trial starts and ends its next epoch before running epochs are cut

* The policy's choice is started if it is expected to end an epoch, with a chance of one half or more.
* Else a trial that is expected to do so is started: a drained one first, then the paused one with the best objective,
  then an untried configuration.
* Else the trial with the largest chance is started, since the pool costs the same while a slot is idle.
* Nothing is started if the largest chance is slight and only a negligible share of the budget is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from studies.control.machine.live_study import LiveStudy, decision
from studies.control.machine.live_trials import Trial
from studies.search.policy import Thaw

Chosen: TypeAlias = "tuple[Trial, Thaw | None]"
"""A trial, and the decision by which it goes on if the policy had paused it."""

EXPECTED = 0.5
"""Chance from which on an epoch is expected to end."""
SLIGHT = 0.05
"""Chance below which an epoch is a waste."""
NEGLIGIBLE_SHARE = 0.05
"""Share of a budget that may be left over when nothing fits into it."""


class RestOfBudget:
    """Chooses what a free slot does, by the policy's choice and by what fits into the budget."""

    def __init__(self, live: LiveStudy) -> None:
        self._live = live

    def choose(self, natural: Chosen) -> Chosen | None:
        """Return what to start; None if the rest of the budget is negligible and no epoch is likely to fit into it."""
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
        """All that could be started on the free slots, in the order of preference."""
        live, room = self._live, len(self._live.free)
        paused = [trial for trial in live.registry.in_state("paused") if live.ranks(trial) <= room]
        for trial in sorted((one for one in paused if one.paused_by != "policy"), key=lambda one: one.started_number):
            yield trial, None
        for trial in sorted((one for one in paused if one.paused_by == "policy"), key=self._rank):
            reason = "the rest of the budget has room for an epoch of this trial, but not of those before it"
            made = decision("continue", reason)
            yield trial, Thaw(number=trial.started_number, decision=made)
        queued = live.registry.next_queued()
        if queued is not None and live.fresh_allowed and queued.world_size <= room:
            yield queued, None

    def _rank(self, trial: Trial) -> tuple[float, int]:
        """Order of paused trials: the best first objective of the last epoch first."""
        first = self._live.setup.objectives[0]
        return first.signed(trial.last_metrics[first.metric]), trial.started_number

    def _chance(self, trial: Trial) -> float:
        ranks = self._live.ranks(trial)
        wait = self._free_in_seconds(ranks)
        return self._live.account.chance(trial, self._live.now, starting=True, ranks=ranks, wait_seconds=wait)

    def _free_in_seconds(self, slots: int) -> float:
        """Expected time until so many slots are free, if no running gang goes on beyond its rung."""
        live, room = self._live, len(self._live.free)
        if slots <= room:
            return 0.0
        running = [(trial, trial.attempt) for trial in live.registry.running]
        ends = sorted((stint_seconds(live, trial), len(attempt.slots)) for trial, attempt in running if attempt)
        for seconds, held in ends:
            room += held
            if room >= slots:
                return seconds
        return 0.0  # processes that come back, which takes a moment


def stint_seconds(live: LiveStudy, trial: Trial) -> float:
    """Return the expected time until a trial is at its rung: that of its gang, else the next one if it went on now."""
    forecast = live.account.forecast(trial)
    if forecast is None:
        return 0.0
    if trial.attempt is None or trial.attempt.until <= trial.epochs_done:
        until = next((rung for rung in live.rungs if rung > trial.epochs_done), trial.epochs_done)
        return forecast.start_seconds + (until - trial.epochs_done) * forecast.epoch_seconds
    epochs = 1 if trial.attempt.is_draining else trial.attempt.until - trial.epochs_done
    return epochs * forecast.epoch_seconds
