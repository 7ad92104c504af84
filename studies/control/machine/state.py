"""The study as a state machine: events and the time in, rows to commit and commands out. No I/O, clock or randomness.

    handle(events, now) -> Step(changes, commands)

The same machine drives Ray and the simulated pool. Its rules, in the order in which a study meets them:

* a free slot gets drained or lost trials first, then what the policy chooses (`_fill_slots`);
* an epoch is charged and recorded; then the gang trains on, the policy decides, or the trial ends (`Granting`);
* money and hours are a deadline: a gang that is not expected to end two more epochs before it trains one more and
  drains (`Granting`), and its slots go to whatever is expected to fit (`RestOfBudget`);
* what is kept of the budget trains leaders of the archive to their last epoch (`Finishing`);
* a gang on a node that will be taken away drains (`Draining`);
* where an autoscaler brings the slots, those that are not needed any more are let go (`SlotNeeds`);
* a gang without a sign of life is killed, and its trial goes on from its checkpoint (`_tick`).

Its parts: `NextTrial` chooses a trial, `starting` dispatches it, `granting` says how far it trains, `epochs` records
its epochs, `endings` end an attempt, `draining` ends the study in order, `resuming` restores what earlier controllers
stored. They work on a `LiveStudy`, which has the `TrialRegistry`, the `BudgetAccount`, and the `Outbox` with rows to
commit and commands to carry out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from studies.control.files.kept_files import Milestone
from studies.control.machine import endings, restoring, starting
from studies.control.machine.autoscaling import SlotNeeds, SpareSlots
from studies.control.machine.budget_account import BudgetAccount
from studies.control.machine.commands import Outbox, Step
from studies.control.machine.draining import Draining
from studies.control.machine.finishing import Finishing
from studies.control.machine.granting import Granting
from studies.control.machine.live_study import LiveStudy, WornSlots
from studies.control.machine.live_trials import Attempt, Trial, restored
from studies.control.machine.next_trial import NextTrial
from studies.control.machine.rest_of_budget import RestOfBudget
from studies.control.machine.study_setup import StudySetup
from studies.control.machine.trial_registry import TrialRegistry
from studies.control.machine.watchdog import Watchdog
from studies.gangs.pool_protocol import (
    CancelRequested,
    DrainRequested,
    Event,
    GangFailed,
    GangStarted,
    Measured,
    ParameterAsked,
    PartSaved,
    PriceSet,
    Progress,
    SlotsLeaving,
    SlotsLost,
    SlotsReady,
    SuggestionFailed,
    Tick,
    TrialQueued,
)
from studies.records.records import CANCELLABLE_STATES, StopReason, StudyState
from studies.records.resume_state import ResumeState
from studies.storage.writing.changes import StudyChanged

PickSlots = Callable[[tuple[int, ...], int], tuple[int, ...]]

ENDS_AS: Mapping[StopReason, StudyState] = {
    "interrupted": "drained",
    "stopped": "drained",
    "storage": "drained",
    "error": "failed",
}
"""State of a study by the reason for its end; closed by all other reasons."""
CUT = "the budget was used up within an epoch; goes on from its last checkpoint"


class StudyMachine:
    """Decides everything in a study.

    Args:
        alive_since: Moment at which this controller took the lease, in seconds since 1970.
        pick: Function of the pool: which of the free slots a gang of so many ranks should get.
        worn: Function of the pool: which of some slots should get a new process before another trial.
        spare: Function of the pool: which of the free slots to let go.
    """

    def __init__(
        self,
        setup: StudySetup,
        resume_state: ResumeState,
        *,
        alive_since: float,
        pick: PickSlots,
        worn: WornSlots,
        spare: SpareSlots = lambda free, count: free[:count],
    ) -> None:
        self.setup = setup
        self.state: StudyState = "running"
        self.stop_reason: StopReason | None = None
        self._pick = pick
        outbox = Outbox()
        account = BudgetAccount(
            setup,
            outbox,
            spent_nano_usd=resume_state.spent_nano_usd,
            alive_seconds=resume_state.alive_seconds,
            alive_since=alive_since,
        )
        self._live = LiveStudy(
            setup=setup,
            outbox=outbox,
            account=account,
            registry=TrialRegistry(map(restored, resume_state.trials)),
            now=alive_since,
            watchdog=Watchdog(setup.faults, alive_since),
            worn=worn,
            rungs=setup.rungs,
            watched=setup.looked_at,
            reference_frozen=setup.reference_point is not None,
        )
        self._draining = Draining(self._live)
        finishing = Finishing(self._live)
        self._granting = Granting(self._live, self._draining, finishing)
        self._next_trial = NextTrial(self._live, finishing)
        self._rest_of_budget = RestOfBudget(self._live)
        self.slot_needs = SlotNeeds(self._live, self._draining, spare)
        restoring.restore(self._live, resume_state)

    # ------------------------------------------------------------------ for readers

    @property
    def trials(self) -> Mapping[int, Trial]:
        """All trials by id."""
        return self._live.registry.by_id

    @property
    def now(self) -> float:
        """Moment of the latest event, in seconds since 1970."""
        return self._live.now

    @property
    def finished(self) -> bool:
        """Whether this controller has nothing left to do."""
        return self.state != "running"

    @property
    def running(self) -> list[Trial]:
        """Trials that hold slots."""
        return self._live.registry.running

    @property
    def archive(self) -> list[Milestone]:
        """The non-dominated milestones so far."""
        return self._live.keeper.archive

    @property
    def spent_nano_usd(self) -> int:
        """Sum of the ledger."""
        return self._live.account.spent_nano_usd

    @property
    def overshoot_nano_usd(self) -> int:
        """Nano-dollars spent beyond the budget."""
        return self._live.account.overshoot_nano_usd

    @property
    def deadline(self) -> float:
        """Moment at which dollars or hours are used up, in seconds since 1970; infinite without such a limit."""
        return self._live.account.deadline

    @property
    def cut_at(self) -> float:
        """Moment at which running epochs are cut, a little before the deadline, in seconds since 1970."""
        return self._live.account.cut_at

    @property
    def draining(self) -> bool:
        """Whether nothing is started any more: every gang was told to stop, or nothing fits into the budget's rest."""
        return self._draining.starts_nothing

    @property
    def reserved_until(self) -> float:
        """Latest moment promised to a gang, in seconds since 1970."""
        return max((trial.attempt.promised_until for trial in self.running if trial.attempt), default=self.now)

    # ------------------------------------------------------------------ for the controller

    def reopen(self, closed: Iterable[int]) -> None:
        """Pause the trials that were pruned only because the study closed. Call before `begin`."""
        restoring.reopen(self._live, closed)

    def begin(self, now: float) -> Step:
        """Pause the trials of a dead controller, and finish at once if there is nothing to do."""
        self._live.now = now
        restoring.pick_up_lost(self._live)
        if reason := self.nothing_left():
            self._finish(reason)
        return self._step()

    def pool_opened(self, now: float) -> Step:
        """Start charging for the slots, and ask for the first suggestion."""
        self._live.now = now
        self._live.account.open(now)
        self._next_trial.want_suggestion()
        self.slot_needs.opened()
        return self._step()

    def pool_refused(self, message: str, now: float) -> Step:
        """Fail the study since it has no slots to train on; it can be resumed."""
        self._live.now = now
        self._draining.drain("error", message)
        self._finish("error")
        return self._step()

    def handle(self, events: Sequence[Event], now: float) -> Step:
        """Answer events that happened together; those of attempts that are over are ignored.

        Free slots are filled after the last event, so that the policy chooses with the latest measurements.
        """
        self._live.now = max(now, self.now)
        for event in events:
            self._take_in(event)
        if not self.setup.limits.is_worthwhile(self._live.worth_percents):
            self._draining.drain("not_worthwhile")
        has_no_use = self._fill_slots()
        if not self.draining:
            self._next_trial.prepare()
        self._finish_if_done()
        if not self.finished:
            self.slot_needs.look(has_no_use=has_no_use)
        return self._step()

    def _take_in(self, event: Event) -> None:
        match event:
            case SlotsReady():
                self._live.gain(event.slots)
            case SlotsLost():
                self._live.lose(event.slots, with_device=event.with_device)
            case SlotsLeaving():
                self._live.leave(event.slots)
                self._draining.drain_leaving()
            case TrialQueued():
                self._next_trial.queued(event)
            case CancelRequested():
                self._cancelled(event)
            case PriceSet():
                self._live.account.price_changed(event.usd_per_slot_hour, self.now)
            case GangStarted() | Measured() | ParameterAsked() | PartSaved() | Progress() | GangFailed():
                self._of_gang(event)
            case DrainRequested():
                self._draining.drain(event.reason, event.message)
            case SuggestionFailed():
                self._draining.drain("error", event.message)
            case Tick():
                self._tick(event)

    # ------------------------------------------------------------------ free slots

    def _fill_slots(self) -> bool:
        """Start trials; returns whether a slot is free for which there is none."""
        live = self._live
        self._draining.look_again()
        while live.free and live.account.is_open and not self.draining and not self.finished:
            chosen = self._next_trial.trial()
            if chosen is None:
                return True
            if live.ranks(chosen[0]) > live.slots:
                self._draining.refuse(chosen[0])
                break
            chosen = self._rest_of_budget.choose(chosen)
            if chosen is None:
                self._draining.nothing_fits = True
                break
            trial, thaw = chosen
            # A trial that needs more slots than are free keeps them from smaller ones behind it, or it would starve.
            ranks = live.ranks(trial)
            if ranks > len(live.free):
                break
            is_fresh = trial.number is None
            self._granting.start(trial, thaw, tuple(sorted(self._pick(tuple(sorted(live.free)), ranks))))
            if is_fresh:
                self._next_trial.want_suggestion()
        return False

    def _cancelled(self, event: CancelRequested) -> None:
        trial = self.trials.get(event.trial_id)
        if trial is not None and trial.state in CANCELLABLE_STATES:
            endings.cancel(self._live, trial)
            if not self.draining:  # it may have been what the next free slot would have taken
                self._next_trial.want_suggestion()

    # ------------------------------------------------------------------ events of gangs

    def _of_gang(self, event: GangStarted | Measured | ParameterAsked | PartSaved | Progress | GangFailed) -> None:
        live = self._live
        trial = live.registry.held_by(event.trial_id, event.attempt)
        if trial is None or trial.attempt is None:
            return
        match event:
            case GangStarted():
                starting.first_step(live, trial, trial.attempt, event.facts, event.seconds)
            case Measured():
                self._granting.measured(trial, trial.attempt, event)
            case ParameterAsked():
                starting.note(live, trial, event)
            case PartSaved():
                self._granting.part_saved(trial, trial.attempt, event)
            case Progress():
                live.watchdog.heard(trial.id, is_first=event.is_first)
                trial.attempt.heard(event, has_part=trial.part.seconds > 0)
                self._granting.progressed(trial, trial.attempt, event)
            case GangFailed():
                self._failed(trial, trial.attempt, event)

    def _failed(self, trial: Trial, attempt: Attempt, event: GangFailed) -> None:
        # Time that showed that a configuration diverges was not wasted: it is the trial's.
        is_train = event.failure == "diverged" and attempt.started
        self._live.account.charge_trial(trial, "train" if is_train else "lost", self.now)
        endings.lose(self._live, trial, event.failure, event.message, counts=event.counts)
        if event.failure == "storage":  # the others would fail, too, and money be spent on epochs that cannot be kept
            self._draining.drain("storage", event.message)

    # ------------------------------------------------------------------ the watchdog

    def _tick(self, event: Tick) -> None:
        if self.now >= self.cut_at:
            for trial in self.running:
                endings.cut(self._live, trial, CUT)
            self._draining.drain(self._live.account.binding)
            return
        hung = self._live.watchdog.hung(self.now)
        self._live.account.looked(event.late_seconds)
        for trial in self.running:
            if trial.id in hung:
                endings.hang(self._live, trial, hung[trial.id])
            elif trial.attempt is not None and self.now >= trial.attempt.promised_until:
                self._granting.outlived_promise(trial, trial.attempt)

    # ------------------------------------------------------------------ the end

    def nothing_left(self) -> StopReason | None:
        """Why there is nothing to do even if slots were free, or None. Call before the pool is opened."""
        return self._live.account.used_up() or self._next_trial.why_none()

    def _finish_if_done(self) -> None:
        if self.finished or not self._live.account.is_open or self.running:
            return
        if self._draining.reason is None and self._draining.nothing_fits:
            self._finish(self._live.account.binding)
        elif reason := self._draining.reason or self._next_trial.why_none():
            self._finish(reason)

    def _finish(self, reason: StopReason) -> None:
        self.stop_reason = reason
        self.state = ENDS_AS.get(reason, "closed")
        endings.end_study(self._live, self.state, reason)

    def _step(self) -> Step:
        """Return rows and commands so far, the reference point if it is due, and what is reserved at this moment."""
        outbox = self._live.outbox
        if self._live.reference_due:
            self._live.reference_due = False
            endings.freeze(self._live)
        if outbox.has_changes:
            columns = self._live.account.reserved(self.now, self.now if self.finished else self.reserved_until)
            if columns is not None:
                outbox.write(StudyChanged(columns=columns))
        return outbox.take()
