"""Choices of categorical parameters that no configuration has."""

from collections.abc import Iterable, Mapping

from search_spaces.parameters import Categorical, Conditional, Value
from search_spaces.space import Space


def untried_choices(
    space: Space, configurations: Iterable[Mapping[str, Value]], *, conditional: bool = True
) -> dict[str, list[Value]]:
    """Return the untried choices by parameter, in the order of the space; parameters without any are left out."""
    searched = {
        name: entry.parameter if isinstance(entry, Conditional) else entry
        for name, entry in space.entries()
        if conditional or not isinstance(entry, Conditional)
    }
    choices = {name: one.choices for name, one in searched.items() if isinstance(one, Categorical)}
    if not choices:
        return {}
    tried: dict[str, set[Value]] = {name: set() for name in choices}
    for params in configurations:
        for name, known in tried.items():
            if name in params:
                known.add(params[name])
    missing = {name: [one for one in all_of if one not in tried[name]] for name, all_of in choices.items()}
    return {name: values for name, values in missing.items() if values}
