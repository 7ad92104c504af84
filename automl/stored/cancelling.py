"""Asks the controller of a study to end one of its trials, and waits for it (`automl cancel`)."""

from __future__ import annotations

import re
import shlex
import time
from typing import Any

from automl.stored.opening import started_trial
from search_spaces.wording import listed
from studies.control.endings import cancelled_in_queue
from studies.records import CANCELLABLE_STATES, name_of_trial
from studies.storage import lease as leases
from studies.storage.queued_trials import end_queued
from studies.storage.reader import load_study
from studies.storage.store import Store, StoreError, TrialLine

POLL_SECONDS = 0.2
_NAME = re.compile(r"(q?)([0-9]{1,9})")


def cancel_trial(store: Store, study: str, name: str, *, wait_seconds: float) -> dict[str, Any]:
    """Ask for the end of a trial, and wait until the controller has ended it.

    What is queued in a study that no controller drives is ended here.

    Args:
        store: Store that holds the study.
        study: Name of the study.
        name: Name of the trial: its number, or that of its place in the queue, such as `q7`.
        wait_seconds: Seconds to wait at most.

    Returns:
        Plain values: `study`, `trial` (its number, None if it never started), its `name`, its `state`, its `reason`,
        whether the study is `driven`, and a `message` for people.

    Raises:
        StoreError: There is no such study or trial, or the trial has ended.
    """
    study_id = store.require(study).id
    trial = _find(store, study_id, study, name)
    if not store.request_cancel(trial.id):
        raise StoreError(f"trial: found {name}, which is {trial.state}; allowed: one that is queued, runs or is paused")
    deadline = time.monotonic() + wait_seconds
    while True:
        driven = leases.current_holder(store, study_id) is not None
        if trial.state == "queued" and not driven:
            _end_in_queue(store, study_id, trial)
        trial = store.find_trial(study_id, trial_id=trial.id) or trial
        if trial.state not in CANCELLABLE_STATES or not driven or time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS)
    return {
        "study": study,
        "trial": trial.number,
        "name": name_of_trial(trial.id, trial.number),
        "state": trial.state,
        "reason": trial.reason,
        "driven": driven,
        "message": _message(study, trial, driven=driven),
    }


def _find(store: Store, study_id: int, study: str, name: str) -> TrialLine:
    """The trial with a name; a name of the queue still holds after the trial has started."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise StoreError(f"trial: found {name!r}, allowed: a number, or a name of the queue such as q7")
    number = int(parts[2])
    if not parts[1]:
        while (found := store.find_trial(study_id, number=number)) is None:
            started_trial(load_study(store, study), number)  # raises, with the numbers that there are
        return found
    found = store.find_trial(study_id, trial_id=number)
    if found is None or (found.number is None and found.origin == "sampler"):
        queued = listed(trial.name for trial in load_study(store, study).enqueued)
        raise StoreError(f"trial: found {name}, allowed: {queued or f'none, since nothing is enqueued in {study}'}")
    return found


def _end_in_queue(store: Store, study_id: int, trial: TrialLine) -> None:
    """End a trial that is queued, unless a controller drives the study: then that does it."""
    lease = leases.acquire(store, study_id)
    if isinstance(lease, leases.Holder):
        return
    try:
        end_queued(store, lease, cancelled_in_queue(trial.id, time.time()))
    finally:
        leases.release(store, lease)


def _message(study: str, trial: TrialLine, *, driven: bool) -> str:
    name = name_of_trial(trial.id, trial.number)
    if trial.state not in CANCELLABLE_STATES:
        what = f"is {trial.state}" if trial.number is not None else "is taken out of the queue"
        return f"trial {name} of {study} {what}"
    if driven:
        return f"trial {name} of {study} will be ended; the controller has not done it yet"
    return f"no controller drives {study}; `automl resume {shlex.quote(study)}` ends trial {name}"
