"""Completes configurations with missing values."""

from __future__ import annotations

import random
from collections.abc import Mapping

from search_spaces.drawing import draw_number
from search_spaces.parameters import Categorical, Conditional, Parameter, Value
from search_spaces.space import Space


def complete(space: Space, given: Mapping[str, Value], generator: random.Random) -> dict[str, Value]:
    """Draw missing active parameters, and parents of given ones; SpaceError if one is unknown or out of range."""
    implied = _implied(space, given)

    def choose(name: str, parameter: Parameter) -> Value:
        if name in given:
            return given[name]
        if name in implied:
            return generator.choice(implied[name])
        if isinstance(parameter, Categorical):
            return generator.choice(parameter.choices)
        return draw_number(parameter, generator)

    for name in given:
        space.parameter(name)
    params = space.walk(choose)
    space.check({**given, **params})
    return params


def _implied(space: Space, given: Mapping[str, object]) -> dict[str, tuple[Value, ...]]:
    """Return values of missing parents under which given children exist; on conflict the last child wins."""
    implied: dict[str, tuple[Value, ...]] = {}
    for name, entry in reversed(list(space.entries())):  # children before their parents
        if isinstance(entry, Conditional) and entry.parent not in given and (name in given or name in implied):
            common = tuple(value for value in implied.get(entry.parent, entry.values) if value in entry.values)
            implied[entry.parent] = common or entry.values
    return implied
