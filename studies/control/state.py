"""The study as a state machine: an event and the time in, rows to commit and commands out. No I/O, clock or chance.

    handle(event, now) -> Step(changes, commands)

The same machine drives Ray and the simulated pool. Its rules, in the order in which a study meets them:

* a free slot goes on with drained or lost trials first, then does what the policy says (`_fill_slots`);
* an epoch is charged, recorded, and either granted on, decided about, or the trial's last (`_measured`);
* money and hours are a deadline; a gang whose next epoch might end after it is drained, and from then on the study
  winds down: the others go on as far as their own epochs fit (`_promise`);
* a gang without a sign of life is killed, and its trial goes on from its checkpoint (`_tick`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

from studies.control.checkpoints import CheckpointKeeper, Milestone, Released
from studies.control.commands import (
    ClosePool,
    Command,
    DeleteFile,
    DrainGang,
    EndGang,
    FreezeReference,
    Grant,
    KillGang,
    StartGang,
    Step,
    Suggest,
)
from studies.control.setup import MAX_LOST_ATTEMPTS, StudySetup
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
from studies.memory import Memory
from studies.money.budget import FIRST_GUESS_SECONDS, BudgetClock, Forecaster
from studies.money.ledger import SlotMeter
from studies.records import NANO, ChargeKind, StopReason
from studies.search.policy import Fresh, History, Thaw
from studies.storage.changes import (
    AttemptChanged,
    AttemptOpened,
    Change,
    Charged,
    CheckpointKept,
    Decided,
    EpochMeasured,
    PoolChanged,
    StudyChanged,
    TrialChanged,
    ViewsToRebuild,
)
from trainers.protocol import Failure, Measurement, TrialSpec

PickSlots = Callable[[tuple[int, ...], int], tuple[int, ...]]

EPOCHS_PROMISED = 2
"""A gang told to drain ends the epoch it is in; when the order is given it may just have begun the next one."""


class StudyMachine:
    """Decides everything in a study.

    Args:
        setup: The study's settings.
        memory: What earlier controllers left.
        alive_since: When this controller took the lease, in seconds.
        pick: Which of the free slots a gang of so many ranks should get; the pool knows nodes and standing groups.
    """

    def __init__(self, setup: StudySetup, memory: Memory, *, alive_since: float, pick: PickSlots) -> None:
        self.setup = setup
        self._pick = pick
        self.trials: dict[int, Trial] = {m.record.id: remembered(m) for m in memory.trials}
        self.state = "running"
        self.stop_reason: StopReason | None = None
        self.spent_nano_usd = memory.spent_nano_usd
        self.overshoot_nano_usd = memory.overshoot_nano_usd
        self.now = alive_since
        self._memory = memory
        self.alive_since = alive_since
        self._rungs = (*setup.policy.pruner.rungs(setup.epochs), setup.epochs)
        self._history = History()
        self._keeper = CheckpointKeeper()
        self._forecaster = Forecaster()
        self._free: set[int] = set()
        self._meter: SlotMeter | None = None
        self._clock: BudgetClock | None = None
        self._drain_reason: StopReason | None = None
        self._all_told_to_drain = False
        self._suggesting = False
        self._reference_frozen = setup.reference_point is not None
        self._changes: list[Change] = []
        self._commands: list[Command] = []
        self._remember(memory)

    # ------------------------------------------------------------------ what the shell calls

    @property
    def finished(self) -> bool:
        """Whether this controller has nothing left to do."""
        return self.state != "running"

    @property
    def running(self) -> list[Trial]:
        """Trials that hold slots."""
        return [trial for trial in self.trials.values() if trial.attempt is not None]

    @property
    def archive(self) -> list[Milestone]:
        """The non-dominated milestones so far."""
        return self._keeper.archive

    @property
    def deadline(self) -> float:
        """The moment at which the budget's dollars or hours are gone; infinite without such a limit."""
        return self._clock.deadline if self._clock else math.inf

    @property
    def draining(self) -> bool:
        """Whether nothing is started any more: every gang was told to stop, or the budget is nearly used up."""
        return self._drain_reason is not None

    @property
    def reserved_until(self) -> float:
        """The latest moment promised to a gang."""
        return max((trial.attempt.promised_until for trial in self.running if trial.attempt), default=self.now)

    def begin(self, now: float) -> Step:
        """Reopen what was closed, close gaps that a death left, and tell whether there is anything to do at all."""
        self.now = now
        self._pick_up_lost()
        if reason := self.nothing_left():
            self._finish(reason)
        return self._step()

    def pool_opened(self, now: float) -> Step:
        """From now on the slots cost money."""
        self.now = now
        setup = self.setup
        self._meter = SlotMeter(slots=setup.slots, usd_per_slot_hour=setup.usd_per_slot_hour, opened_at=now)
        self._clock = BudgetClock(
            limits=setup.limits,
            slots=setup.slots,
            usd_per_slot_hour=setup.usd_per_slot_hour,
            opened_at=now,
            alive_since=self.alive_since,
            spent_nano_usd=self.spent_nano_usd,
            alive_seconds=self._memory.alive_seconds,
        )
        columns = {
            "pool_opened_at": now, "pool_slots": setup.slots, "usd_per_slot_hour": setup.usd_per_slot_hour
        }  # fmt: skip
        self._changes.append(PoolChanged(columns=columns))
        self._want_suggestion()
        return self._step()

    def handle(self, event: Event, now: float) -> Step:
        """The answer to one event. Events of attempts that are over are ignored."""
        self.now = max(now, self.now)
        match event:
            case SlotsReady():
                self._free.update(event.slots)
            case TrialQueued():
                self._queued(event)
            case GangStarted():
                self._started(event)
            case Measured():
                self._measured(event)
            case GangFailed():
                self._failed(event)
            case DrainRequested():
                self._drain(event.reason)
                if event.message:
                    self._changes.append(StudyChanged(columns={"error": event.message}))
            case SuggestionFailed():
                self._drain("error")
                self._changes.append(StudyChanged(columns={"error": event.message}))
            case Tick():
                self._tick()
        self._fill_slots()
        self._finish_if_done()
        return self._step()

    # ------------------------------------------------------------------ memory

    def _remember(self, memory: Memory) -> None:
        epochs = [(m.record, epoch) for m in memory.trials for epoch in m.record.epochs]
        for record, epoch in sorted(epochs, key=lambda one: one[1].measured_at):
            self._forecaster.saw_epoch(record.world_size, epoch.wall_seconds)
            values = tuple(o.signed(epoch.metrics[o.metric]) for o in self.setup.objectives)
            if epoch.epoch in self._rungs and record.number is not None:
                self._history.at_rung.setdefault(epoch.epoch, {})[record.number] = values
            if epoch.is_milestone:
                milestone = Milestone(trial_id=record.id, epoch=epoch.epoch, values=values, path=epoch.checkpoint)
                self._release(self._keeper.offer(milestone, "archive")[1])
                if epoch.epoch == self.setup.epochs:
                    self._release(self._keeper.offer(milestone, "front")[1])
        for trial in self.trials.values():
            self._release(self._keeper.go_on_from(trial.id, trial.resume_checkpoint))
            if trial.state == "paused" and trial.paused_by == "policy" and trial.number is not None:
                self._history.paused[trial.number] = trial.epochs_done

    def _pick_up_lost(self) -> None:
        """Trials that a dead controller left running are paused at their last checkpoint; closed ones come back."""
        for trial in self.trials.values():
            if trial.state == "running":
                changed = AttemptChanged(
                    trial_id=trial.id,
                    attempt=trial.attempts,
                    columns={"outcome": "interrupted", "ended_at": self.now, "charged_until": self.now},
                )
                self._changes.append(changed)
                self._pause(trial, "fault", "its controller died; goes on from its last checkpoint")
        self._changes.append(StudyChanged(columns={"state": "running", "stop_reason": None, "ended_at": None}))

    def reopen(self, closed: Iterable[int]) -> None:
        """Trials that were pruned because the study closed are paused again. Call before `begin`."""
        for trial_id in closed:
            trial = self.trials[trial_id]
            trial.move("paused")
            columns = {"state": "paused", "reason": "waits: the study was reopened", "ended_at": None}
            self._changes.append(TrialChanged(trial_id=trial_id, columns=columns))
            if trial.paused_by == "policy" and trial.number is not None:
                self._history.paused[trial.number] = trial.epochs_done
        self._changes.append(ViewsToRebuild())

    # ------------------------------------------------------------------ free slots

    def _fill_slots(self) -> None:
        while self._meter is not None and not self.draining and not self.finished:
            chosen = self._next_trial()
            if chosen is None:
                return
            trial, thaw = chosen
            # A trial that needs more slots than are free keeps them from smaller ones behind it, or it would starve.
            if trial.world_size > len(self._free):
                return
            if not self._start(trial, thaw):
                return

    def _next_trial(self) -> tuple[Trial, Thaw | None] | None:
        returning = [t for t in self.trials.values() if t.state == "paused" and t.paused_by in {"drain", "fault"}]
        if returning:
            return min(returning, key=lambda t: t.number if t.number is not None else t.id), None
        action = self.setup.policy.for_free_slot(self._history, fresh_allowed=self._fresh_allowed)
        match action:
            case Thaw():
                return next(t for t in self.trials.values() if t.number == action.number), action
            case Fresh():
                return self._next_queued()
        return None

    def _next_queued(self) -> tuple[Trial, None] | None:
        queued = [trial for trial in self.trials.values() if trial.state == "queued"]
        if not queued:
            self._want_suggestion()
            return None
        return min(queued, key=lambda t: (t.origin == "sampler", t.id)), None

    @property
    def _started_count(self) -> int:
        return sum(trial.number is not None for trial in self.trials.values())

    @property
    def _fresh_allowed(self) -> bool:
        limit = self.setup.limits.trials
        return limit is None or self._started_count < limit

    def _want_suggestion(self) -> None:
        """Have one configuration ready ahead of time, as long as one more may be started."""
        if self._suggesting or self.draining or not self._fresh_allowed:
            return
        if any(trial.state == "queued" for trial in self.trials.values()):
            return
        self._suggesting = True
        started = sorted((t for t in self.trials.values() if t.number is not None), key=lambda t: t.number or 0)
        history = tuple(trial.told(self.setup.objectives, self.setup.epochs) for trial in started)
        self._commands.append(Suggest(number=self._started_count, history=history))

    def _queued(self, event: TrialQueued) -> None:
        self._suggesting = self._suggesting and event.origin != "sampler"
        self.trials[event.trial_id] = Trial(
            id=event.trial_id,
            number=None,
            state="queued",
            params=event.params,
            world_size=event.world_size,
            origin=event.origin,
            sampler_attributes=event.attributes,
        )

    # ------------------------------------------------------------------ a trial's way through a gang

    def _start(self, trial: Trial, thaw: Thaw | None) -> bool:
        """Dispatch the trial, unless the budget is too small for it."""
        promise = self._promise(trial, starting=True)
        if promise is None:
            self._wind_down()
            return False
        slots = tuple(sorted(self._pick(tuple(sorted(self._free)), trial.world_size)))
        is_repair = trial.paused_by == "fault"
        self._free.difference_update(slots)
        self._charge(slots, "idle")
        fresh = trial.number is None
        if fresh:
            trial.number = self._started_count
        trial.move("running")
        trial.attempts += 1
        until = next(rung for rung in self._rungs if rung > trial.epochs_done)
        trial.attempt = Attempt(
            number=trial.attempts,
            slots=slots,
            leased_at=self.now,
            until=until,
            promised_until=promise,
            hung_after=self.now + self.setup.deadlines.start,
            is_repair=is_repair,
        )
        self._history.paused.pop(trial.number if trial.number is not None else -1, None)
        self._write_start(trial, thaw, fresh=fresh)
        spec = self._trial_spec(trial)
        self._commands.append(StartGang(trial_id=trial.id, spec=spec, slots=slots, until=until))
        if fresh:
            self._want_suggestion()
        return True

    def _write_start(self, trial: Trial, thaw: Thaw | None, *, fresh: bool) -> None:
        columns: dict[str, object] = {"state": "running", "number": trial.number, "reason": "", "paused_by": None}
        if fresh:
            columns["started_at"] = self.now
        trial.paused_by = None
        attempt = AttemptOpened(
            trial_id=trial.id,
            attempt=trial.attempts,
            slots=trial.attempt.slots if trial.attempt else (),
            start_epoch=trial.resume_epoch,
            at=self.now,
        )
        self._changes += [TrialChanged(trial_id=trial.id, columns=columns), attempt]
        if thaw is not None:
            d = thaw.decision
            self._decide(trial, d.action, d.reason, d.numbers)

    def _trial_spec(self, trial: Trial) -> TrialSpec:
        setup = self.setup
        return TrialSpec(
            study=setup.study,
            trial=trial.number or 0,
            attempt=trial.attempts,
            task=setup.task,
            task_options=setup.task_options,
            params=trial.params,
            training=setup.training,
            world_size=trial.world_size,
            seed=setup.seed,
            device=setup.device,
            cpus_per_rank=setup.cpus_per_rank,
            milestones=setup.milestones,
            checkpoint_folder=str(Path(setup.checkpoint_folder) / f"trial-{trial.number:05d}"),
            checkpoint_every_seconds=setup.checkpoint_every_seconds,
            resume_from=trial.resume_checkpoint,
            python_path=setup.python_path,
        )

    def _of(self, trial_id: int, attempt: int) -> Trial | None:
        """The trial, if this attempt of it is the one that runs."""
        trial = self.trials.get(trial_id)
        return trial if trial and trial.attempt and trial.attempt.number == attempt else None

    def _started(self, event: GangStarted) -> None:
        trial = self._of(event.trial_id, event.attempt)
        if trial is None or trial.attempt is None:
            return
        trial.attempt.started = True
        self._forecaster.saw_start(trial.world_size, self.now - trial.attempt.leased_at)
        trial.attempt.hung_after = self._hung_after(trial)
        self._charge_trial(trial, "lost" if trial.attempt.is_repair else "start")
        columns = {"facts": dict(event.facts), "charged_until": self.now}
        self._changes.append(AttemptChanged(trial_id=trial.id, attempt=trial.attempts, columns=columns))

    def _measured(self, event: Measured) -> None:
        trial = self._of(event.trial_id, event.attempt)
        if trial is None or trial.attempt is None:
            return
        measurement = event.measurement
        trial.attempt.hung_after = self._hung_after(trial)
        if measurement.epoch <= trial.epochs_done:
            self._charge_trial(trial, "lost")
            self._note_checkpoint(trial, measurement)
            if measurement.ended or self.draining:
                self._after_repeated(trial, measurement)
            return
        if not self._record(trial, measurement):
            return
        self._go_on_or_end(trial, measurement)

    def _after_repeated(self, trial: Trial, measurement: Measurement) -> None:
        if measurement.ended:
            self._pause(trial, "drain", "drained; goes on from its last checkpoint", end=True)

    def _go_on_or_end(self, trial: Trial, measurement: Measurement) -> None:
        attempt = trial.attempt
        assert attempt is not None  # noqa: S101 - `_measured` looked
        reason = attempt.stop_reason or self.setup.limits.trial_reason(trial.paid_nano_usd, trial.wall_seconds)
        if measurement.epoch >= self.setup.epochs:
            self._complete(trial)
        elif reason and (measurement.epoch == attempt.until or measurement.ended):
            self._decide(trial, "stop", reason, {})
            self._end_trial(trial, "pruned", reason)
        elif measurement.epoch == attempt.until:
            self._at_rung(trial, measurement.epoch)
        elif measurement.ended:
            self._pause(trial, "drain", f"drained after epoch {measurement.epoch}", end=True)
        elif reason:
            attempt.stop_reason = reason
            self._tell_to_drain(trial)
        else:
            self._renew_promise(trial)

    def _at_rung(self, trial: Trial, rung: int) -> None:
        decision = self.setup.policy.at_rung(self._history, trial.number or 0, rung)
        self._decide(trial, decision.action, decision.reason, decision.numbers)
        if decision.action == "stop":
            self._end_trial(trial, "pruned", decision.reason)
        elif decision.action == "pause":
            self._history.paused[trial.number or 0] = rung
            self._pause(trial, "policy", decision.reason, end=True)
        elif self._all_told_to_drain:
            self._pause(trial, "drain", f"drained after epoch {rung}", end=True)
        else:
            self._grant(trial, rung)

    def _grant(self, trial: Trial, rung: int) -> None:
        attempt = trial.attempt
        promise = self._promise(trial, starting=False)
        if attempt is None or promise is None:
            self._pause(trial, "drain", f"drained after epoch {rung}", end=True)
            self._wind_down()
            return
        attempt.promised_until = promise
        attempt.until = next(epoch for epoch in self._rungs if epoch > rung)
        self._commands.append(Grant(trial_id=trial.id, attempt=attempt.number, until=attempt.until))

    def _record(self, trial: Trial, measurement: Measurement) -> bool:
        """Write the epoch; False if it cannot be one, since an objective is missing or not finite."""
        setup = self.setup
        charges = self._charge_trial(trial, "train")
        cost = sum(charge.cost_nano_usd for charge in charges)
        seconds = sum(charge.seconds for charge in charges)
        metrics = dict(measurement.metrics)
        metrics |= {"cost_usd": trial.paid_nano_usd / NANO, "wall_seconds": trial.wall_seconds}
        missing = [o.metric for o in setup.objectives if o.metric not in metrics]
        waits = measurement.ended or measurement.epoch == (trial.attempt.until if trial.attempt else 0)
        if missing:
            self._fail(
                trial, "error", f"the task gave no metric {missing[0]!r}; it gave {sorted(metrics)}", waits=waits
            )
            return False
        bad = [o.metric for o in setup.objectives if not math.isfinite(metrics[o.metric])]
        if bad:
            self._fail(trial, "diverged", f"{bad[0]} was {metrics[bad[0]]} at epoch {measurement.epoch}", waits=waits)
            return False
        trial.epochs_done = measurement.epoch
        trial.last_metrics = metrics
        trial.epoch_seconds.append(seconds)
        self._forecaster.saw_epoch(trial.world_size, seconds)
        self._write_epoch(trial, measurement, cost, seconds)
        return True

    def _write_epoch(self, trial: Trial, measurement: Measurement, cost_nano_usd: int, seconds: float) -> None:
        setup, epoch = self.setup, measurement.epoch
        values = tuple(o.signed(trial.last_metrics[o.metric]) for o in setup.objectives)
        if epoch in self._rungs:
            self._history.at_rung.setdefault(epoch, {})[trial.number or 0] = values
        is_milestone, kept = epoch in setup.milestones, False
        if is_milestone:
            milestone = Milestone(trial_id=trial.id, epoch=epoch, values=values, path=measurement.checkpoint)
            kept, released = self._keeper.offer(milestone, "archive")
            self._release(released)
            if epoch == setup.epochs:
                in_front, released = self._keeper.offer(milestone, "front")
                self._release(released)
                kept = kept or in_front
        self._changes.append(
            EpochMeasured(
                trial_id=trial.id,
                epoch=epoch,
                metrics=trial.last_metrics,
                wall_seconds=seconds,
                cost_nano_usd=cost_nano_usd,
                checkpoint=measurement.checkpoint if kept else None,
                is_milestone=is_milestone,
                at=self.now,
            )
        )
        self._note_checkpoint(trial, measurement)

    def _note_checkpoint(self, trial: Trial, measurement: Measurement) -> None:
        columns: dict[str, object] = {}
        if measurement.checkpoint is not None:
            self._release(self._keeper.go_on_from(trial.id, measurement.checkpoint))
            trial.resume_checkpoint, trial.resume_epoch = measurement.checkpoint, measurement.epoch
            columns = {"resume_checkpoint": measurement.checkpoint, "resume_epoch": measurement.epoch}
        self._changes.append(TrialChanged(trial_id=trial.id, columns=columns))
        at = {"charged_until": self.now}
        self._changes.append(AttemptChanged(trial_id=trial.id, attempt=trial.attempts, columns=at))

    # ------------------------------------------------------------------ ends

    def _complete(self, trial: Trial) -> None:
        self._end_trial(trial, "complete", f"trained all {self.setup.epochs} epochs")
        complete = sum(t.state == "complete" for t in self.trials.values())
        if complete >= 3 and not self._reference_frozen:
            self._freeze_reference()

    def _freeze_reference(self) -> None:
        self._reference_frozen = True
        self._commands.append(FreezeReference())

    def _end_trial(self, trial: Trial, state: str, reason: str) -> None:
        """The trial is over, its gang waits: take the slots."""
        trial.move(state)  # type: ignore[arg-type]
        columns = {"state": state, "reason": reason, "ended_at": self.now, "resume_checkpoint": None}
        self._changes.append(TrialChanged(trial_id=trial.id, columns=columns))
        self._release(self._keeper.go_on_from(trial.id, None))
        trial.resume_checkpoint = None
        self._take_slots(trial, state, waits=True)

    def _pause(self, trial: Trial, by: str, reason: str, *, end: bool = False) -> None:
        trial.move("paused")
        trial.paused_by = by
        columns = {"state": "paused", "paused_by": by, "reason": reason}
        self._changes.append(TrialChanged(trial_id=trial.id, columns=columns))
        if end:
            self._take_slots(trial, "paused", waits=True)

    def _fail(self, trial: Trial, failure: Failure, message: str, *, waits: bool) -> None:
        """An epoch that cannot be recorded; a gang that has gone on to the next one by itself is killed."""
        trial.failure = failure
        self._write_failure(trial, message)
        self._take_slots(trial, "failed", waits=waits)

    def _write_failure(self, trial: Trial, message: str) -> None:
        trial.move("failed")
        first = message.strip().splitlines()[-1] if message.strip() else str(trial.failure)
        columns = {
            "state": "failed", "failure": trial.failure, "reason": f"{trial.failure}: {first}",
            "error": message, "ended_at": self.now, "resume_checkpoint": None,
        }  # fmt: skip
        self._changes.append(TrialChanged(trial_id=trial.id, columns=columns))
        self._release(self._keeper.go_on_from(trial.id, None))
        trial.resume_checkpoint = None

    def _take_slots(self, trial: Trial, outcome: str, *, waits: bool) -> None:
        """End the attempt; slots of a gang that waits are free at once, others when the pool says so."""
        attempt = trial.attempt
        if attempt is None:
            return
        columns = {"outcome": outcome, "ended_at": self.now, "charged_until": self.now}
        self._changes.append(AttemptChanged(trial_id=trial.id, attempt=attempt.number, columns=columns))
        if waits:
            self._free.update(attempt.slots)
            self._commands.append(EndGang(trial_id=trial.id, attempt=attempt.number))
        else:
            self._commands.append(KillGang(trial_id=trial.id, attempt=attempt.number))
        trial.attempt = None

    def _failed(self, event: GangFailed) -> None:
        trial = self._of(event.trial_id, event.attempt)
        if trial is None or trial.attempt is None:
            return
        self._charge_trial(trial, "train" if event.failure == "diverged" and trial.attempt.started else "lost")
        if event.slots_usable:
            self._free.update(trial.attempt.slots)
        self._lose_or_fail(trial, event.failure, event.message)

    def _lose_or_fail(self, trial: Trial, failure: Failure, message: str) -> None:
        """The gang is gone. A lost trial goes on from its checkpoint, up to three times; others have failed."""
        attempt = trial.attempt
        assert attempt is not None  # noqa: S101 - callers looked
        again = failure in {"lost", "timeout"}
        trial.lost_attempts += again
        outcome = "lost" if again else "failed"
        columns = {"outcome": outcome, "ended_at": self.now, "charged_until": self.now}
        self._changes.append(AttemptChanged(trial_id=trial.id, attempt=attempt.number, columns=columns))
        trial.attempt = None
        if again and trial.lost_attempts < MAX_LOST_ATTEMPTS:
            reason = f"{failure}: goes on from epoch {trial.resume_epoch}, attempt {trial.attempts} was lost"
            self._pause(trial, "fault", reason)
            self._changes.append(TrialChanged(trial_id=trial.id, columns={"error": message}))
            return
        trial.failure = failure
        suffix = f"\n{failure} in {trial.lost_attempts} attempts: {_last_line(message)}" if again else ""
        self._write_failure(trial, message + suffix)

    # ------------------------------------------------------------------ money and time

    def _charge(self, slots: Iterable[int], kind: ChargeKind) -> list[Charged]:
        return self._book(self._meter.charge(slots, kind, self.now) if self._meter else [])

    def _charge_trial(self, trial: Trial, kind: ChargeKind) -> list[Charged]:
        if self._meter is None or trial.attempt is None:
            return []
        attempt = trial.attempt
        charges = self._meter.charge(attempt.slots, kind, self.now, trial_id=trial.id, attempt=attempt.number)
        if kind in {"start", "train"}:
            trial.paid_nano_usd += sum(charge.cost_nano_usd for charge in charges)
            trial.wall_seconds += sum(charge.seconds for charge in charges)
        return self._book(charges)

    def _book(self, charges: list[Charged]) -> list[Charged]:
        self._changes += charges
        self.spent_nano_usd += sum(charge.cost_nano_usd for charge in charges)
        return charges

    @property
    def _binding(self) -> StopReason:
        return self._clock.binding if self._clock else "budget_usd"

    def _promise(self, trial: Trial, *, starting: bool) -> float | None:
        """The moment by which the trial will have ended its next two epochs, or None if the budget ends before it."""
        if self._clock is None:
            return None
        forecast = self._forecaster.forecast(trial.world_size, trial.epoch_seconds)
        left = self._clock.deadline - self.now
        if forecast is None:
            # Nothing is known yet, and a small budget must not be refused for the sake of a guess.
            return self.now + min(FIRST_GUESS_SECONDS, left) if left > 0 else None
        seconds = forecast.bound(min(EPOCHS_PROMISED, self.setup.epochs - trial.epochs_done), starting=starting)
        return self.now + seconds if seconds <= left else None

    def _renew_promise(self, trial: Trial) -> None:
        promise = self._promise(trial, starting=False)
        if promise is not None and trial.attempt is not None:
            trial.attempt.promised_until = promise
        else:
            self._tell_to_drain(trial)
            self._wind_down()

    def _hung_after(self, trial: Trial) -> float:
        deadlines = self.setup.deadlines
        forecast = self._forecaster.forecast(trial.world_size, trial.epoch_seconds)
        if forecast is None:
            return self.now + deadlines.first_epoch
        return self.now + max(deadlines.epoch_least, deadlines.epoch_factor * forecast.epoch_seconds)

    def _tick(self) -> None:
        out_of_budget = self._clock is not None and self.now >= self._clock.deadline
        for trial in self.running:
            attempt = trial.attempt
            if attempt is None:
                continue
            if out_of_budget:
                self._cut(trial, "the budget was used up within an epoch; goes on from its last checkpoint")
            elif self.now >= attempt.hung_after:
                self._charge_trial(trial, "lost")
                self._commands.append(KillGang(trial_id=trial.id, attempt=attempt.number))
                self._lose_or_fail(trial, "timeout", "no sign of life from a rank within the watchdog's deadline")
            elif self.now >= attempt.promised_until:
                self._extend(trial, attempt)
        if out_of_budget:
            self._drain(self._binding)

    def _extend(self, trial: Trial, attempt: Attempt) -> None:
        """A gang is slower than its bound: it gets more time if the budget has it, else it ends with this epoch."""
        left = (self._clock.deadline if self._clock else self.now) - self.now
        attempt.promised_until = self.now + min(max(self.now - attempt.leased_at, 1.0), left)
        if left < 1.0:
            self._tell_to_drain(trial)
            self._wind_down()

    def _cut(self, trial: Trial, reason: str) -> None:
        self._charge_trial(trial, "lost")
        self._pause(trial, "drain", reason)
        self._take_slots(trial, "cut", waits=False)

    # ------------------------------------------------------------------ draining and closing

    def _wind_down(self) -> None:
        """What is left of the budget is too little for some gang, though it may do for others that run."""
        if not self.draining:
            self._drain_reason = self._binding

    def _drain(self, reason: StopReason) -> None:
        if self._all_told_to_drain or self.finished:
            return
        self._all_told_to_drain = True
        self._drain_reason = reason
        for trial in self.running:
            # Somebody is waiting at the keyboard: what has not ended an epoch yet has nothing to lose but that epoch.
            if reason in {"interrupted", "stopped"} and trial.epochs_done == 0:
                self._cut(trial, "interrupted before its first epoch ended")
            else:
                self._tell_to_drain(trial)

    def _tell_to_drain(self, trial: Trial) -> None:
        if trial.attempt is not None and not trial.attempt.draining:
            trial.attempt.draining = True
            self._commands.append(DrainGang(trial_id=trial.id, attempt=trial.attempt.number))

    def nothing_left(self) -> StopReason | None:
        """Why there is nothing to do even if slots were free, or None."""
        limits, memory = self.setup.limits, self._memory
        if limits.usd is not None and memory.spent_nano_usd >= limits.usd * NANO:
            return "budget_usd"
        if limits.hours is not None and memory.alive_seconds >= limits.hours * 3600:
            return "budget_hours"
        if self._any_work():
            return None
        return "exhausted" if self._fresh_allowed else "budget_trials"

    def _finish_if_done(self) -> None:
        if self.finished or self.running or self._meter is None:
            return
        if self._drain_reason is not None:
            self._finish(self._drain_reason)
        elif not self._any_work():
            self._finish("exhausted" if self._fresh_allowed else "budget_trials")

    def _any_work(self) -> bool:
        if any(t.state == "paused" and t.paused_by in {"drain", "fault"} for t in self.trials.values()):
            return True
        return self.setup.policy.for_free_slot(self._history, fresh_allowed=self._fresh_allowed) is not None

    def _finish(self, reason: StopReason) -> None:
        self.stop_reason = reason
        self.state = {"interrupted": "drained", "stopped": "drained", "error": "failed"}.get(reason, "closed")
        if self._meter is not None:
            self._charge(range(self.setup.slots), "idle")
            self._changes.append(PoolChanged(columns={"pool_closed_at": self.now}))
            self._commands.append(ClosePool())
        if self.state == "closed":
            self._close_paused()
            if not self._reference_frozen:
                self._freeze_reference()
        limit = self.setup.limits.usd
        if limit is not None:
            self.overshoot_nano_usd = max(0, self.spent_nano_usd - round(limit * NANO))
        columns = {
            "state": self.state, "stop_reason": reason, "ended_at": self.now,
            "overshoot_nano_usd": self.overshoot_nano_usd,
        }  # fmt: skip
        self._changes.append(StudyChanged(columns=columns))

    def _close_paused(self) -> None:
        for trial in self.trials.values():
            if trial.state == "paused":
                trial.move("pruned")
                columns = {"state": "pruned", "reason": "closed", "ended_at": self.now}
                self._changes.append(TrialChanged(trial_id=trial.id, columns=columns))

    # ------------------------------------------------------------------ small change

    def _decide(self, trial: Trial, action: str, reason: str, numbers: object) -> None:
        self._changes.append(
            Decided(
                trial_id=trial.id,
                epoch=trial.epochs_done,
                action=action,  # type: ignore[arg-type]
                reason=reason,
                numbers=dict(numbers),  # type: ignore[call-overload]
                at=self.now,
            )
        )

    def _release(self, released: Released) -> None:
        self._commands += [DeleteFile(path=path) for path in released.files]
        self._changes += [
            CheckpointKept(trial_id=trial_id, epoch=epoch, checkpoint=None) for trial_id, epoch in released.epochs
        ]

    def _step(self) -> Step:
        """Hand over what has piled up, with what is reserved at this moment."""
        if self._changes and self._clock is not None:
            seconds = 0.0 if self.finished else max(self.reserved_until - self.now, 0.0)
            uncharged = self._meter.uncharged_nano_usd(self.now) if self._meter else 0
            reserved = round(seconds * self._clock.nano_usd_per_second) + uncharged
            if self.setup.limits.usd is not None:
                # Promises end at the deadline; but charges are rounded singly, which may add up to some nano-dollars.
                left = math.floor(self.setup.limits.usd * NANO) - self.spent_nano_usd
                reserved = max(min(reserved, left), 0)
            columns = {"reserved_nano_usd": reserved, "reserved_seconds": seconds}
            self._changes.append(StudyChanged(columns=columns))
        step = Step(changes=tuple(self._changes), commands=tuple(self._commands))
        self._changes, self._commands = [], []
        return step


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
