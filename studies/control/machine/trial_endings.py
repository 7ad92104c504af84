"""Ends attempts and trials, and frees their slots."""

from typing import Literal

from search_spaces.untrusted_text import last_line
from studies.control.machine.live_study import LiveStudy, decision
from studies.control.machine.live_trials import Trial
from studies.control.machine.study_setup import EndGang, KillGang
from studies.control.machine.watchdog import no_sign_of_life
from studies.results import constraints
from studies.storage.writing.changes import AttemptChanged, AttemptColumns, TrialChanged, TrialColumns
from trainers.protocol import Failure

COMPLETE_FOR_REFERENCE = 3  # number of complete trials at which the reference point is frozen

CANCELLED = "cancelled: a user ended it (automl cancel)"


def complete(live: LiveStudy, trial: Trial) -> None:
    """Mark a trial as complete, after its last epoch or an early stop."""
    done, planned = trial.epochs_done, live.setup.epochs
    is_patient = {**live.setup.training, **trial.params}.get("early_stop_patience") is not None
    ended = f"complete after {done} of {planned} epochs"
    stopped = f"val_loss stopped improving: {ended} (early_stop_patience)" if is_patient else f"its code ended: {ended}"
    trial.expect_end_of(done, constraints.columns(live.setup.objectives, live.setup.constraints))
    whole = "trained its only epoch" if planned == 1 else f"trained all {planned} epochs"
    _finish(live, trial, "complete", stopped if done < planned else whole)
    if live.registry.count("complete") >= COMPLETE_FOR_REFERENCE:
        live.freeze_reference()


def prune(live: LiveStudy, trial: Trial, reason: str) -> None:
    """Prune a trial that waits for a decision."""
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
    live.history.paused.pop(trial.started_number, None)
    _write_end(live, trial, "pruned", reason)
    live.decided(trial, decision("stop", reason))
    _forget_checkpoint(live, trial)


def pause(live: LiveStudy, trial: Trial, by: str, reason: str) -> None:
    """Pause a trial that waits for a decision; keeps its checkpoint."""
    mark_paused(live, trial, by, reason)
    _take_slots(live, trial, "paused", waits=True)


def mark_paused(live: LiveStudy, trial: Trial, by: str, reason: str) -> None:
    """Set a trial's state to paused; the caller frees its slots. `by`: see `Trial.paused_by`."""
    live.registry.move(trial, "paused")
    trial.paused_by = by
    columns: TrialColumns = {"state": "paused", "paused_by": by, "reason": reason}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))


def evict(live: LiveStudy, trial: Trial, limit: str) -> None:
    """Prune a paused trial to free disk space; the reason names the `limit`."""
    _discard(live, trial, f"evicted as the least valuable paused trial: {limit}")


def cancel(live: LiveStudy, trial: Trial) -> None:
    """Prune an unfinished trial at a user's request; its unfinished epoch is lost."""
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
    """Return the change that cancels a queued configuration."""
    return TrialChanged(trial_id=trial_id, columns={"state": "pruned", "reason": CANCELLED, "ended_at": now})


def cut(live: LiveStudy, trial: Trial, reason: str) -> None:
    """Pause a trial by killing its processes; the unfinished epoch is lost."""
    live.account.charge_trial(trial, "lost", live.now)
    mark_paused(live, trial, "drain", reason)
    _take_slots(live, trial, "cut", waits=False)


def reject(live: LiveStudy, trial: Trial, failure: Failure, message: str, *, waits: bool) -> None:
    """Fail a trial whose epoch cannot be recorded; kill its processes unless it `waits` for a decision."""
    write_failure(live, trial, failure, message)
    _take_slots(live, trial, "failed", waits=waits)


def write_failure(live: LiveStudy, trial: Trial, failure: Failure, message: str) -> None:
    """Set a trial's state to failed; the caller frees its slots."""
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
    """Free a waiting trial's slots, except worn ones; else kill its ranks, after which the pool reports free slots."""
    attempt = trial.attempt
    assert attempt is not None  # noqa: S101 - an invariant of the callers
    live.account.charge_idle(attempt.slots, live.now)  # for time besides the start and epochs
    close_attempt(live, trial, outcome)
    if waits:
        retire = live.worn(attempt.slots)
        live.give_back(set(attempt.slots) - set(retire))
        live.outbox.order(EndGang(trial_id=trial.id, attempt=attempt.number, retire=retire))
    else:
        live.outbox.order(KillGang(trial_id=trial.id, attempt=attempt.number))


def close_attempt(live: LiveStudy, trial: Trial, outcome: str) -> None:
    """End a trial's running attempt; the caller frees its slots."""
    columns: AttemptColumns = {"outcome": outcome, "ended_at": live.now, "charged_until": live.now}
    live.outbox.write(AttemptChanged(trial_id=trial.id, attempt=trial.attempts, columns=columns))
    live.watchdog.ended(trial.id)
    trial.attempt = None


RETURNS_BY: frozenset[Failure] = frozenset({"lost", "timeout", "storage"})
"""Failures after which another attempt may succeed."""


def hang(live: LiveStudy, trial: Trial, silence_seconds: float) -> None:
    """Kill the processes of a trial that hangs."""
    assert trial.attempt is not None  # noqa: S101 - only a trial with a gang can hang
    live.account.charge_trial(trial, "lost", live.now)
    live.outbox.order(KillGang(trial_id=trial.id, attempt=trial.attempt.number))
    lose(live, trial, "timeout", no_sign_of_life(silence_seconds))


def lose(live: LiveStudy, trial: Trial, failure: Failure, message: str, *, counts: bool = True) -> None:
    """End a failed attempt. The trial continues later, except after a final failure or too many lost attempts."""
    outcome = failure if counts else "unstarted"
    if failure == "unreadable":  # back to the latest readable milestone, else to the beginning
        earlier = live.keeper.other_than(str(trial.resume_checkpoint), trial.id, trial.resume_epoch)
        live.outbox.release(live.keeper.go_on_from(trial.id, earlier.path if earlier else None))
        trial.resume_checkpoint, trial.resume_epoch = (earlier.path, earlier.epoch) if earlier else (None, 0)
        columns: TrialColumns = {"resume_checkpoint": trial.resume_checkpoint, "resume_epoch": trial.resume_epoch}
        live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))
        failure = "lost"
    elif counts:  # unreadable files need no limit: going back ends at the trial's beginning
        trial.lost_attempts += failure in {"lost", "timeout"}
        trial.timeouts += failure == "timeout"
    returns = failure in RETURNS_BY
    close_attempt(live, trial, outcome if returns else "failed")
    if returns and trial.lost_attempts < live.setup.faults.attempts:
        reason = f"{failure}: continues from epoch {trial.resume_epoch}, attempt {trial.attempts} was lost"
        mark_paused(live, trial, "fault", reason)
        live.outbox.write(TrialChanged(trial_id=trial.id, columns={"error": message}))
        return
    suffix = f"\n{failure} in {trial.lost_attempts} attempts: {last_line(message)}" if returns else ""
    write_failure(live, trial, failure, message + suffix)
