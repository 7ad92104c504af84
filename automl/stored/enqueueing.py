"""A configuration that a person wants to try next."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from automl.given_parameters import unknown_parameter
from automl.stored.specs import from_store
from automl.stored.waiting import what_keeps_waiting
from search_spaces.completion import complete as complete_at_random
from search_spaces.parameters import SpaceError, Value
from search_spaces.space import Space
from studies.records import name_of_trial
from studies.spec.errors import SpecError
from studies.storage.reader import load_study
from studies.storage.retrying import retry_patiently
from studies.storage.store import Store, new_id


def enqueue_trial(store: Store, study: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Put a configuration into a study's queue; the next free slot takes it.

    Args:
        store: Store that holds the study.
        study: Name of the study.
        given: Values by name; active parameters that are not given are drawn at random.

    Returns:
        Plain values: `study`, `name` by which `automl cancel` takes it, `params`, `world_size`, and in `waits` what
        keeps the trial from starting and what to do about it; `waits` is empty if nothing does.

    Raises:
        SpecError: A parameter is not in the space, or its value is not allowed.
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
    """Complete a configuration: missing active parameters are drawn at random.

    Args:
        space: Search space of the study.
        given: Values by name.

    Raises:
        SpecError: A given parameter is unknown, inactive or out of range.
    """
    for name in given:
        if name not in space:
            raise SpecError(f"--param {name}", (), unknown_parameter(name, space.names()))
    try:
        return complete_at_random(space, given, random.Random())
    except SpaceError as error:
        raise SpecError(" ".join(["--param", *map(str, error.path)]), (), error.problem) from None
