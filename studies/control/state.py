"""The study as a state machine: events and the time in, rows to commit and commands out. No I/O, clock or chance.

    handle(events, now) -> Step(changes, commands)

The same machine drives Ray and the simulated pool. Its rules, in the order in which a study meets them:

* a free slot goes on with drained or lost trials first, then does what the policy says (`_fill_slots`);
* an epoch is charged, recorded, and either granted on, decided about, or the trial's last (`_measured`);
* money and hours are a deadline; a gang that might not end two more epochs before it trains one more and drains, and
  the study winds down: nothing is started any more, the others go on as far as their own epochs fit (`_grant`);
* a gang without a sign of life is killed, and its trial goes on from its checkpoint (`_tick`).

Its parts: `NextTrial` chooses a trial, `starting` dispatches it, `epochs` writes its epochs down, `endings` end an
attempt, `resuming` goes on where earlier controllers ended. They work on a `LiveStudy`, which has the `TrialRegistry`,
the `BudgetAccount`, and the `Outbox` for what is to be committed and done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from studies.control import endings, epochs, resuming, starting
from studies.control.budget_account import BudgetAccount
from studies.control.checkpoints import Milestone
from studies.control.commands import DrainGang, Grant, Step
from studies.control.live import LiveStudy, WornSlots, decision
from studies.control.next_trial import NextTrial
from studies.control.outbox import Outbox
from studies.control.setup import StudySetup
from studies.control.trial_registry import TrialRegistry
from studies.control.trials import Attempt, Trial, remembered
from studies.gangs.protocol import (
    DrainRequested,
    Event,
    GangFailed,
    GangStarted,
    Measured,
    SlotsReady,
    SuggestionFailed,
    Tick,
    TrialQueued,
)
from studies.records import StopReason, StudyState
from studies.resume_state import Memory
from studies.search.policy import Decision, Thaw, stop_for_good
from studies.storage.changes import StudyChanged
from trainers.protocol import Measurement

PickSlots = Callable[[tuple[int, ...], int], tuple[int, ...]]

ENDS_AS: Mapping[StopReason, StudyState] = {"interrupted": "drained", "stopped": "drained", "error": "failed"}
"""What a study becomes by the reason for its end; closed by all others."""
CUT = "the budget was used up within an epoch; goes on from its last checkpoint"


class StudyMachine:
    """Decides everything in a study.

    Args:
        setup: The study's settings.
        memory: What earlier controllers left.
        alive_since: When this controller took the lease, in seconds.
        pick: Which of the free slots a gang of so many ranks should get; the pool knows nodes and standing groups.
        worn: Which of some slots should get a new process before another trial; the pool knows their processes.
    """

    def __init__(
        self, setup: StudySetup, memory: Memory, *, alive_since: float, pick: PickSlots, worn: WornSlots
    ) -> None:
        self.setup = setup
        self.state: StudyState = "running"
        self.stop_reason: StopReason | None = None
        self._pick = pick
        outbox = self._outbox = Outbox()
        self._account = BudgetAccount(
            setup,
            outbox,
            spent_nano_usd=memory.spent_nano_usd,
            alive_seconds=memory.alive_seconds,
            alive_since=alive_since,
        )
        self._registry = TrialRegistry(map(remembered, memory.trials))
        rungs = (*setup.policy.pruner.rungs(setup.epochs), setup.epochs)
        self._live = LiveStudy(
            setup=setup,
            outbox=outbox,
            account=self._account,
            registry=self._registry,
            now=alive_since,
            worn=worn,
            rungs=rungs,
            watched=frozenset({*rungs, *setup.milestones, *setup.watched}),
            reference_frozen=setup.reference_point is not None,
        )
        self._drain_reason: StopReason | None = None
        self._winds_down_after = math.inf
        self._all_told_to_drain = False
        self._next_trial = NextTrial(self._live)
        resuming.remember(self._live, memory)

    # ------------------------------------------------------------------ what others may look at

    @property
    def trials(self) -> Mapping[int, Trial]:
        """All trials by id."""
        return self._registry.by_id

    @property
    def now(self) -> float:
        """The moment of the latest event, in seconds."""
        return self._live.now

    @property
    def finished(self) -> bool:
        """Whether this controller has nothing left to do."""
        return self.state != "running"

    @property
    def running(self) -> list[Trial]:
        """Trials that hold slots."""
        return [trial for trial in self._registry.in_state("running") if trial.attempt is not None]

    @property
    def archive(self) -> list[Milestone]:
        """The non-dominated milestones so far."""
        return self._live.keeper.archive

    @property
    def spent_nano_usd(self) -> int:
        """Sum of the ledger."""
        return self._account.spent_nano_usd

    @property
    def overshoot_nano_usd(self) -> int:
        """By how much the budget was passed."""
        return self._account.overshoot_nano_usd

    @property
    def deadline(self) -> float:
        """The moment at which the budget's dollars or hours are gone; infinite without such a limit."""
        return self._account.deadline

    @property
    def draining(self) -> bool:
        """Whether nothing is started any more: every gang was told to stop, or the budget is nearly used up."""
        return self._drain_reason is not None or self.now > self._winds_down_after

    @property
    def reserved_until(self) -> float:
        """The latest moment promised to a gang."""
        return max((trial.attempt.promised_until for trial in self.running if trial.attempt), default=self.now)

    # ------------------------------------------------------------------ what the shell calls

    def reopen(self, closed: Iterable[int]) -> None:
        """Trials that were pruned because the study closed are paused again. Call before `begin`."""
        resuming.reopen(self._live, closed)

    def begin(self, now: float) -> Step:
        """Close gaps that a death left, and tell whether there is anything to do at all."""
        self._live.now = now
        resuming.pick_up_lost(self._live)
        if reason := self.nothing_left():
            self._finish(reason)
        return self._step()

    def pool_opened(self, now: float) -> Step:
        """From now on the slots cost money."""
        self._live.now = now
        self._account.open(now)
        self._next_trial.want_suggestion()
        return self._step()

    def pool_refused(self, message: str, now: float) -> Step:
        """There are no slots to train on: the study has failed, and goes on when there are."""
        self._live.now = now
        self._drain("error", message)
        self._finish("error")
        return self._step()

    def handle(self, events: Sequence[Event], now: float) -> Step:
        """The answer to what happened. Events of attempts that are over are ignored.

        Free slots are filled once all of it is known, so that the policy chooses with the latest measurements.
        """
        self._live.now = max(now, self.now)
        for event in events:
            self._take_in(event)
        if not self.setup.limits.is_worthwhile(self._live.worth_percents):
            self._drain("not_worthwhile")
        self._fill_slots()
        if not self.draining:
            self._next_trial.prepare()
        self._finish_if_done()
        return self._step()

    def _take_in(self, event: Event) -> None:
        match event:
            case SlotsReady():
                self._live.free.update(event.slots)
            case TrialQueued():
                self._next_trial.queued(event)
            case GangStarted():
                self._started(event)
            case Measured():
                self._measured(event)
            case GangFailed():
                self._failed(event)
            case DrainRequested():
                self._drain(event.reason, event.message)
            case SuggestionFailed():
                self._drain("error", event.message)
            case Tick():
                self._tick()

    # ------------------------------------------------------------------ free slots

    def _fill_slots(self) -> None:
        live = self._live
        while live.free and self._account.is_open and not self.draining and not self.finished:
            chosen = self._next_trial.trial()
            if chosen is None:
                return
            trial, thaw = chosen
            if trial.world_size > self.setup.slots:
                self._refuse(trial)
                return
            # A trial that needs more slots than are free keeps them from smaller ones behind it, or it would starve.
            if trial.world_size > len(live.free):
                return
            if not self._start(trial, thaw):
                return

    def _start(self, trial: Trial, thaw: Thaw | None) -> bool:
        """Dispatch the trial, unless the budget is too small for one epoch of it."""
        promise = self._account.promise(trial, self.now, starting=True)
        last = promise is None
        promise = promise or self._account.promise(trial, self.now, starting=True, epochs=1)
        if promise is None:
            self._wind_down()
            return False
        is_fresh = trial.number is None
        slots = tuple(sorted(self._pick(tuple(sorted(self._live.free)), trial.world_size)))
        attempt = starting.start(self._live, trial, thaw, slots, promise)
        if last:
            self._tell_to_drain(trial, attempt)
            self._wind_down()
        if is_fresh:
            self._next_trial.want_suggestion()
        return True

    def _refuse(self, trial: Trial) -> None:
        """It would wait for ever, and all behind it: a study that was resumed on fewer slots."""
        name = f"trial {trial.number}" if trial.number is not None else "a queued trial"
        self._drain("error", f"{name} needs {trial.world_size} slots, the study has {self.setup.slots}")

    # ------------------------------------------------------------------ a trial's way through a gang

    def _started(self, event: GangStarted) -> None:
        trial = self._registry.held_by(event.trial_id, event.attempt)
        if trial is not None and trial.attempt is not None:
            starting.first_step(self._live, trial, trial.attempt, event.facts)

    def _measured(self, event: Measured) -> None:
        trial = self._registry.held_by(event.trial_id, event.attempt)
        if trial is None or trial.attempt is None:
            return
        trial.attempt.hung_after = self._account.hung_after(trial, self.now)
        if event.measurement.epoch <= trial.epochs_done:
            epochs.repeat(self._live, trial, event.measurement)
            if event.measurement.complete:
                endings.complete(self._live, trial)
            elif event.measurement.ended:
                endings.pause(self._live, trial, "drain", "drained; goes on from its last checkpoint")
            else:
                self._renew_promise(trial, trial.attempt)
        elif epochs.record(self._live, trial, event.measurement):
            self._go_on_or_end(trial, trial.attempt, event.measurement)

    def _go_on_or_end(self, trial: Trial, attempt: Attempt, measurement: Measurement) -> None:
        must_stop = self._must_stop(trial, attempt)
        if measurement.epoch >= self.setup.epochs or measurement.complete:
            endings.complete(self._live, trial)
        elif must_stop and (measurement.epoch == attempt.until or measurement.ended):
            self._live.decided(trial, must_stop)
            endings.prune(self._live, trial, must_stop.reason)
        elif measurement.epoch == attempt.until:
            self._at_rung(trial, attempt, measurement)
        elif measurement.ended:
            endings.pause(self._live, trial, "drain", f"drained after epoch {measurement.epoch}")
        elif must_stop:
            attempt.stop_reason = must_stop.reason
            self._tell_to_drain(trial, attempt)
        else:
            self._renew_promise(trial, attempt)

    def _must_stop(self, trial: Trial, attempt: Attempt) -> Decision | None:
        """The end of a trial that nobody has to rank: it can never become feasible, or its own budget is used up.

        It ends at its rung, or before that at the next epoch's end.
        """
        if never := stop_for_good(trial.last_metrics, self.setup.constraints):
            return never
        limits = self.setup.limits
        reason = attempt.stop_reason or limits.trial_reason(trial.paid_nano_usd, trial.wall_seconds) or ""
        return decision("stop", reason) if reason else None

    def _at_rung(self, trial: Trial, attempt: Attempt, measurement: Measurement) -> None:
        rung = measurement.epoch
        made = self.setup.policy.at_rung(self._live.look(), trial.started_number, rung)
        self._live.decided(trial, made)
        match made.action:
            case "stop":
                endings.prune(self._live, trial, made.reason)
            case "pause":
                self._live.history.paused[trial.started_number] = rung
                endings.pause(self._live, trial, "policy", made.reason)
                self._evict_if_crowded()
            case "continue" if measurement.ended or self._all_told_to_drain:
                endings.pause(self._live, trial, "drain", f"drained after epoch {rung}")
            case "continue":
                self._grant(trial, attempt, rung)

    def _evict_if_crowded(self) -> None:
        """Checkpoints of paused trials have a limit: the one worth least goes, by the policy or by its age."""
        live, most = self._live, self.setup.most_paused
        while most is not None and len(live.history.paused) > most:
            number = self.setup.policy.worth_least(live.look())
            endings.evict(live, live.registry.numbered(number), most)

    def _grant(self, trial: Trial, attempt: Attempt, rung: int) -> None:
        """Let it go on from its rung; if the budget has but one epoch left for it, like the others for that one."""
        promise = self._account.promise(trial, self.now, starting=False)
        last = promise is None
        promise = promise or self._account.promise(trial, self.now, starting=False, epochs=1)
        if promise is None:
            endings.pause(self._live, trial, "drain", f"drained after epoch {rung}")
            self._wind_down()
            return
        attempt.promised_until = promise
        attempt.until = next(epoch for epoch in self._live.rungs if epoch > rung)
        self._outbox.order(Grant(trial_id=trial.id, attempt=attempt.number, until=attempt.until))
        if last:
            self._tell_to_drain(trial, attempt)
            self._wind_down()

    def _renew_promise(self, trial: Trial, attempt: Attempt) -> None:
        promise = self._account.promise(trial, self.now, starting=False)
        if promise is not None:
            attempt.promised_until = promise
        else:
            self._tell_to_drain(trial, attempt)
            self._wind_down()

    def _failed(self, event: GangFailed) -> None:
        trial = self._registry.held_by(event.trial_id, event.attempt)
        if trial is None or trial.attempt is None:
            return
        # Time that showed that a configuration diverges was not wasted: it is the trial's.
        is_train = event.failure == "diverged" and trial.attempt.started
        self._account.charge_trial(trial, "train" if is_train else "lost", self.now)
        if event.slots_usable:
            self._live.free.update(trial.attempt.slots)
        endings.lose(self._live, trial, event.failure, event.message)

    # ------------------------------------------------------------------ the watchdog

    def _tick(self) -> None:
        if self.now >= self._account.deadline:
            for trial in self.running:
                endings.cut(self._live, trial, CUT)
            self._drain(self._account.binding)
            return
        for trial in self.running:
            if trial.attempt is not None:
                self._look_at(trial, trial.attempt)

    def _look_at(self, trial: Trial, attempt: Attempt) -> None:
        """A gang that is slower than its bound gets more time if the budget has it, else it ends with this epoch."""
        if self.now >= attempt.hung_after:
            endings.hang(self._live, trial)
        elif self.now >= attempt.promised_until and not self._account.extend(attempt, self.now):
            self._tell_to_drain(trial, attempt)
            self._wind_down()

    # ------------------------------------------------------------------ draining and closing

    def _wind_down(self) -> None:
        """What is left of the budget is too little for some gang, though it may do for others that run.

        What can start at this very moment may still train the one epoch that gangs told to drain train as well, so that
        a study with more budget goes on with all of them in step.
        """
        self._winds_down_after = min(self._winds_down_after, self.now)

    def _drain(self, reason: StopReason, message: str = "") -> None:
        if message:
            self._outbox.write(StudyChanged(columns={"error": message}))
        if self._all_told_to_drain or self.finished:
            return
        self._all_told_to_drain = True
        self._drain_reason = reason
        for trial in self.running:
            # Somebody is waiting at the keyboard: what has not ended an epoch yet has nothing to lose but that epoch.
            if reason in {"interrupted", "stopped"} and trial.epochs_done == 0:
                endings.cut(self._live, trial, "interrupted before its first epoch ended")
            elif trial.attempt is not None:
                self._tell_to_drain(trial, trial.attempt)

    def _tell_to_drain(self, trial: Trial, attempt: Attempt) -> None:
        if not attempt.draining:
            attempt.draining = True
            self._outbox.order(DrainGang(trial_id=trial.id, attempt=attempt.number))

    def nothing_left(self) -> StopReason | None:
        """Why there is nothing to do even if slots were free, or None. Call before the pool is opened."""
        return self._account.used_up() or self._next_trial.why_none()

    def _finish_if_done(self) -> None:
        if self.finished or not self._account.is_open or self.running:
            return
        if self._drain_reason is None and self.now >= self._winds_down_after:
            self._finish(self._account.binding)
        elif reason := self._drain_reason or self._next_trial.why_none():
            self._finish(reason)

    def _finish(self, reason: StopReason) -> None:
        self.stop_reason = reason
        self.state = ENDS_AS.get(reason, "closed")
        endings.end_study(self._live, self.state, reason)

    def _step(self) -> Step:
        """Hand over what has piled up, with what is reserved at this moment."""
        if self._outbox.has_changes:
            columns = self._account.reserved(self.now, self.now if self.finished else self.reserved_until)
            if columns is not None:
                self._outbox.write(StudyChanged(columns=columns))
        return self._outbox.take()
