"""Possible combinations of the values of some parameters."""

import itertools
from collections.abc import Collection, Iterator, Mapping

from search_spaces.parameters import Categorical, Parameter, Value
from search_spaces.space import Space


def combinations(space: Space, names: Collection[str]) -> Iterator[dict[str, Value]]:
    """Yield configurations with each combination of a few parameters; a range counts as its low end."""
    wanted_of = {name: form["when"] for name, form in space.to_dict().items() if "when" in form}
    parents = {name: _parent(when) for name, when in wanted_of.items()}
    varied = _with_ancestors([name for name in names if name in space], parents)
    tried = [_tried(name, space.parameter(name), wanted_of) for name in varied]
    for values in itertools.product(*tried):
        chosen = dict(zip(varied, values, strict=True))
        yield space.walk(lambda name, parameter, chosen=chosen: chosen.get(name, _first(parameter)))  # type: ignore[misc]


def _with_ancestors(names: list[str], parents: Mapping[str, str]) -> list[str]:
    found = dict.fromkeys(names)
    for name in names:
        above = parents.get(name)
        while above is not None and above not in found:
            found[above] = None
            above = parents.get(above)
    return list(found)


def _tried(name: str, parameter: Parameter, wanted_of: Mapping[str, object]) -> list[Value]:
    if isinstance(parameter, Categorical):
        return list(parameter.choices)
    hung_from = [value for when in wanted_of.values() if _parent(when) == name for value in _values(when)]
    return list(dict.fromkeys([_first(parameter), *hung_from]))


def _first(parameter: Parameter) -> Value:
    return parameter.choices[0] if isinstance(parameter, Categorical) else parameter.low


def _parent(when: object) -> str:
    assert isinstance(when, Mapping)  # noqa: S101 - the form of a condition
    return str(next(iter(when)))


def _values(when: object) -> list[Value]:
    assert isinstance(when, Mapping)  # noqa: S101 - the form of a condition
    values = next(iter(when.values()))
    return list(values) if isinstance(values, list | tuple) else [values]
