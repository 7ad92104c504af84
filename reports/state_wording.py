"""States of studies and trials in words, shared by terminal, report, pages and tools."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping

from studies.records.records import TRIAL_STATES, StudyRecord, StudyState, TrialRecord

_VERBS: Mapping[str, str] = {"running": "is", "drained": "is", "closed": "is", "failed": "has"}
_TRIALS: Mapping[str, str] = {
    "queued": "waits for a slot; `automl cancel {study} {trial}` takes it out of the queue",
    "running": "it trains",
}
"""Reasons of trials whose row has no reason, by state."""
PAUSED_AT_THE_END = "paused at epoch {epochs} when the study closed; more budget reopens it"
"""Reason of a trial whose row has `closed` as its reason."""


def state_text(name: str, state: StudyState | str, *, driven: bool, why: str = "") -> str:
    """Return a study's state and why it ended: `closed: there was nothing left to try`."""
    if state == "running" and not driven:
        return f"running, but its controller has died; `automl resume {shlex.quote(name)}` continues it"
    return f"{state}: {why}" if why else state


def study_sentence(study: StudyRecord, subject: str = "") -> str:
    """Return a study's state as a clause: `moons is closed: there was nothing left to try`."""
    text = state_text(study.name, study.state, driven=study.driven, why=study.why_ended)
    return f"{subject or study.name} {_VERBS[study.state]} {text}"


def trial_reason(trial: TrialRecord, study: str = "STUDY", baseline: str | None = None) -> str:
    """Return why a trial is in its state; for a baseline with its name."""
    reason = trial.reason or _TRIALS.get(trial.state, "").format(study=shlex.quote(study), trial=trial.name)
    if reason == "closed":
        reason = PAUSED_AT_THE_END.format(epochs=len(trial.epochs))
    return f"baseline: {baseline}; {reason}" if baseline else reason


def counted(states: Iterable[str]) -> str:
    """Return the number of trials in each state: `1 running, 2 complete`."""
    numbers = Counter(states)
    return ", ".join(f"{numbers[state]} {state}" for state in TRIAL_STATES if numbers[state])
