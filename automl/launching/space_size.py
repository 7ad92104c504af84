"""How large a search space is, in words."""

from __future__ import annotations

from collections import Counter
from math import prod

from reports.wording import plural
from search_spaces.parameters import Categorical, Conditional, Float, Int, Parameter
from search_spaces.space import Space
from search_spaces.wording import listed

_LARGE = 10**6


def size_in_words(space: Space) -> str:
    """Return the number of parameters by kind, their names, and the number of configurations if that is finite."""
    if not len(space):
        return "no parameter, so that every trial is the same"
    kinds = Counter(_kind(_parameter(entry)) for _, entry in space.entries())
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    total = configurations(space)
    size = "" if total is None else f", {_count(total)} configurations"
    return f"{plural(len(space), 'parameter')} ({shown}){size}: {listed(space.names())}"


def _count(total: int) -> str:
    return f"{total:,}" if total < _LARGE else f"about {total:.2g}"


def configurations(space: Space) -> int | None:
    """Return the number of configurations of a space; None if a parameter takes any number of a range."""
    entries = dict(space.entries())
    if any(isinstance(one := _parameter(entry), Float) and one.step is None for entry in entries.values()):
        return None
    children: dict[str | None, list[str]] = {}
    for name, entry in entries.items():
        children.setdefault(entry.parent if isinstance(entry, Conditional) else None, []).append(name)

    def count(name: str) -> int:
        below = {child: entry for child in children.get(name, ()) if isinstance(entry := entries[child], Conditional)}
        special = {value for entry in below.values() for value in entry.values}
        plain = _values(_parameter(entries[name])) - len(special)
        return plain + sum(prod(count(child) for child, entry in below.items() if entry.holds(v)) for v in special)

    return prod(count(root) for root in children.get(None, ()))


def _parameter(entry: Parameter | Conditional) -> Parameter:
    return entry.parameter if isinstance(entry, Conditional) else entry


def _kind(parameter: Parameter) -> str:
    if isinstance(parameter, Categorical):
        return "of choices" if len(parameter.choices) > 1 else "constant"
    return "whole" if isinstance(parameter, Int) else "continuous" if parameter.step is None else "in steps"


def _values(parameter: Parameter) -> int:
    """Number of values of a parameter that is not continuous."""
    if isinstance(parameter, Categorical):
        return len(parameter.choices)
    step = parameter.step or 1
    return round((parameter.top - parameter.low) / step) + 1
