"""Starts trials, and lets them train from rung to rung, within constraints and budget."""

from collections.abc import Mapping
from dataclasses import replace

from search_spaces.suggestions import Asked, as_plain
from studies.control.machine import epochs, trial_endings
from studies.control.machine.budget_account import EPOCHS_AHEAD
from studies.control.machine.draining import Draining
from studies.control.machine.finishing import EXPECTED, SLIGHT, Finishing
from studies.control.machine.live_study import LiveStudy, decision, params_on
from studies.control.machine.live_trials import Attempt, Trial
from studies.control.machine.study_setup import Grant, StartGang, StudySetup
from studies.gangs.pool_protocol import Measured, ParameterAsked, PartSaved, Progress
from studies.records.records import ASKED, proposed_in
from studies.search.policy import Decision, Thaw, stop_for_good
from studies.storage.writing.changes import AttemptChanged, AttemptColumns, AttemptOpened, TrialChanged, TrialColumns
from trainers.checkpoints.locations import joined, trial_folder
from trainers.protocol import Diagnostics, Measurement, TrialSpec

GIB = 2**30


class Granting:
    """Starts trials, and decides after each epoch: continue, stop, pause or complete."""

    def __init__(self, live: LiveStudy, draining: Draining, finishing: Finishing) -> None:
        self._live, self._draining, self._finishing = live, draining, finishing

    def start(self, trial: Trial, thaw: Thaw | None, slots: tuple[int, ...]) -> None:
        """Start a trial; for one epoch only, if a second epoch probably exceeds the budget."""
        live = self._live
        promised_until = live.account.promise(trial, live.now, starting=True, ranks=len(slots))
        until = self._until(trial, is_finished=self._finishing.begun(trial, thaw))
        attempt = start(live, trial, thaw, slots, promised_until=promised_until, until=until)
        self._drain_if_last(trial, attempt, starting=True)

    def measured(self, trial: Trial, attempt: Attempt, event: Measured) -> None:
        """Record an epoch, and decide whether the trial continues."""
        live, measurement = self._live, event.measurement
        live.watchdog.heard(trial.id)
        attempt.progress, attempt.saved_fraction, attempt.has_measured = None, 0.0, True
        attempt.epochs_again = max(trial.epochs_done - measurement.epoch, 0)
        if measurement.epoch > trial.epochs_done:
            if epochs.record(live, trial, measurement):
                self._go_on_or_end(trial, attempt, measurement)
                self._evict_if_crowded()
            return
        epochs.repeat(live, trial, measurement)
        if measurement.complete:
            trial_endings.complete(live, trial)
        elif measurement.ended:
            trial_endings.pause(live, trial, "drain", "drained; continues from its last checkpoint")
        else:
            self._renew_promise(trial, attempt)

    def part_saved(self, trial: Trial, attempt: Attempt, event: PartSaved) -> None:
        """Record a saved part of an epoch; pauses a trial that had to stop within the epoch."""
        part = event.part
        self._live.watchdog.heard(trial.id)
        attempt.saved_fraction = part.fraction
        epochs.record_part(self._live, trial, part)
        if part.ended:
            trial_endings.pause(
                self._live, trial, "drain", f"drained within epoch {part.epoch}, of which a part is saved"
            )

    def progressed(self, trial: Trial, attempt: Attempt, event: Progress) -> None:
        """Stop a trial after its running epoch if, at its speed, another epoch exceeds the budget."""
        live = self._live
        ahead = live.account.ends_in_seconds(trial, event.fraction, live.now)
        if ahead is None or event.epoch != trial.epochs_done + 1:
            return
        ends_in, next_seconds = ahead
        left = live.account.left_seconds(live.now)
        attempt.promised_until = live.now + min(ends_in + next_seconds, left)
        if ends_in + next_seconds > left and live.saves is not False:
            self._draining.drain_gang(trial, attempt)

    def outlived_promise(self, trial: Trial, attempt: Attempt) -> None:
        """Reserve more time for a late trial, or stop it after this epoch."""
        self._live.account.extend(attempt, self._live.now)
        self._drain_if_last(trial, attempt, starting=False)

    def _go_on_or_end(self, trial: Trial, attempt: Attempt, measurement: Measurement) -> None:
        live = self._live
        must_stop = self._must_stop(trial, attempt)
        if measurement.epoch >= live.setup.epochs or measurement.complete:
            trial_endings.complete(live, trial)
        elif must_stop and (measurement.epoch == attempt.until or measurement.ended):
            live.decided(trial, must_stop)
            trial_endings.prune(live, trial, must_stop.reason)
        elif measurement.epoch == attempt.until:
            self._at_rung(trial, attempt, measurement)
        elif measurement.ended:
            trial_endings.pause(live, trial, "drain", f"drained after epoch {measurement.epoch}")
        elif must_stop:
            attempt.stop_reason = must_stop.reason
            self._draining.drain_gang(trial, attempt)
        else:
            self._renew_promise(trial, attempt)

    def _must_stop(self, trial: Trial, attempt: Attempt) -> Decision | None:
        """Return the decision to stop a trial that cannot become feasible or has spent its limit, or None."""
        setup = self._live.setup
        if never := stop_for_good(trial.last_metrics, setup.constraints):
            return never
        reason = attempt.stop_reason or setup.limits.trial_reason(trial.paid_nano_usd, trial.wall_seconds) or ""
        return decision("stop", reason) if reason else None

    def _at_rung(self, trial: Trial, attempt: Attempt, measurement: Measurement) -> None:
        live, rung = self._live, measurement.epoch
        made = self._decision_at(trial, rung)
        live.decided(trial, made)
        match made.action:
            case "stop":
                trial_endings.prune(live, trial, made.reason)
            case "pause":
                live.history.paused[trial.started_number] = rung
                trial_endings.pause(live, trial, "policy", made.reason)
            case "continue" if measurement.ended or self._draining.reason or self._draining.must_leave(attempt):
                trial_endings.pause(live, trial, "drain", f"drained after epoch {rung}")
            case "continue":
                self._grant(trial, attempt, rung)

    def _decision_at(self, trial: Trial, rung: int) -> Decision:
        live = self._live
        if live.is_baseline(trial):
            return decision("continue", "a baseline is trained to its last epoch")
        finished = None if self._draining.starts_nothing else self._finishing.at_rung(trial)
        return finished or live.setup.policy.at_rung(live.look(), trial.started_number, rung)

    def _evict_if_crowded(self) -> None:
        live, setup = self._live, self._live.setup
        most, most_gib = setup.most_paused, setup.most_checkpoint_gib
        while most is not None and len(live.history.paused) > most:
            self._evict(live.history.paused, f"{most} trials may wait with a checkpoint (checkpoints.most_paused)")
        while most_gib is not None and live.keeper.total_bytes > most_gib * GIB and (freeing := self._freeing_room()):
            self._evict(freeing, f"checkpoints may take {most_gib:g} GiB (checkpoints.max_gib)")

    def _evict(self, paused: dict[int, int], limit: str) -> None:
        """Prune the least valuable paused trial; `paused` maps trial numbers to rungs."""
        live = self._live
        number = live.setup.policy.worth_least(replace(live.look(), paused=paused))
        trial_endings.evict(live, live.registry.numbered(number), limit)

    def _freeing_room(self) -> dict[int, int]:
        """Return the rungs of paused trials whose pruning would free disk space, by trial number."""
        live = self._live
        by_number = live.registry.numbered
        return {one: rung for one, rung in live.history.paused.items() if live.keeper.frees_bytes(by_number(one).id)}

    def _grant(self, trial: Trial, attempt: Attempt, rung: int) -> None:
        """Let the trial train to its next rung, or pause it if another epoch probably exceeds the budget.

        If nothing is saved, a pause gains nothing, so a slight chance is enough.
        """
        live = self._live
        enough = SLIGHT if live.saves is False else EXPECTED
        if live.account.chance(trial, live.now, starting=False) < enough:
            trial_endings.pause(live, trial, "drain", f"drained after epoch {rung}")
            return
        live.account.charge_idle(attempt.slots, live.now)  # for the time that the gang has waited for this decision
        attempt.promised_until = live.account.promise(trial, live.now, starting=False)
        attempt.until = self._until(trial, is_finished=self._finishing.begun(trial, None))
        live.outbox.order(Grant(trial_id=trial.id, attempt=attempt.number, until=attempt.until))
        self._drain_if_last(trial, attempt, starting=False)

    def _until(self, trial: Trial, *, is_finished: bool) -> int:
        live = self._live
        return live.setup.epochs if is_finished else next(rung for rung in live.rungs if rung > trial.epochs_done)

    def _renew_promise(self, trial: Trial, attempt: Attempt) -> None:
        attempt.promised_until = self._live.account.promise(trial, self._live.now, starting=False)
        self._drain_if_last(trial, attempt, starting=False)

    def _drain_if_last(self, trial: Trial, attempt: Attempt, *, starting: bool) -> None:
        """Let the trial save and stop after its running epoch if a second epoch probably exceeds the budget.

        A stop within epochs that are trained again would gain nothing.
        """
        if self._live.saves is False or attempt.epochs_again:
            return
        chance = self._live.account.chance(trial, self._live.now, starting=starting, epochs=EPOCHS_AHEAD)
        if chance < EXPECTED:
            self._draining.drain_gang(trial, attempt)


def proposed(setup: StudySetup, trial: Trial) -> Mapping[str, Asked] | None:
    """Return known parameters that a trial requests at run time; None if the spec defines all."""
    return {**proposed_in(trial.sampler_attributes), **trial.asked} if setup.learns_space else None


def note(live: LiveStudy, trial: Trial, event: ParameterAsked) -> None:
    """Record a parameter requested at run time, so that later attempts get the same value."""
    if trial.asked.get(event.name) == event.asked:
        return
    trial.has_asked(event.name, event.asked)
    trial.sampler_attributes = {**trial.sampler_attributes, ASKED: as_plain(trial.asked)}
    columns = {"params": trial.params, "sampler_attributes": trial.sampler_attributes}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))  # type: ignore[arg-type]


def start(
    live: LiveStudy, trial: Trial, thaw: Thaw | None, slots: tuple[int, ...], *, promised_until: float, until: int
) -> Attempt:
    """Start or resume a trial; `thaw` holds the policy's decision to resume it."""
    is_fresh, is_repair = trial.number is None, trial.paused_by == "fault"
    live.free.difference_update(slots)
    live.account.charge_idle(slots, live.now)
    if is_fresh:
        live.registry.give_number(trial)
    live.registry.move(trial, "running")
    trial.attempts += 1
    trial.paused_by = None
    trial.attempt = Attempt(
        number=trial.attempts,
        slots=slots,
        leased_at=live.now,
        until=until,
        promised_until=promised_until,
        is_repair=is_repair,
        epochs_again=trial.epochs_again,
    )
    live.watchdog.started(trial.id, trial.timeouts)
    live.history.paused.pop(trial.started_number, None)
    _write(live, trial, slots, is_fresh=is_fresh)
    if thaw is not None:
        live.decided(trial, thaw.decision)
    live.outbox.order(StartGang(trial_id=trial.id, spec=_trial_spec(live, trial, slots), slots=slots, until=until))
    return trial.attempt


def first_step(
    live: LiveStudy, trial: Trial, attempt: Attempt, facts: Mapping[str, object], seconds: float | None
) -> None:
    """Charge a trial's start for `seconds`; None charges the time since it got its slots."""
    attempt.started = True
    live.account.forecaster.saw_start(len(attempt.slots), live.now - attempt.leased_at if seconds is None else seconds)
    live.watchdog.heard(trial.id, is_first=True)
    live.has_test_part = live.has_test_part or bool(facts.get("has_test_part"))
    live.can_explain = live.can_explain or bool(facts.get("can_explain"))
    live.account.charge_trial(trial, "lost" if attempt.is_repair else "start", live.now, seconds=seconds)
    columns: AttemptColumns = {"facts": dict(facts), "charged_until": live.now}
    live.outbox.write(AttemptChanged(trial_id=trial.id, attempt=attempt.number, columns=columns))


def _write(live: LiveStudy, trial: Trial, slots: tuple[int, ...], *, is_fresh: bool) -> None:
    columns: TrialColumns = {"state": "running", "number": trial.number, "reason": "", "paused_by": None}
    if is_fresh:
        columns["started_at"] = live.now
    attempt = AttemptOpened(
        trial_id=trial.id, attempt=trial.attempts, slots=slots, start_epoch=trial.resume_epoch, at=live.now
    )
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns), attempt)


def _trial_spec(live: LiveStudy, trial: Trial, slots: tuple[int, ...]) -> TrialSpec:
    setup, number, ranks = live.setup, trial.started_number, len(slots)
    return replace(
        setup.trial_spec(number, params_on(setup, trial, ranks), ranks),
        attempt=trial.attempts,
        milestones=setup.milestones,
        checkpoint_folder=joined(setup.checkpoint_folder, trial_folder(number)),
        checkpoint_every_seconds=setup.checkpoint_every_seconds,
        resume_from=trial.resume_checkpoint,
        proposed=proposed(setup, trial),
        environment={} if setup.own_logging is None else setup.own_logging.variables(number, trial.attempts),
        diagnostics=Diagnostics() if setup.own_logging is None else setup.own_logging.diagnostics,
    )
