"""Ends of attempts that were lost or hung, whose trials are tried again up to `faults.attempts` times."""

from search_spaces.untrusted_text import last_line
from studies.control.machine.commands import KillGang
from studies.control.machine.live_study import LiveStudy
from studies.control.machine.live_trials import Trial
from studies.control.machine.trial_endings import close_attempt, mark_paused, write_failure
from studies.control.machine.watchdog import no_sign_of_life
from studies.storage.writing.changes import TrialChanged, TrialColumns
from trainers.protocol import Failure

RETURNS_BY: frozenset[Failure] = frozenset({"lost", "timeout", "storage"})
"""Failures after which another attempt may succeed."""


def hang(live: LiveStudy, trial: Trial, silence_seconds: float) -> None:
    """Kill a gang that has been silent for too long."""
    assert trial.attempt is not None  # noqa: S101 - only a trial with a gang can hang
    live.account.charge_trial(trial, "lost", live.now)
    live.outbox.order(KillGang(trial_id=trial.id, attempt=trial.attempt.number))
    lose(live, trial, "timeout", no_sign_of_life(silence_seconds))


def lose(live: LiveStudy, trial: Trial, failure: Failure, message: str, *, counts: bool = True) -> None:
    """End a lost gang's attempt; its trial gets up to `faults.attempts` attempts, unless the failure is final."""
    outcome = failure if counts else "unstarted"
    if failure == "unreadable":  # back to the latest readable milestone, else to the beginning
        earlier = live.keeper.other_than(str(trial.resume_checkpoint), trial.id, trial.resume_epoch)
        live.outbox.release(live.keeper.go_on_from(trial.id, earlier.path if earlier else None))
        trial.resume_checkpoint, trial.resume_epoch = (earlier.path, earlier.epoch) if earlier else (None, 0)
        columns: TrialColumns = {"resume_checkpoint": trial.resume_checkpoint, "resume_epoch": trial.resume_epoch}
        live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))
        failure = "lost"
    elif counts:  # an unreadable file needs no limit: going back ends at the beginning of the trial
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
