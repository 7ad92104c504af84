"""Records epochs and saved parts of epochs: their costs, metrics, models and checkpoints."""

import math
from collections.abc import Mapping
from dataclasses import replace

from studies.control.files.kept_files import Milestone
from studies.control.machine import trial_endings
from studies.control.machine.live_study import LiveStudy
from studies.control.machine.live_trials import Paid, Trial
from studies.records.records import NANO
from studies.results.constraints import columns, is_feasible, total_violation
from studies.search.observations import Values
from studies.storage.writing.changes import AttemptChanged, EpochMeasured, TrialChanged, TrialColumns
from trainers.protocol import EpochPart, Measurement


def record(live: LiveStudy, trial: Trial, measurement: Measurement) -> bool:
    """Charge and record an epoch. If a metric is missing or not finite, fail the trial and return False."""
    ended_at = live.now - measurement.age_seconds
    paid = live.account.charge_trial(trial, "train", ended_at, seconds=measurement.wall_seconds)
    metrics = dict(measurement.metrics)
    metrics |= {"cost_usd": trial.paid_nano_usd / NANO, "wall_seconds": trial.wall_seconds}
    is_over = measurement.ended or measurement.complete
    waits = is_over or (trial.attempt is not None and measurement.epoch == trial.attempt.until)
    names = [one.metric for one in columns(live.setup.objectives, live.setup.constraints)]
    if missing := [name for name in names if name not in metrics]:
        message = f"the task returned no metric {missing[0]!r}; it returned {sorted(metrics)}"
        trial_endings.reject(live, trial, "error", message, waits=waits)
        return False
    if bad := [name for name in names if not math.isfinite(metrics[name])]:
        message = f"{bad[0]} was {metrics[bad[0]]} at epoch {measurement.epoch}"
        trial_endings.reject(live, trial, "diverged", message, waits=waits)
        return False
    paid, trial.part = trial.part + paid, Paid()
    trial.epochs_done = measurement.epoch
    trial.last_metrics = metrics
    trial.epoch_seconds.append(paid.seconds)
    trial.epoch_costs_nano_usd.append(paid.cost_nano_usd)
    if trial.attempt is not None and len(trial.attempt.slots) != trial.world_size:
        trial.epoch_ranks[measurement.epoch] = len(trial.attempt.slots)
    live.account.forecaster.saw_epoch(trial.world_size, trial.whole_epoch_seconds)
    if live.has_test_part or live.can_explain:
        seconds = metrics.get("evaluation_seconds", 0.0)
        live.account.will_test(seconds, has_test_part=live.has_test_part, can_explain=live.can_explain)
    _write(live, trial, measurement, paid, ended_at)
    return True


def record_part(live: LiveStudy, trial: Trial, part: EpochPart) -> None:
    """Charge a saved part of an epoch; the trial now resumes from it."""
    saved_at = live.now - part.age_seconds
    is_new = part.epoch > trial.epochs_done
    paid = live.account.charge_trial(trial, "train" if is_new else "lost", saved_at, seconds=part.wall_seconds)
    if is_new:
        trial.part += paid
    _go_on_from(live, trial, part.checkpoint, part.checkpoint_bytes, part.epoch - 1)
    _note_charge(live, trial, saved_at)


def repeat(live: LiveStudy, trial: Trial, measurement: Measurement) -> None:
    """Charge an epoch that was repeated after a fault; it adds no second row."""
    ended_at = live.now - measurement.age_seconds
    live.account.charge_trial(trial, "lost", ended_at, seconds=measurement.wall_seconds)
    _note_end(live, trial, measurement, ended_at)


def _write(live: LiveStudy, trial: Trial, measurement: Measurement, paid: Paid, ended_at: float) -> None:
    epoch = measurement.epoch
    is_last = epoch == live.setup.epochs or (measurement.complete and not measurement.unsaved)
    is_milestone, kept = is_last or epoch in live.setup.milestones, False
    values = hand_to_search(live, trial, epoch, trial.last_metrics, is_milestone=is_milestone)
    if is_milestone:
        live.saves = live.saves or measurement.checkpoint is not None
        trial.milestones[epoch] = values
        milestone = Milestone(trial_id=trial.id, epoch=epoch, values=values, path=measurement.checkpoint)
        kept = is_feasible(trial.last_metrics, live.setup.constraints) and offer(
            live, milestone, is_last=is_last, is_baseline=live.is_baseline(trial)
        )
    live.outbox.write(
        EpochMeasured(
            trial_id=trial.id,
            epoch=epoch,
            metrics=trial.last_metrics,
            wall_seconds=paid.seconds,
            cost_nano_usd=paid.cost_nano_usd,
            checkpoint=measurement.checkpoint if kept else None,
            is_milestone=is_milestone,
            at=ended_at,
        )
    )
    _note_end(live, trial, measurement, ended_at)


def hand_to_search(
    live: LiveStudy, trial: Trial, epoch: int, metrics: Mapping[str, float], *, is_milestone: bool
) -> Values:
    """Record an epoch's values for the search. Returns the objectives, signed so that smaller is better.

    `is_milestone` marks epochs with a saved model.
    """
    setup = live.setup
    shown = columns(setup.objectives, setup.constraints)
    signed = tuple(one.signed(metrics[one.metric]) for one in shown)
    values = signed[: len(setup.objectives)]
    ends = trial.ends_of(shown, epoch, signed, setup.epochs)
    trial.measured(epoch, signed, ends, is_watched=is_milestone or epoch in live.watched)
    live.registry.touch(trial)
    if epoch in live.rungs and trial.number is not None:
        live.history.at_rung.setdefault(epoch, {})[trial.number] = values
        if violation := total_violation(metrics, setup.constraints):
            live.history.violations.setdefault(epoch, {})[trial.number] = violation
    return values


def offer(live: LiveStudy, milestone: Milestone, *, is_last: bool, is_baseline: bool) -> bool:
    """Offer a saved model to the archive, and after the last epoch to the front. Returns whether its file is kept.

    A baseline's best model in the first objective is also kept, for the test part.
    """
    offers = [("archive", milestone)]
    offers += [("front", milestone)] if is_last else []
    if is_baseline:
        offers.append((f"baseline {milestone.trial_id}", replace(milestone, values=milestone.values[:1])))
    wanted = False
    for to, offered in offers:
        enters, released = live.keeper.offer(offered, to)
        live.outbox.release(released)
        wanted = wanted or enters
    return wanted


def _note_end(live: LiveStudy, trial: Trial, measurement: Measurement, ended_at: float) -> None:
    if measurement.checkpoint is not None:
        _go_on_from(live, trial, measurement.checkpoint, measurement.checkpoint_bytes, measurement.epoch)
    else:
        live.outbox.write(TrialChanged(trial_id=trial.id, columns={}))
    _note_charge(live, trial, ended_at)


def _go_on_from(live: LiveStudy, trial: Trial, checkpoint: str, size: int, epoch: int) -> None:
    live.outbox.release(live.keeper.go_on_from(trial.id, checkpoint))
    live.keeper.weigh(checkpoint, size)
    trial.resume_checkpoint, trial.resume_epoch = checkpoint, epoch
    columns: TrialColumns = {"resume_checkpoint": checkpoint, "resume_epoch": epoch}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))


def _note_charge(live: LiveStudy, trial: Trial, charged_until: float) -> None:
    attempt = AttemptChanged(trial_id=trial.id, attempt=trial.attempts, columns={"charged_until": charged_until})
    live.outbox.write(attempt)
