"""A study as a state machine without I/O, clock or randomness, used on Ray and in simulations.

    handle(events, now) -> Step(changes, commands)

* A free slot first resumes interrupted trials, then follows the policy's choice (`_fill_slots`).
* After a recorded epoch the trial continues, the policy decides, or the trial ends (`Granting`).
* A trial that will probably not end two more epochs before the deadline stops after one epoch (`Granting`), and its
  slots go to a trial that fits (`RestOfBudget`).
* A share of the budget is kept to train the best trials to their last epoch (`Finishing`).
* A trial on a node that will soon be removed stops with a checkpoint (`Draining`).
* An autoscaler's slots that no trial needs are released (`SlotNeeds`).
* A trial that hangs is killed, and continues from its checkpoint (`_tick`).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from studies.control.files.kept_files import Milestone
from studies.control.machine import epochs, granting, trial_endings
from studies.control.machine.budget_account import BudgetAccount
from studies.control.machine.draining import Draining, SlotNeeds, SpareSlots
from studies.control.machine.finishing import Finishing, RestOfBudget
from studies.control.machine.granting import Granting
from studies.control.machine.live_study import LiveStudy, TrialRegistry, WornSlots
from studies.control.machine.live_trials import Attempt, Trial, restored
from studies.control.machine.next_trial import NextTrial
from studies.control.machine.study_setup import ClosePool, Outbox, Step, StudySetup
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
from studies.records.records import CANCELLABLE_STATES, ResumeState, StopReason, StudyState
from studies.results.baselines import trials_of
from studies.results.constraints import is_feasible
from studies.results.pareto import reference_coordinate
from studies.storage.writing.changes import (
    AttemptChanged,
    AttemptColumns,
    PoolChanged,
    StudyChanged,
    StudyColumns,
    TrialChanged,
    TrialColumns,
    ViewsToRebuild,
)

PickSlots = Callable[[tuple[int, ...], int], tuple[int, ...]]

ENDS_AS: Mapping[StopReason, StudyState] = {
    "interrupted": "drained",
    "stopped": "drained",
    "storage": "drained",
    "error": "failed",
}
"""State of a study by the reason of its end; other reasons close it."""
CUT = "the budget was used up within an epoch; continues from its last checkpoint"


class StudyMachine:
    """Makes all decisions of a running study.

    The pool's functions choose free slots for a trial (`pick`), slots that need a new process (`worn`) and free slots
    to release (`spare`). The controller took the lease at `alive_since`, in seconds since 1970.
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
        restore(self._live, resume_state)

    @property
    def trials(self) -> Mapping[int, Trial]:
        """All trials by id."""
        return self._live.registry.by_id

    @property
    def now(self) -> float:
        """Time of the latest event, in seconds since 1970."""
        return self._live.now

    @property
    def finished(self) -> bool:
        """Return whether the study has ended or stopped."""
        return self.state != "running"

    @property
    def measures_at_end(self) -> bool:
        """Return whether models are measured or described after the search."""
        return self._live.has_test_part or self._live.can_explain

    @property
    def explain_seconds(self) -> float:
        """Seconds for describing the recommended model's predictions."""
        return self._live.account.explain_seconds(self.now)

    @property
    def usd_per_slot_hour(self) -> float:
        """Current price of a slot."""
        return self._live.account.usd_per_slot_hour

    @property
    def free_slots(self) -> tuple[int, ...] | None:
        """Slots without a trial; None if the pool lost or gained slots."""
        live = self._live
        return None if live.missing or live.leaving or live.joined else tuple(sorted(live.free))

    @property
    def running(self) -> list[Trial]:
        """Trials that run on slots."""
        return self._live.registry.running

    @property
    def archive(self) -> list[Milestone]:
        """Non-dominated models of all trials and epochs."""
        return self._live.keeper.archive

    @property
    def spent_nano_usd(self) -> int:
        """Sum of all charges."""
        return self._live.account.spent_nano_usd

    @property
    def overshoot_nano_usd(self) -> int:
        """Nano-dollars spent above the budget."""
        return self._live.account.overshoot_nano_usd

    @property
    def deadline(self) -> float:
        """Time at which dollars or hours are used up, in seconds since 1970; infinite without limits."""
        return self._live.account.deadline

    @property
    def cut_at(self) -> float:
        """Time at which unfinished epochs are stopped, in seconds since 1970."""
        return self._live.account.cut_at

    @property
    def draining(self) -> bool:
        """Return whether no trial may start: all must stop, or none fits into the budget."""
        return self._draining.starts_nothing

    @property
    def reserved_until(self) -> float:
        """Latest time reserved for a running trial, in seconds since 1970."""
        return max((trial.attempt.promised_until for trial in self.running if trial.attempt), default=self.now)

    def reopen(self, closed: Iterable[int]) -> None:
        """Make trials resumable that were pruned because the study closed. Call it before `begin`."""
        for trial_id in closed:
            trial = self.trials[trial_id]
            self._live.registry.move(trial, "paused")
            columns: TrialColumns = {"state": "paused", "reason": "waits: the study was reopened", "ended_at": None}
            self._live.outbox.write(TrialChanged(trial_id=trial_id, columns=columns))
            _wait_for_policy(self._live, trial)
        self._live.outbox.write(ViewsToRebuild())

    def begin(self, now: float) -> Step:
        """Pause trials that a dead controller left running; finish the study if nothing is left to do."""
        self._live.now = now
        pick_up_lost(self._live)
        if reason := self.nothing_left():
            self._finish(reason)
        return self._step()

    def pool_opened(self, now: float) -> Step:
        """Start to charge slots, and request the first suggestion."""
        self._live.now = now
        self._live.account.open(now)
        self._next_trial.want_suggestion()
        self.slot_needs.opened()
        return self._step()

    def pool_refused(self, message: str, now: float) -> Step:
        """Fail the study, which can be resumed later."""
        self._live.now = now
        self._draining.drain("error", message)
        self._finish("error")
        return self._step()

    def handle(self, events: Sequence[Event], now: float) -> Step:
        """Handle events, then start trials on free slots. Ignores events of ended attempts."""
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

    def _fill_slots(self) -> bool:
        """Start trials on free slots. Returns True if slots remain free for lack of trials."""
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
            # Smaller trials behind this one must not take the free slots, or this one would starve.
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
            trial_endings.cancel(self._live, trial)
            if not self.draining:  # the cancelled trial may have been the next to start
                self._next_trial.want_suggestion()

    def _of_gang(self, event: GangStarted | Measured | ParameterAsked | PartSaved | Progress | GangFailed) -> None:
        live = self._live
        trial = live.registry.held_by(event.trial_id, event.attempt)
        if trial is None or trial.attempt is None:
            return
        match event:
            case GangStarted():
                granting.first_step(live, trial, trial.attempt, event.facts, event.seconds)
            case Measured():
                self._granting.measured(trial, trial.attempt, event)
            case ParameterAsked():
                granting.note(live, trial, event)
            case PartSaved():
                self._granting.part_saved(trial, trial.attempt, event)
            case Progress():
                live.watchdog.heard(trial.id, is_first=event.is_first)
                trial.attempt.heard(event, has_part=trial.part.seconds > 0)
                self._granting.progressed(trial, trial.attempt, event)
            case GangFailed():
                self._failed(trial, trial.attempt, event)

    def _failed(self, trial: Trial, attempt: Attempt, event: GangFailed) -> None:
        # A trial pays for the training that shows that its configuration diverges.
        is_train = event.failure == "diverged" and attempt.started
        self._live.account.charge_trial(trial, "train" if is_train else "lost", self.now)
        trial_endings.lose(self._live, trial, event.failure, event.message, counts=event.counts)
        if event.failure == "storage":  # other trials would fail, too, and pay for lost epochs
            self._draining.drain("storage", event.message)

    def _tick(self, event: Tick) -> None:
        if self.now >= self.cut_at:
            for trial in self.running:
                trial_endings.cut(self._live, trial, CUT)
            self._draining.drain(self._live.account.binding)
            return
        hung = self._live.watchdog.hung(self.now)
        self._live.account.looked(event.late_seconds)
        for trial in self.running:
            if trial.id in hung:
                trial_endings.hang(self._live, trial, hung[trial.id])
            elif trial.attempt is not None and self.now >= trial.attempt.promised_until:
                self._granting.outlived_promise(trial, trial.attempt)

    def nothing_left(self) -> StopReason | None:
        """Return why the study has nothing to do even on free slots; None if it has."""
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
        end_study(self._live, self.state, reason)

    def _step(self) -> Step:
        outbox = self._live.outbox
        if self._live.reference_due:
            self._live.reference_due = False
            outbox.write(StudyChanged(columns={"reference_point": _automatic_reference(self._live)}))
        if outbox.changes:
            columns = self._live.account.reserved(self.now, self.now if self.finished else self.reserved_until)
            if columns is not None:
                outbox.write(StudyChanged(columns=columns))
        return outbox.take()


def restore(live: LiveStudy, resume_state: ResumeState) -> None:
    """Restore forecasts, the search's history, checkpoints and paused trials."""
    measured = [(stored.record, epoch) for stored in resume_state.trials for epoch in stored.record.epochs]
    measured.sort(key=lambda one: one[1].measured_at)
    if any(epoch.is_milestone for _, epoch in measured):
        live.saves = any(epoch.checkpoint for _, epoch in measured) or any(
            stored.record.resume_checkpoint for stored in resume_state.trials
        )
    for record, epoch in measured:
        trial = live.registry.by_id[record.id]
        values = epochs.hand_to_search(live, trial, epoch.epoch, epoch.metrics, is_milestone=epoch.is_milestone)
        if epoch.is_milestone:
            trial.milestones[epoch.epoch] = values
    of_baselines = {one.id for one in trials_of(live.setup.baselines, live.registry.started) if one is not None}
    # Of equal milestones, the first reported has the kept model; another may have been measured earlier.
    for record, epoch in sorted(measured, key=lambda one: one[1].checkpoint is None):
        if epoch.is_milestone and is_feasible(epoch.metrics, live.setup.constraints):
            values = live.registry.by_id[record.id].milestones[epoch.epoch]
            milestone = Milestone(trial_id=record.id, epoch=epoch.epoch, values=values, path=epoch.checkpoint)
            is_last = epoch.epoch == live.setup.epochs or (record.state == "complete" and epoch is record.epochs[-1])
            epochs.offer(live, milestone, is_last=is_last, is_baseline=record.id in of_baselines)
    for trial in live.registry.by_id.values():
        live.account.forecaster.saw_trial(trial.world_size, trial.whole_epoch_seconds)
        live.account.trained_slot_seconds += trial.slot_seconds
        live.outbox.release(live.keeper.go_on_from(trial.id, trial.resume_checkpoint))
    for path, size in resume_state.checkpoint_bytes.items():
        live.keeper.weigh(path, size)
    for trial in live.registry.in_state("paused"):
        _wait_for_policy(live, trial)


def _wait_for_policy(live: LiveStudy, trial: Trial) -> None:
    if trial.paused_by == "policy":
        live.history.paused[trial.started_number] = trial.epochs_done


def pick_up_lost(live: LiveStudy) -> None:
    """Pause trials that a dead controller left running."""
    for trial in live.registry.in_state("running"):
        columns: AttemptColumns = {"outcome": "interrupted", "ended_at": live.now, "charged_until": live.now}
        live.outbox.write(AttemptChanged(trial_id=trial.id, attempt=trial.attempts, columns=columns))
        trial_endings.mark_paused(live, trial, "fault", "its controller died; continues from its last checkpoint")
    running: StudyColumns = {"state": "running", "stop_reason": None, "error": None, "ended_at": None}
    live.outbox.write(StudyChanged(columns=running))


_LIMITS = ("usd", "hours", "trials", "usd_per_trial", "hours_per_trial")

ENDS_BY_BUDGET: frozenset[StopReason] = frozenset({"budget_usd", "budget_hours", "budget_trials"})
"""Reasons after which only more budget reopens a study."""


def closed_by(setup: StudySetup, usd_per_slot_hour: float) -> dict[str, float | None]:
    """Return the limits to store when the budget ends a study, to compare at a later launch."""
    return {**dataclasses.asdict(setup.limits), "usd_per_hour": setup.slots * usd_per_slot_hour}


def has_more(setup: StudySetup, stored: Mapping[str, float | None]) -> bool:
    """Return whether limits allow more than the limits `stored` at the study's end."""
    now = closed_by(setup, setup.usd_per_slot_hour)
    is_cheaper = _number(now["usd_per_hour"]) < _number(stored.get("usd_per_hour"))
    keeps_more = setup.limits.finish > (stored.get("finish") or 0.0)
    return is_cheaper or keeps_more or any(_number(now[name]) > _number(stored.get(name)) for name in _LIMITS)


def _number(limit: float | None) -> float:
    return math.inf if limit is None else limit


def end_study(live: LiveStudy, state: StudyState, reason: StopReason) -> None:
    """Close the pool, and record the study's state and stop reason."""
    if live.account.is_open:
        live.account.charge_idle(live.account.slots, live.now)
        live.outbox.write(PoolChanged(columns={"pool_closed_at": live.now}))
        live.outbox.order(ClosePool())
    if state == "closed":
        for trial in live.registry.in_state("paused"):  # more budget can reopen them
            live.registry.move(trial, "pruned")
            pruned: TrialColumns = {"state": "pruned", "reason": "closed", "ended_at": live.now}
            live.outbox.write(TrialChanged(trial_id=trial.id, columns=pruned))
        live.freeze_reference()
    columns: StudyColumns = {
        "state": state,
        "stop_reason": reason,
        "ended_at": live.now,
        "overshoot_nano_usd": live.account.overshoot_nano_usd,
    }
    if reason in ENDS_BY_BUDGET:
        columns["closed_by"] = closed_by(live.setup, live.account.usd_per_slot_hour)
    live.outbox.write(StudyChanged(columns=columns))


def _automatic_reference(live: LiveStudy) -> dict[str, float] | None:
    """Return the automatic reference point, computed like `pareto.reference_point`."""
    objectives = live.setup.objectives
    ends = [
        trial.ends_of(objectives, epoch, values, live.setup.epochs)
        for trial in live.registry.by_id.values()
        for epoch, values in trial.milestones.items()
    ]
    if not ends:
        return None
    columns = zip(objectives, zip(*ends, strict=True), strict=True)
    return {one.metric: one.signed(reference_coordinate(column)) for one, column in columns}
