"""How an attempt ends: the trial is complete, pruned, paused or failed, and its slots are free or come back.

* `complete`, `prune`, `pause`: the gang waits at a boundary, its slots are free at once;
* `evict`: a paused trial gives up its checkpoint;
* `cut`: it is stopped within an epoch, which is lost;
* `reject`: its epoch cannot be recorded;
* `lose`, `hang`: the gang is gone; its trial goes on from its checkpoint, or has failed;
* `end_study`: all of them are over.
"""

from __future__ import annotations

from typing import Literal

from studies.control.commands import ClosePool, EndGang, KillGang
from studies.control.live import LiveStudy, decision
from studies.control.setup import MAX_LOST_ATTEMPTS
from studies.control.trials import Trial
from studies.records import StopReason, StudyState
from studies.storage.changes import AttemptChanged, PoolChanged, StudyChanged, TrialChanged
from trainers.protocol import Failure

COMPLETE_FOR_REFERENCE = 3
"""Trials that must be complete before the reference point is frozen."""
RETURNS_BY: frozenset[Failure] = frozenset({"lost", "timeout"})
"""Failures after which another attempt may succeed."""


def complete(live: LiveStudy, trial: Trial) -> None:
    """The last epoch is recorded: of all that were planned, or the one at which the trainer's patience ran out."""
    done, planned = trial.epochs_done, live.setup.epochs
    stopped = f"val_loss stopped improving: complete after {done} of {planned} epochs (early_stop_patience)"
    _finish(live, trial, "complete", stopped if done < planned else f"trained all {planned} epochs")
    if live.registry.count("complete") >= COMPLETE_FOR_REFERENCE:
        live.freeze_reference()


def prune(live: LiveStudy, trial: Trial, reason: str) -> None:
    """The trial does not go on, and its gang waits."""
    _finish(live, trial, "pruned", reason)


def _finish(live: LiveStudy, trial: Trial, state: Literal["complete", "pruned"], reason: str) -> None:
    live.registry.move(trial, state)
    columns = {"state": state, "reason": reason, "ended_at": live.now, "resume_checkpoint": None}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))
    _forget_checkpoint(live, trial)
    _take_slots(live, trial, state, waits=True)


def pause(live: LiveStudy, trial: Trial, by: str, reason: str) -> None:
    """The gang waits and is given back; the trial goes on from its checkpoint some day."""
    mark_paused(live, trial, by, reason)
    _take_slots(live, trial, "paused", waits=True)


def mark_paused(live: LiveStudy, trial: Trial, by: str, reason: str) -> None:
    """Change the trial's state only; whoever calls knows what became of its gang.

    Args:
        live: The study.
        trial: Running, or found running after its controller's death.
        by: "policy"; "drain" or "fault", which go on first.
        reason: One sentence.
    """
    live.registry.move(trial, "paused")
    trial.paused_by = by
    columns = {"state": "paused", "paused_by": by, "reason": reason}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))


def evict(live: LiveStudy, trial: Trial, most: int) -> None:
    """A paused trial gives its checkpoint up, and so its future."""
    live.history.paused.pop(trial.started_number)
    live.registry.move(trial, "pruned")
    reason = f"evicted: {most} trials may wait with a checkpoint (checkpoints.most_paused), and it was worth least"
    columns = {"state": "pruned", "reason": reason, "ended_at": live.now, "resume_checkpoint": None}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))
    live.decided(trial, decision("stop", reason))
    _forget_checkpoint(live, trial)


def cut(live: LiveStudy, trial: Trial, reason: str) -> None:
    """The gang is stopped within its epoch, which is lost."""
    live.account.charge_trial(trial, "lost", live.now)
    mark_paused(live, trial, "drain", reason)
    _take_slots(live, trial, "cut", waits=False)


def reject(live: LiveStudy, trial: Trial, failure: Failure, message: str, *, waits: bool) -> None:
    """An epoch that cannot be recorded; a gang that has gone on to the next one by itself is killed."""
    _write_failure(live, trial, failure, message)
    _take_slots(live, trial, "failed", waits=waits)


def hang(live: LiveStudy, trial: Trial) -> None:
    """The watchdog waited long enough."""
    assert trial.attempt is not None  # noqa: S101 - only a trial with a gang can hang
    live.account.charge_trial(trial, "lost", live.now)
    live.outbox.order(KillGang(trial_id=trial.id, attempt=trial.attempt.number))
    lose(live, trial, "timeout", "no sign of life from a rank within the watchdog's deadline")


def lose(live: LiveStudy, trial: Trial, failure: Failure, message: str) -> None:
    """The gang is gone. A lost trial goes on from its checkpoint, up to three times; others have failed."""
    if failure == "unreadable":
        _go_back(live, trial)
        failure = "lost"
    else:  # going back ends at the trial's beginning, however many files are spoilt
        trial.lost_attempts += failure in RETURNS_BY
    returns = failure in RETURNS_BY
    _close_attempt(live, trial, "lost" if returns else "failed")
    if returns and trial.lost_attempts < MAX_LOST_ATTEMPTS:
        reason = f"{failure}: goes on from epoch {trial.resume_epoch}, attempt {trial.attempts} was lost"
        mark_paused(live, trial, "fault", reason)
        live.outbox.write(TrialChanged(trial_id=trial.id, columns={"error": message}))
        return
    suffix = f"\n{failure} in {trial.lost_attempts} attempts: {_last_line(message)}" if returns else ""
    _write_failure(live, trial, failure, message + suffix)


def _go_back(live: LiveStudy, trial: Trial) -> None:
    """The checkpoint to go on from is spoilt: an earlier milestone takes its place, or the trial's beginning."""
    earlier = live.keeper.before(trial.id, trial.resume_epoch)
    live.outbox.release(live.keeper.go_on_from(trial.id, earlier.path if earlier else None))
    trial.resume_checkpoint, trial.resume_epoch = (earlier.path, earlier.epoch) if earlier else (None, 0)
    columns = {"resume_checkpoint": trial.resume_checkpoint, "resume_epoch": trial.resume_epoch}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))


def end_study(live: LiveStudy, state: StudyState, reason: StopReason) -> None:
    """Nothing runs any more: give the pool back, and say why."""
    if live.account.is_open:
        live.account.charge_idle(range(live.setup.slots), live.now)
        live.outbox.write(PoolChanged(columns={"pool_closed_at": live.now}))
        live.outbox.order(ClosePool())
    if state == "closed":
        _close_paused(live)
        live.freeze_reference()
    columns = {
        "state": state, "stop_reason": reason, "ended_at": live.now,
        "overshoot_nano_usd": live.account.overshoot_nano_usd,
    }  # fmt: skip
    live.outbox.write(StudyChanged(columns=columns))


def _close_paused(live: LiveStudy) -> None:
    """What waits is pruned, until there is more budget."""
    for trial in live.registry.in_state("paused"):
        live.registry.move(trial, "pruned")
        columns = {"state": "pruned", "reason": "closed", "ended_at": live.now}
        live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))


def _write_failure(live: LiveStudy, trial: Trial, failure: Failure, message: str) -> None:
    live.registry.move(trial, "failed")
    trial.failure = failure
    columns = {
        "state": "failed", "failure": failure, "reason": f"{failure}: {_last_line(message) or failure}",
        "error": message, "ended_at": live.now, "resume_checkpoint": None,
    }  # fmt: skip
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))
    _forget_checkpoint(live, trial)


def _forget_checkpoint(live: LiveStudy, trial: Trial) -> None:
    live.outbox.release(live.keeper.go_on_from(trial.id, None))
    trial.resume_checkpoint = None


def _take_slots(live: LiveStudy, trial: Trial, outcome: str, *, waits: bool) -> None:
    """End the attempt; slots of a gang that waits are free at once, unless worn; others when the pool says so."""
    attempt = trial.attempt
    assert attempt is not None  # noqa: S101 - callers have a trial that runs
    _close_attempt(live, trial, outcome)
    if waits:
        retire = live.worn(attempt.slots)
        live.free.update(set(attempt.slots) - set(retire))
        live.outbox.order(EndGang(trial_id=trial.id, attempt=attempt.number, retire=retire))
    else:
        live.outbox.order(KillGang(trial_id=trial.id, attempt=attempt.number))


def _close_attempt(live: LiveStudy, trial: Trial, outcome: str) -> None:
    columns = {"outcome": outcome, "ended_at": live.now, "charged_until": live.now}
    live.outbox.write(AttemptChanged(trial_id=trial.id, attempt=trial.attempts, columns=columns))
    trial.attempt = None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
