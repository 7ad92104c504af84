"""Finishes leaders: trains trials with the best models to their last epoch if they were stopped early.

    leaders = trials of the knee of the best models, of the best first objective, and of the knee's neighbours
    needed  = slots of a leader x (its start + its epochs to come)
    kept    = share / (1 - share) x slot time that the search has trained       (share: `budget.finish`)

A leader is finished if it and the leaders before it need no more slot time than is kept. If time will end the study,
leaders start as late as possible while other slots continue the search. Otherwise leaders start after the search, with
the whole remaining budget. A leader whose latest epoch is worse than its best epoch is skipped, unless a better end is
forecast or no trial would be complete.

Only decisions are stored; a later controller computes the kept and spent slot time from them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from studies.control.machine.live_study import LiveStudy, decision
from studies.control.machine.live_trials import Trial
from studies.records.records import FINISHING, NANO
from studies.results.pareto import knee_of, least_ranges
from studies.search.model.end_forecast import forecast_ends
from studies.search.policy import Decision, Thaw
from trainers.protocol import CUMULATIVE_METRICS

LEAST_TRAININGS = 3.0  # number of full trainings that the search pays for before leaders are finished
MARGIN = 1.2  # factor on the expected time of leaders: epochs vary, and slots are freed only at rungs


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish(Thaw):
    """Decision to train a leader to its last epoch on a free slot."""


class Finishing:
    """Chooses which leaders to train to their last epoch, and when."""

    def __init__(self, live: LiveStudy) -> None:
        self._live = live
        self._needed: dict[int, float] = {}
        self._since: dict[int, float] = {}
        for trial in live.registry.by_id.values():
            if trial.finished_from is not None:
                seconds = trial.whole_epoch_seconds
                usual = live.account.forecaster.training(seconds)
                to_come = max(self._live.setup.epochs - trial.finished_from, 0) * sum(usual) / max(len(usual), 1)
                self._needed[trial.id] = trial.world_size * to_come
                self._since[trial.id] = trial.slot_seconds - trial.world_size * sum(seconds[trial.finished_from :])

    def instead_of(self, natural: Chosen) -> Chosen:
        """Return a leader that must start now, else `natural`, the search's choice for a free slot."""
        leaders = self._leaders() if self._may_be_due(natural[0]) else []
        if not leaders or not self._is_due(leaders, natural[0]):
            return natural
        return self._finish(leaders[0], "it must start now")

    def after_search(self) -> Chosen | None:
        """Return a leader to train after the search, or None."""
        leaders = self._leaders(is_over=True)
        return self._finish(leaders[0], "the search is over") if leaders else None

    def at_rung(self, trial: Trial) -> Decision | None:
        """Return a decision about this trial; None leaves it to the pruner."""
        if trial.id in self._needed:
            return decision("continue", f"{FINISHING}trains to the last epoch of its schedule")
        leaders = self._leaders(at_rung=trial) if self._may_be_due(trial) else []
        if not leaders or not self._is_due(leaders, trial):
            return None
        if any(trial is leader for leader in leaders):
            self._begin(trial)
            return self._decision(trial, "it must start now")
        if len(self._live.free) >= self._live.ranks(leaders[0]):
            return None
        why = f"its slots are needed for trial {leaders[0].number}, a leader that was cut short"
        return decision("pause", FINISHING + why)

    def begun(self, trial: Trial, thaw: Thaw | None) -> bool:
        """Record the start of a trial; returns whether it trains to its last epoch."""
        if isinstance(thaw, Finish):
            self._begin(trial)
        return trial.id in self._needed

    def _begin(self, trial: Trial) -> None:
        self._needed[trial.id] = self._needs(trial)
        self._since[trial.id] = trial.slot_seconds

    def _finish(self, trial: Trial, why: str) -> Chosen:
        return trial, Finish(number=trial.started_number, decision=self._decision(trial, why))

    def _decision(self, trial: Trial, why: str) -> Decision:
        epochs = self._live.setup.epochs
        cut = f"a leader that was cut short at epoch {trial.epochs_done} of {epochs}"
        return decision("continue", f"{FINISHING}{cut}; {why}")

    def _leaders(self, *, at_rung: Trial | None = None, is_over: bool = False) -> list[Trial]:
        """Return leaders stopped early that fit into the kept share (`is_over`: the rest), most important first."""
        share = self._live.setup.limits.finish
        if not share:
            return []
        searched = math.inf if is_over else self._searched()
        left = self._live.account.left_seconds(self._live.now) if is_over else self._kept() - sum(self._needed.values())
        none_is_complete = is_over and all(one.state != "complete" for one in self._live.registry.by_id.values())
        chosen: list[Trial] = []
        for trial_id in dict.fromkeys(self._live.keeper.archive[place].trial_id for place in self._places()):
            trial = self._live.registry.by_id[trial_id]
            if trial.id in self._needed or not (trial is at_rung or trial.state == "paused"):
                continue
            if self._live.ranks(trial) > self._live.most_ranks:  # its devices are gone
                continue
            is_worthy = self._is_cut_short(trial, at_any_epoch=none_is_complete)
            if is_worthy and searched >= LEAST_TRAININGS * self._full(trial):
                group = [*chosen, trial]
                needs = self._seconds(group) if is_over else sum(map(self._needs, group))
                chosen = group if needs <= left else chosen
        return chosen

    def _places(self) -> Iterator[int]:
        """Yield indices of the archive: the knee, the best first objective, the knee's better neighbour.

        If no objective is a cost, the knee's worse neighbour follows.
        """
        values = [one.values for one in self._live.keeper.archive]
        if not values:
            return
        spent_usd = self._live.account.spent_nano_usd / NANO
        middle = knee_of(values, least_ranges([one.metric for one in self._live.setup.objectives], spent_usd))
        ranked = sorted(range(len(values)), key=values.__getitem__)
        place = ranked.index(middle)
        yield middle
        yield ranked[0]
        yield from ranked[max(place - 1, 0) : place]
        if not any(one.metric in CUMULATIVE_METRICS for one in self._live.setup.objectives):
            yield from ranked[place + 1 : place + 2]

    def _is_cut_short(self, trial: Trial, *, at_any_epoch: bool) -> bool:
        latest = max(trial.milestones, default=0)
        mine = [one for one in self._live.keeper.archive if one.trial_id == trial.id]
        leads = any(at_any_epoch or one.epoch == latest for one in mine) or (bool(mine) and self._will_improve(trial))
        ranks = self._live.ranks(trial)
        has_forecast = self._live.account.forecast(trial, ranks) is not None
        if not leads or not has_forecast or trial.epochs_done >= self._live.setup.epochs:
            return False
        seconds = self._left_seconds(trial)
        paid = trial.paid_nano_usd + ranks * seconds * self._live.account.usd_per_slot_hour / 3600 * 1e9
        return self._live.setup.limits.trial_reason(paid, trial.wall_seconds + seconds) is None

    def _will_improve(self, trial: Trial) -> bool:
        """Return whether an objective is forecast to end at least as good as the trial's best value."""
        setup, number = self._live.setup, trial.started_number
        trials = self._live.searched.snapshots()
        found = forecast_ends(trials, {number}, objectives=setup.objectives, rungs=setup.rungs)
        ends = found.get(number) or {}
        best = {j: min(values[j] for values in trial.milestones.values()) for j in ends}
        return any(end <= best[j] or math.isclose(end, best[j]) for j, end in ends.items())  # forecasts end at the best

    def _searched(self) -> float:
        by_id = self._live.registry.by_id
        finished = sum(by_id[one].slot_seconds - since for one, since in self._since.items())
        return self._live.account.trained_slot_seconds - finished

    def _kept(self) -> float:
        share = self._live.setup.limits.finish
        return share / (1.0 - share) * self._searched()

    def _needs(self, trial: Trial) -> float:
        return self._live.ranks(trial) * self._left_seconds(trial)

    def _left_seconds(self, trial: Trial) -> float:
        forecast = self._live.account.forecast(trial, self._live.ranks(trial))
        if forecast is None:
            return 0.0
        epochs = self._live.setup.epochs - trial.epochs_done + trial.epochs_again
        return forecast.start_seconds + epochs * forecast.epoch_seconds

    def _full(self, trial: Trial) -> float:
        forecast = self._live.account.forecast(trial, self._live.ranks(trial))
        return 0.0 if forecast is None else self._live.ranks(trial) * self._live.setup.epochs * forecast.epoch_seconds

    def _seconds(self, leaders: Sequence[Trial]) -> float:
        """Return the seconds until all leaders are trained, if only they use the slots."""
        slots = max(self._live.slots - len(self._live.missing), 1)
        free = [0.0] * max(slots, *(self._live.ranks(trial) for trial in leaders))
        for trial in leaders:
            held = [heapq.heappop(free) for _ in range(self._live.ranks(trial))]
            for _ in held:
                heapq.heappush(free, max(held) + self._left_seconds(trial))
        return max(free)

    def _may_be_due(self, natural: Trial) -> bool:
        """Return False if no leader can be due, by a quick upper bound of its time."""
        left = self._live.account.left_seconds(self._live.now)
        return left <= MARGIN * self._kept() + self._left_of_full(natural)

    def _is_due(self, leaders: Sequence[Trial], natural: Trial) -> bool:
        """Return whether leaders would finish too late if the search kept the slot for another turn."""
        live = self._live
        left = live.account.left_seconds(live.now)
        need = MARGIN * self._seconds(leaders)
        if left > need + self._left_of_full(natural):  # nothing takes longer than a full training
            return False
        running = [one for one in live.registry.running if one is not natural]
        wait = min(stint_seconds(live, one) for one in (natural, *running))
        return left <= need + wait

    def _left_of_full(self, trial: Trial) -> float:
        forecast = self._live.account.forecast(trial)
        return 0.0 if forecast is None else self._live.setup.epochs * forecast.epoch_seconds + forecast.start_seconds


Chosen: TypeAlias = "tuple[Trial, Thaw | None]"  # a trial, and the policy's decision if it thaws the trial

EXPECTED = 0.5  # smallest chance at which an epoch is expected to end in time
SLIGHT = 0.05  # chance below which an epoch is not worth its cost
NEGLIGIBLE_SHARE = 0.05  # largest share of a budget that may be left over when nothing fits


class RestOfBudget:
    """Chooses a trial that is likely to end an epoch before the deadline."""

    def __init__(self, live: LiveStudy) -> None:
        self._live = live

    def choose(self, natural: Chosen) -> Chosen | None:
        """Return the trial to start; None if no trial is likely to end an epoch, and little budget would be left over.

        A trial that would train its earlier epochs again never starts without a slight chance.
        """
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
        if best_chance < SLIGHT and (account.left_share(now) <= NEGLIGIBLE_SHARE or best[0].epochs_again):
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
        """Return the expected seconds until `slots` slots are free, if running trials end at their next rung."""
        live, room = self._live, len(self._live.free)
        if slots <= room:
            return 0.0
        running = [(trial, trial.attempt) for trial in live.registry.running]
        ends = sorted((stint_seconds(live, trial), len(attempt.slots)) for trial, attempt in running if attempt)
        for seconds, held in ends:
            room += held
            if room >= slots:
                return seconds
        return 0.0  # the missing slots are restarting


def stint_seconds(live: LiveStudy, trial: Trial) -> float:
    """Return the expected seconds until a trial's next decision."""
    forecast = live.account.forecast(trial)
    if forecast is None:
        return 0.0
    if trial.attempt is None or trial.attempt.until <= trial.epochs_done:
        until = next((rung for rung in live.rungs if rung > trial.epochs_done), trial.epochs_done)
        return forecast.start_seconds + (until - trial.epochs_done) * forecast.epoch_seconds
    epochs = 1 if trial.attempt.drains_within is not None else trial.attempt.until - trial.epochs_done
    return epochs * forecast.epoch_seconds
