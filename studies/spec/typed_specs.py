"""A spec with typed objects in it, as the plain mapping that a YAML file would hold."""

from collections.abc import Mapping

from search_spaces.parameters import Categorical, Conditional, Float, Int
from search_spaces.space import Space, form_of
from studies.spec.section import Section

DEEPEST = 3  # depth at which typed objects can be in a spec: `search.pruner`, `objectives.0`, `space.width`


def as_plain(spec: Mapping[str, object]) -> dict[str, object]:
    """Return the mapping with sections, spaces and parameters in YAML form, to check it like a file."""
    return {key: _plain(value, DEEPEST - 1) for key, value in spec.items()}


def _plain(value: object, levels: int) -> object:
    if isinstance(value, Section):
        value = value.given()
    elif isinstance(value, Space):
        return value.to_dict()
    elif isinstance(value, Float | Int | Categorical | Conditional):
        return form_of(value)
    if levels and isinstance(value, Mapping):
        return {key: _plain(inner, levels - 1) for key, inner in value.items()}
    if levels and isinstance(value, list | tuple):
        plain = [_plain(inner, levels - 1) for inner in value]
        return plain if any(one is not other for one, other in zip(plain, value, strict=True)) else value
    return value
