"""`automl enqueue`: parameters to try next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from automl.running import from_store
from search_spaces.parameters import Categorical, Parameter, SpaceError, Value
from search_spaces.space import Space
from studies.spec_errors import SpecError
from studies.storage.store import Store
from studies.yaml_reader import read_yaml
from trainers.probe import draw_number


def read_params(given: Sequence[str], source: str = "--param") -> dict[str, Any]:
    """`name=value` each, the value read as YAML.

    Raises:
        SpecError: One of them has no `=`, is given twice, or is no YAML.
    """
    params: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise SpecError(source, (), f"found {text!r}, allowed: NAME=VALUE")
        if name in params:
            raise SpecError(f"{source} {name}", (), f"found {text!r}, but {name} is given twice")
        params[name] = read_yaml(value, f"{source} {name}")
    return params


def enqueue_trial(store: Store, study: str, given: Sequence[str]) -> dict[str, Any]:
    """Put a configuration into the study's queue.

    Raises:
        SpecError: A parameter is not in the space, or its value is not allowed.
        StoreError: There is no such study.
    """
    row = store.require(study)
    space = from_store(row.spec, study).space or Space({})
    params = complete(space, read_params(given))
    world_size = int(params.get("world_size") or 1)
    store.enqueue(row.id, params, world_size=world_size, origin="enqueue")
    return {"study": study, "params": params, "world_size": world_size}


def complete(space: Space, given: dict[str, Any]) -> dict[str, Value]:
    """The given parameters with the missing active ones drawn at random.

    Raises:
        SpecError: One that is given is unknown, inactive or out of range.
    """
    generator = random.Random()

    def choose(name: str, parameter: Parameter) -> Value:
        if name in given:
            return given[name]  # type: ignore[no-any-return]
        if isinstance(parameter, Categorical):
            return generator.choice(parameter.choices)
        return draw_number(parameter, generator)

    try:
        known = {name: value for name, value in given.items() if name in space}
        for name in given:
            space.parameter(name)
        params = space.walk(choose)
        space.check({**known, **params})
    except SpaceError as error:
        raise SpecError(" ".join(["--param", *map(str, error.path)]), (), error.problem) from None
    return params
