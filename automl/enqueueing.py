"""`automl enqueue`: parameters to try next."""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from automl.launching.running import from_store
from search_spaces.drawing import draw_number
from search_spaces.parameters import Categorical, Conditional, Parameter, SpaceError, Value
from search_spaces.space import Space
from studies.spec.errors import SpecError
from studies.spec.yaml_reader import read_yaml
from studies.storage.store import Store


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

    Returns:
        `study`, `params`, `world_size`, and in `waits` what keeps it from being tried now, or nothing.

    Raises:
        SpecError: A parameter is not in the space, or its value is not allowed.
        StoreError: There is no such study.
    """
    row = store.require(study)
    space = from_store(row.spec, study).space or Space({})
    params = complete(space, read_params(given))
    world_size = int(params.get("world_size") or 1)
    store.enqueue(row.id, params, world_size=world_size, origin="enqueue")
    return {"study": study, "params": params, "world_size": world_size, "waits": _waits(row.state, study)}


def _waits(state: str, study: str) -> str:
    """What has to be done before the study can try it; empty while it runs."""
    go_on = f"automl resume {shlex.quote(study)}"
    if state == "drained":
        return f"{study} does not run: `{go_on}` goes on"
    if state in {"closed", "failed"}:
        return f"{study} has ended: `{go_on} --set budget.LIMIT=...` with more budget goes on"
    return ""


def complete(space: Space, given: dict[str, Any]) -> dict[str, Value]:
    """The given parameters with the missing active ones drawn at random; parents so that what was given exists.

    Raises:
        SpecError: One that is given is unknown, inactive or out of range.
    """
    generator, implied = random.Random(), _implied(space, given)

    def choose(name: str, parameter: Parameter) -> Value:
        if name in given:
            return given[name]  # type: ignore[no-any-return]
        if name in implied:
            return generator.choice(implied[name])
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


def _implied(space: Space, given: Mapping[str, object]) -> dict[str, tuple[Value, ...]]:
    """By parent that is not given the values under which all of its given children exist, or those of the last one."""
    implied: dict[str, tuple[Value, ...]] = {}
    for name, entry in reversed(list(space.entries())):  # children before their parents
        if isinstance(entry, Conditional) and entry.parent not in given and (name in given or name in implied):
            common = tuple(value for value in implied.get(entry.parent, entry.values) if value in entry.values)
            implied[entry.parent] = common or entry.values
    return implied
