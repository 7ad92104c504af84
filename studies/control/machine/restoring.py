"""Restoring of a resumed study: search history, files, and running or closed trials."""

from collections.abc import Iterable

from studies.control.files.kept_files import Milestone
from studies.control.machine import epochs, trial_endings
from studies.control.machine.live_study import LiveStudy
from studies.control.machine.live_trials import Trial
from studies.records.resume_state import ResumeState
from studies.results.baselines import trials_of
from studies.results.constraints import is_feasible
from studies.storage.writing.changes import (
    AttemptChanged,
    AttemptColumns,
    StudyChanged,
    StudyColumns,
    TrialChanged,
    TrialColumns,
    ViewsToRebuild,
)


def restore(live: LiveStudy, resume_state: ResumeState) -> None:
    """Restore forecasts, search history, checkpoints and paused trials."""
    measured = [(stored.record, epoch) for stored in resume_state.trials for epoch in stored.record.epochs]
    measured.sort(key=lambda one: one[1].measured_at)
    for record, epoch in measured:
        trial = live.registry.by_id[record.id]
        values = epochs.hand_to_search(live, trial, epoch.epoch, epoch.metrics, is_milestone=epoch.is_milestone)
        if epoch.is_milestone:
            trial.milestones[epoch.epoch] = values
    of_baselines = {one.id for one in trials_of(live.setup.baselines, live.registry.started) if one is not None}
    # Of equal milestones the one reported first has the kept model; it need not be the one measured first.
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
    """Pause the trials that a dead controller left running, at their last checkpoints."""
    for trial in live.registry.in_state("running"):
        columns: AttemptColumns = {"outcome": "interrupted", "ended_at": live.now, "charged_until": live.now}
        live.outbox.write(AttemptChanged(trial_id=trial.id, attempt=trial.attempts, columns=columns))
        trial_endings.mark_paused(live, trial, "fault", "its controller died; continues from its last checkpoint")
    running: StudyColumns = {"state": "running", "stop_reason": None, "error": None, "ended_at": None}
    live.outbox.write(StudyChanged(columns=running))


def reopen(live: LiveStudy, closed: Iterable[int]) -> None:
    """Pause the trials that were pruned only because the study closed."""
    for trial_id in closed:
        trial = live.registry.by_id[trial_id]
        live.registry.move(trial, "paused")
        columns: TrialColumns = {"state": "paused", "reason": "waits: the study was reopened", "ended_at": None}
        live.outbox.write(TrialChanged(trial_id=trial_id, columns=columns))
        _wait_for_policy(live, trial)
    live.outbox.write(ViewsToRebuild())
