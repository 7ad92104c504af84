"""Requests to a study: stop it, end a trial, try parameters next, change the price."""

import random
import re
import shlex
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from automl.given_parameters import unknown_parameter
from automl.stored.open_store import from_store, started_trial
from reports.phrases import exact_usd
from search_spaces.drawing import complete as complete_at_random
from search_spaces.messages import listed
from search_spaces.parameters import SpaceError, Value
from search_spaces.space import Space
from studies.records.records import CANCELLABLE_STATES, MOST_PRICE, StudyRecord, name_of_trial
from studies.spec.spec_errors import SpecError
from studies.storage.leases import lease as leases
from studies.storage.leases.lease import Lease
from studies.storage.reading.reader import load_study
from studies.storage.schema import tables as t
from studies.storage.study_store import Store, StoreError, TrialLine, held_lease, new_id
from studies.storage.writing.changes import TrialChanged
from studies.storage.writing.retrying import retry_patiently

POLL_SECONDS = 0.2
_NAME = re.compile(r"(q?)([0-9]{1,9})")


def cancel_trial(store: Store, study: str, name: str, *, wait_seconds: float) -> dict[str, Any]:
    """Request the end of a trial, and wait at most `wait_seconds` until the controller has ended it.

    Without a controller, ends a queued trial itself.

    Args:
        name: The trial's number, or its name in the queue, such as `q7`.

    Returns:
        Plain values: `study`, `trial` (number, or None), `name`, `state`, `reason`, `driven`, `message`.

    Raises:
        StoreError: There is no such study or trial, or the trial has ended.
    """
    study_id = store.require(study).id
    trial = _find(store, study_id, study, name)
    if not store.request_cancel(trial.id):
        raise StoreError(f"trial: {name} is {trial.state} already. Name a trial that is queued, running or paused")
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
    """Return the trial with a name. A queue's name, such as `q7`, stays valid after the trial's start."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise StoreError(f"trial: found {name!r}, allowed: a number, or a name of the queue such as q7")
    number = int(parts[2])
    if not parts[1]:
        while (found := store.find_trial(study_id, number=number)) is None:
            started_trial(load_study(store, study), number)  # raises, and lists the existing numbers
        return found
    found = store.find_trial(study_id, trial_id=number)
    if found is None or (found.number is None and found.origin == "sampler"):
        queued = listed(trial.name for trial in load_study(store, study).enqueued)
        raise StoreError(f"trial: found {name}, allowed: {queued or f'none, since nothing is enqueued in {study}'}")
    return found


def _end_in_queue(store: Store, study_id: int, trial: TrialLine) -> None:
    """End a queued trial, unless a controller runs the study."""
    lease = leases.acquire(store, study_id)
    if isinstance(lease, leases.Holder):
        return
    try:
        from studies.control.machine.trial_endings import cancelled_in_queue  # loads the whole machine

        end_queued(store, lease, cancelled_in_queue(trial.id, time.time()))
    finally:
        leases.release(store, lease)


def _message(study: str, trial: TrialLine, *, driven: bool) -> str:
    name = name_of_trial(trial.id, trial.number)
    if trial.state not in CANCELLABLE_STATES:
        what = f"is {trial.state}" if trial.number is not None else "is taken out of the queue"
        return f"trial {name} of {study} {what}"
    if driven:
        return f"trial {name} of {study} will be ended; the controller has not ended it yet"
    return f"{study} has no controller; `automl resume {shlex.quote(study)}` ends trial {name}"


def stop_study(store: Store, name: str, *, wait_seconds: float) -> dict[str, Any]:
    """Request a stop with checkpoints, and wait at most `wait_seconds`. Raises StoreError."""
    row = store.require(name)
    if not leases.request_stop(store, row.id):
        if leases.stop_waiting(store, row.id):
            message = f"{name} is drained; its process no longer waits for disk space"
            return {"study": name, "state": row.state, "driven": False, "message": message}
        what = f"`automl resume {shlex.quote(name)}` continues it" if row.state == "running" else f"it is {row.state}"
        return {"study": name, "state": row.state, "driven": False, "message": f"{name} has no controller; {what}"}
    deadline = time.monotonic() + wait_seconds
    while leases.current_holder(store, row.id) is not None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    state = store.require(name).state
    ended = leases.current_holder(store, row.id) is None
    message = f"{name} is {state}" if ended else f"{name} is draining; its trials have not ended their epochs yet"
    return {"study": name, "state": state, "driven": not ended, "message": message}


def enqueue_trial(store: Store, study: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Queue a configuration, which the next free slot (device) trains.

    Args:
        given: Values by name. Missing active parameters are random.

    Returns:
        Plain values: `study`, `name` for `automl cancel`, `params`, `world_size`, `waits` (cause and cure, or empty).

    Raises:
        SpecError: A parameter is unknown, or its value is not allowed.
        StoreError: There is no such study.
    """
    row = store.require(study)
    space = from_store(row.spec, study).space or Space({})
    params = complete(space, given)
    world_size = int(params.get("world_size") or 1)
    enqueue_id = new_id()
    trial_id = retry_patiently(
        lambda: store.enqueue(row.id, params, world_size=world_size, origin="enqueue", enqueue_id=enqueue_id)
    )
    waits = what_keeps_waiting(load_study(store, study))
    name = name_of_trial(trial_id, None)
    return {"study": study, "name": name, "params": params, "world_size": world_size, "waits": waits}


def complete(space: Space, given: Mapping[str, Any]) -> dict[str, Value]:
    """Fill missing parameters with random values. Raises SpecError for a wrong parameter or value."""
    for name in given:
        if name not in space:
            raise SpecError(f"--param {name}", (), unknown_parameter(name, space.names()))
    try:
        return complete_at_random(space, given, random.Random())
    except SpaceError as error:
        raise SpecError(" ".join(["--param", *map(str, error.path)]), (), error.problem) from None


def what_keeps_waiting(record: StudyRecord) -> str:
    """Return why no queued trial starts, and the cure; empty if the next free device starts a queued trial."""
    resume = f"automl resume {shlex.quote(record.name)}"
    trials = record.budget.get("trials")
    if trials is not None and trials.limit is not None and trials.spent >= trials.limit:
        reached = f"{trials.spent:g} of the {trials.limit:g} trials of the budget are started"
        when = f"; when {record.name} has ended, " if record.state == "running" and record.driven else ": "
        count = len(record.started) + max(len(record.enqueued), 1)
        return f"{reached}{when}`{resume} --set budget.trials={count}` starts it"
    if record.state == "closed":
        return f"{record.name} has ended: more budget starts it, for example `{record.resume_with_more}`"
    if record.state == "failed":
        return f"{record.name} has failed: `{resume}` starts it"
    if record.state == "drained" or record.is_abandoned:
        return f"{record.name} does not run: `{resume}` starts it"
    return ""


def set_price(store: Store, name: str, usd_per_slot_hour: float) -> dict[str, Any]:
    """Set the price of a slot (device) from now on.

    Raises:
        StoreError: There is no such study, the price is out of range, or a price of 0 would never end a study whose
            only limit is dollars.
    """
    row = store.require(name)
    if not 0 <= usd_per_slot_hour <= MOST_PRICE:  # also refuses NaN
        raise StoreError(
            f"price: found {usd_per_slot_hour:g}, allowed: dollars per slot and hour from 0 to {MOST_PRICE:,.0f}"
        )
    if usd_per_slot_hour == 0 and from_store(row.spec, name).budget.is_of_dollars_alone:
        raise StoreError(f"price: at 0 dollars, {name} would never use up budget.usd. Name a price above 0")
    store.set_price(row.id, usd_per_slot_hour)
    driven = leases.current_holder(store, row.id) is not None
    when = "from now on" if driven else "from its next start on"
    return {
        "study": name,
        "usd_per_slot_hour": usd_per_slot_hour,
        "driven": driven,
        "message": f"a slot of {name} costs {exact_usd(usd_per_slot_hour)} an hour {when}",
    }


def end_queued(store: Store, lease: Lease, change: TrialChanged) -> None:
    """End a trial if it is still queued. Raises LeaseLostError, without writing, if the lease is lost.

    The study's revision stays the same, because copies in other tools do not show unstarted trials.
    """
    which = (t.trials.c.id == change.trial_id, t.trials.c.state == "queued")
    with store.engine.begin() as connection:
        held_lease(connection, lease.study_id, lease.token)
        connection.execute(sa.update(t.trials).where(*which).values(**change.columns))
