"""Dispatch of a trial to slots: its attempt, its row, and the frozen spec for its ranks."""

from collections.abc import Mapping
from dataclasses import replace

from search_spaces.suggestions import Asked, as_plain
from studies.control.machine.commands import StartGang
from studies.control.machine.live_study import LiveStudy, params_on
from studies.control.machine.live_trials import Attempt, Trial
from studies.control.machine.study_setup import StudySetup
from studies.gangs.pool_protocol import ParameterAsked
from studies.records.suggested_parameters import ASKED, proposed_in
from studies.search.policy import Thaw
from studies.storage.writing.changes import AttemptChanged, AttemptColumns, AttemptOpened, TrialChanged, TrialColumns
from trainers.checkpoints.locations import joined, trial_folder
from trainers.protocol import Diagnostics, TrialSpec


def proposed(setup: StudySetup, trial: Trial) -> Mapping[str, Asked] | None:
    """Return earlier or proposed values of parameters requested at run time; None if the space is fixed."""
    return {**proposed_in(trial.sampler_attributes), **trial.asked} if setup.learns_space else None


def note(live: LiveStudy, trial: Trial, event: ParameterAsked) -> None:
    """Record a parameter that the trial requested at run time, so that later attempts get the same value."""
    if trial.asked.get(event.name) == event.asked:
        return
    trial.has_asked(event.name, event.asked)
    trial.sampler_attributes = {**trial.sampler_attributes, ASKED: as_plain(trial.asked)}
    columns = {"params": trial.params, "sampler_attributes": trial.sampler_attributes}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))  # type: ignore[arg-type]


def start(
    live: LiveStudy, trial: Trial, thaw: Thaw | None, slots: tuple[int, ...], *, promised_until: float, until: int
) -> Attempt:
    """Dispatch a trial from its beginning or its checkpoint; `thaw` is the policy's decision if it was paused."""
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
    """Charge the start of an attempt at its first step: `seconds` as measured by rank 0, None since the lease."""
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
