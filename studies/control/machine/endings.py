"""Ends attempts and trials, and frees their slots."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

from search_spaces.untrusted_text import last_line
from studies.control.machine.commands import ClosePool, EndGang, KillGang
from studies.control.machine.live_study import LiveStudy, decision
from studies.control.machine.live_trials import Trial
from studies.control.machine.study_setup import StudySetup
from studies.control.machine.watchdog import no_sign_of_life
from studies.records.records import StopReason, StudyState
from studies.results import constraints
from studies.results.pareto import reference_coordinate
from studies.storage.writing.changes import (
    AttemptChanged,
    AttemptColumns,
    PoolChanged,
    StudyChanged,
    StudyColumns,
    TrialChanged,
    TrialColumns,
)
from trainers.protocol import Failure

_LIMITS = ("usd", "hours", "trials", "usd_per_trial", "hours_per_trial")
ENDS_BY_BUDGET: frozenset[StopReason] = frozenset({"budget_usd", "budget_hours", "budget_trials"})
"""Reasons for which only more budget reopens a study."""


def closed_by(setup: StudySetup, usd_per_slot_hour: float) -> dict[str, float | None]:
    """Return the limits to store when a study's budget closes it."""
    return {**dataclasses.asdict(setup.limits), "usd_per_hour": setup.slots * usd_per_slot_hour}


def has_more(setup: StudySetup, stored: Mapping[str, float | None]) -> bool:
    """Return whether a study may do more than when its budget closed it with the limits `stored` by `closed_by`."""
    now = closed_by(setup, setup.usd_per_slot_hour)
    is_cheaper = _number(now["usd_per_hour"]) < _number(stored.get("usd_per_hour"))
    keeps_more = setup.limits.finish > (stored.get("finish") or 0.0)
    return is_cheaper or keeps_more or any(_number(now[name]) > _number(stored.get(name)) for name in _LIMITS)


def _number(limit: float | None) -> float:
    return math.inf if limit is None else limit


COMPLETE_FOR_REFERENCE = 3
"""Number of complete trials that freezes the reference point."""
CANCELLED = "cancelled: a person ended it (automl cancel)"
RETURNS_BY: frozenset[Failure] = frozenset({"lost", "timeout", "storage"})
"""Failures after which another attempt may succeed."""


def complete(live: LiveStudy, trial: Trial) -> None:
    """Complete a trial at its last planned epoch, or when its early-stopping patience is used up."""
    done, planned = trial.epochs_done, live.setup.epochs
    stopped = f"val_loss stopped improving: complete after {done} of {planned} epochs (early_stop_patience)"
    trial.expect_end_of(done, constraints.columns(live.setup.objectives, live.setup.constraints))
    _finish(live, trial, "complete", stopped if done < planned else f"trained all {planned} epochs")
    if live.registry.count("complete") >= COMPLETE_FOR_REFERENCE:
        live.freeze_reference()


def prune(live: LiveStudy, trial: Trial, reason: str) -> None:
    """Prune a trial whose gang waits."""
    _finish(live, trial, "pruned", reason)


def _finish(live: LiveStudy, trial: Trial, state: Literal["complete", "pruned"], reason: str) -> None:
    _write_end(live, trial, state, reason)
    _forget_checkpoint(live, trial)
    _take_slots(live, trial, state, waits=True)


def _write_end(live: LiveStudy, trial: Trial, state: Literal["complete", "pruned"], reason: str) -> None:
    live.registry.move(trial, state)
    columns: TrialColumns = {"state": state, "reason": reason, "ended_at": live.now, "resume_checkpoint": None}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))


def _discard(live: LiveStudy, trial: Trial, reason: str) -> None:
    """Prune a trial outside a rung, and keep the policy from thawing it."""
    live.history.paused.pop(trial.started_number, None)
    _write_end(live, trial, "pruned", reason)
    live.decided(trial, decision("stop", reason))
    _forget_checkpoint(live, trial)


def pause(live: LiveStudy, trial: Trial, by: str, reason: str) -> None:
    """Pause a trial whose gang waits, and free its slots; its checkpoint is kept."""
    mark_paused(live, trial, by, reason)
    _take_slots(live, trial, "paused", waits=True)


def mark_paused(live: LiveStudy, trial: Trial, by: str, reason: str) -> None:
    """Change the trial's state only; the caller ends its gang.

    Args:
        by: "policy"; or "drain" or "fault", after which the trial goes on before any other starts.
    """
    live.registry.move(trial, "paused")
    trial.paused_by = by
    columns: TrialColumns = {"state": "paused", "paused_by": by, "reason": reason}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))


def evict(live: LiveStudy, trial: Trial, limit: str) -> None:
    """Prune a paused trial and delete its checkpoint; `limit` names the storage limit in the reason."""
    _discard(live, trial, f"evicted: {limit}, and it was worth least")


def cancel(live: LiveStudy, trial: Trial) -> None:
    """Prune a running or waiting trial at a person's request; a running epoch is lost."""
    if trial.state == "queued":
        live.registry.forget(trial)
        live.outbox.write(cancelled_in_queue(trial.id, live.now))
        return
    was_running = trial.attempt is not None
    if was_running:
        live.account.charge_trial(trial, "lost", live.now)
    _discard(live, trial, CANCELLED)
    if was_running:
        _take_slots(live, trial, "cut", waits=False)


def cancelled_in_queue(trial_id: int, now: float) -> TrialChanged:
    """Return the row of a configuration that was cancelled before its start; it gets no number."""
    return TrialChanged(trial_id=trial_id, columns={"state": "pruned", "reason": CANCELLED, "ended_at": now})


def cut(live: LiveStudy, trial: Trial, reason: str) -> None:
    """Stop the gang within its epoch, which is lost."""
    live.account.charge_trial(trial, "lost", live.now)
    mark_paused(live, trial, "drain", reason)
    _take_slots(live, trial, "cut", waits=False)


def reject(live: LiveStudy, trial: Trial, failure: Failure, message: str, *, waits: bool) -> None:
    """Fail a trial whose epoch cannot be recorded; a gang that trains the next epoch is killed."""
    _write_failure(live, trial, failure, message)
    _take_slots(live, trial, "failed", waits=waits)


def hang(live: LiveStudy, trial: Trial, silence_seconds: float) -> None:
    """Kill a gang that has been silent for too long."""
    assert trial.attempt is not None  # noqa: S101 - only a trial with a gang can hang
    live.account.charge_trial(trial, "lost", live.now)
    live.outbox.order(KillGang(trial_id=trial.id, attempt=trial.attempt.number))
    lose(live, trial, "timeout", no_sign_of_life(silence_seconds))


def lose(live: LiveStudy, trial: Trial, failure: Failure, message: str, *, counts: bool = True) -> None:
    """End the attempt of a lost gang.

    A lost or hung trial goes on from its checkpoint, up to `faults.attempts` lost attempts; other failures are final.
    """
    outcome = failure if counts else "unstarted"
    if failure == "unreadable":
        _go_back(live, trial)
        failure = "lost"
    elif counts:  # an unreadable file needs no limit: going back ends at the trial's beginning
        trial.lost_attempts += failure in {"lost", "timeout"}
        trial.timeouts += failure == "timeout"
    returns = failure in RETURNS_BY
    _close_attempt(live, trial, outcome if returns else "failed")
    if returns and trial.lost_attempts < live.setup.faults.attempts:
        reason = f"{failure}: goes on from epoch {trial.resume_epoch}, attempt {trial.attempts} was lost"
        mark_paused(live, trial, "fault", reason)
        live.outbox.write(TrialChanged(trial_id=trial.id, columns={"error": message}))
        return
    suffix = f"\n{failure} in {trial.lost_attempts} attempts: {last_line(message)}" if returns else ""
    _write_failure(live, trial, failure, message + suffix)


def _go_back(live: LiveStudy, trial: Trial) -> None:
    """Go back from an unreadable checkpoint to the latest readable milestone, else to the beginning."""
    earlier = live.keeper.other_than(str(trial.resume_checkpoint), trial.id, trial.resume_epoch)
    live.outbox.release(live.keeper.go_on_from(trial.id, earlier.path if earlier else None))
    trial.resume_checkpoint, trial.resume_epoch = (earlier.path, earlier.epoch) if earlier else (None, 0)
    columns: TrialColumns = {"resume_checkpoint": trial.resume_checkpoint, "resume_epoch": trial.resume_epoch}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))


def end_study(live: LiveStudy, state: StudyState, reason: StopReason) -> None:
    """Close the pool, and write the state of the study and the reason for its end."""
    if live.account.is_open:
        live.account.charge_idle(live.account.slots, live.now)
        live.outbox.write(PoolChanged(columns={"pool_closed_at": live.now}))
        live.outbox.order(ClosePool())
    if state == "closed":
        _close_paused(live)
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


def _close_paused(live: LiveStudy) -> None:
    """Only more budget reopens them."""
    for trial in live.registry.in_state("paused"):
        live.registry.move(trial, "pruned")
        columns: TrialColumns = {"state": "pruned", "reason": "closed", "ended_at": live.now}
        live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))


def _write_failure(live: LiveStudy, trial: Trial, failure: Failure, message: str) -> None:
    live.registry.move(trial, "failed")
    trial.failure = failure
    reason = f"{failure}: {last_line(message) or failure}"
    trial.failed = reason, live.now
    columns: TrialColumns = {
        "state": "failed",
        "failure": failure,
        "reason": reason,
        "error": message,
        "ended_at": live.now,
        "resume_checkpoint": None,
    }
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))
    _forget_checkpoint(live, trial)


def _forget_checkpoint(live: LiveStudy, trial: Trial) -> None:
    live.outbox.release(live.keeper.go_on_from(trial.id, None))
    trial.resume_checkpoint = None


def _take_slots(live: LiveStudy, trial: Trial, outcome: str, *, waits: bool) -> None:
    """Slots of a waiting gang are free at once, unless worn; others once the pool reports them."""
    attempt = trial.attempt
    assert attempt is not None  # noqa: S101 - an invariant of the callers
    live.account.charge_idle(attempt.slots, live.now)  # what neither start nor epochs explain
    _close_attempt(live, trial, outcome)
    if waits:
        retire = live.worn(attempt.slots)
        live.give_back(set(attempt.slots) - set(retire))
        live.outbox.order(EndGang(trial_id=trial.id, attempt=attempt.number, retire=retire))
    else:
        live.outbox.order(KillGang(trial_id=trial.id, attempt=attempt.number))


def _close_attempt(live: LiveStudy, trial: Trial, outcome: str) -> None:
    columns: AttemptColumns = {"outcome": outcome, "ended_at": live.now, "charged_until": live.now}
    live.outbox.write(AttemptChanged(trial_id=trial.id, attempt=trial.attempts, columns=columns))
    live.watchdog.ended(trial.id)
    trial.attempt = None


def freeze(live: LiveStudy) -> None:
    """Write the automatic reference point, equal to `reference_point` of the study's records."""
    live.outbox.write(StudyChanged(columns={"reference_point": _point(live)}))


def _point(live: LiveStudy) -> dict[str, float] | None:
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
