"""Asks the controller of a study to end one of its trials, and waits for it (`automl cancel`)."""

from __future__ import annotations

import shlex
import time
from typing import Any

from automl.stored.opening import started_trial
from studies.records import CANCELLABLE_STATES
from studies.storage import lease as leases
from studies.storage.reader import load_study
from studies.storage.store import Store, StoreError

POLL_SECONDS = 0.2


def cancel_trial(store: Store, name: str, number: int, *, wait_seconds: float) -> dict[str, Any]:
    """Ask for the end of a trial, and wait until the controller has ended it.

    Args:
        store: Store that holds the study.
        name: Name of the study.
        number: Number of the trial.
        wait_seconds: Seconds to wait at most.

    Returns:
        Plain values: `study`, `trial`, its `state`, its `reason`, whether the study is `driven`, and a `message` for
        people.

    Raises:
        StoreError: There is no such study or trial, or the trial has ended.
    """
    row, trial = store.require(name), started_trial(load_study(store, name), number)
    if not store.request_cancel(row.id, number):
        raise StoreError(f"trial: found {number}, which is {trial.state}; allowed: one that runs or is paused")
    deadline = time.monotonic() + wait_seconds
    while True:
        trial, driven = started_trial(load_study(store, name), number), leases.current_holder(store, row.id) is not None
        if trial.state not in CANCELLABLE_STATES or not driven or time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS)
    if trial.state not in CANCELLABLE_STATES:
        message = f"trial {number} of {name} is {trial.state}"
    elif driven:
        message = f"trial {number} of {name} will be ended; the controller has not done it yet"
    else:
        message = f"no controller drives {name}; `automl resume {shlex.quote(name)}` ends trial {number}"
    return {
        "study": name,
        "trial": number,
        "state": trial.state,
        "reason": trial.reason,
        "driven": driven,
        "message": message,
    }
