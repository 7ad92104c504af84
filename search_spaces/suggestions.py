"""Parameters that a trial requests at run time: domains and values.

Values that the search has not chosen are drawn from seed, trial and name alone, so all ranks and attempts get the same.
"""

import functools
import json
import math
import operator
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import cast

from search_spaces.drawing import derived_seed, draw_number
from search_spaces.messages import shown
from search_spaces.parameters import Categorical, Float, Int, Parameter, Value, same
from search_spaces.space import Space


@dataclass(frozen=True, slots=True)
class Constant:
    """A range with a single value. The range may be wider in later trials."""

    value: float

    def contains(self, value: object) -> bool:
        """Return whether a value is the allowed value."""
        return same(self.value, value)

    def allowed(self) -> str:
        """Return the allowed value in words."""
        return shown(self.value)

    def to_dict(self) -> dict[str, object]:
        """Return the stored form."""
        return {"type": _CONSTANT, "value": self.value}


_CONSTANT = "constant"
Domain = Parameter | Constant


@dataclass(frozen=True, slots=True)
class Asked:
    """A parameter's value, with the domain of its request."""

    value: Value
    domain: Domain


def float_domain(low: object, high: object, *, step: object = None, log: bool = False) -> Domain:
    """Return the domain of a number. Raises SpaceError for an infinite bound or an empty range."""
    low, high = _plain_float(low), _plain_float(high)
    return _range(Float, low, high, None if step is None else _plain_float(step), log=log)


def int_domain(low: object, high: object, *, step: object = 1, log: bool = False) -> Domain:
    """Return the domain of a whole number. Raises SpaceError for a wrong bound or an empty range."""
    low, high, step = _plain_int(low), _plain_int(high), _plain_int(step)
    return _range(Int, low, high, None if step == 1 else step, log=log)


def _range(kind: type[Float | Int], low: object, high: object, step: object, *, log: bool) -> Domain:
    """Return a range, or as in Optuna a constant if the range has one value."""
    if isinstance(low, int | float) and isinstance(high, int | float) and math.isfinite(low) and low <= high:
        is_stepped_over = isinstance(step, int | float) and not log and step > high - low
        if (low == high or is_stepped_over) and not (log and low <= 0):
            return Constant(low)
    return kind(low, high, log=log, step=step)  # type: ignore[arg-type]


def _plain_float(value: object) -> object:
    """Convert a number to Python's float. Other values are returned, and refused later."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value


def _plain_int(value: object) -> object:
    """Convert a whole number, also 8.0, to Python's int. Other values are returned, and refused later."""
    if isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return value


def choice_domain(choices: Sequence[Value]) -> Domain:
    """Return the domain of a choice. Raises SpaceError for no values, duplicates or complex values."""
    return Categorical(list(choices) if isinstance(choices, tuple | range) else choices)


def drawn(domain: Domain, *, seed: int, trial: int, name: str) -> Value:
    """Draw a value uniformly on the domain's scale from seed, trial and name."""
    generator = random.Random(derived_seed("asked", seed, trial, name))
    match domain:
        case Constant():
            return domain.value
        case Categorical():
            return generator.choice(domain.choices)
    return draw_number(domain, generator)


def are_compatible(one: Domain, other: Domain) -> bool:
    """Return whether two domains may share a name: numbers of one type and scale, or the same choices."""
    if isinstance(one, Constant) or isinstance(other, Constant):
        return True
    if isinstance(one, Categorical) or isinstance(other, Categorical):
        if not (isinstance(one, Categorical) and isinstance(other, Categorical)):
            return False
        return len(one.choices) == len(other.choices) and all(map(same, one.choices, other.choices))
    return type(one) is type(other) and one.log == other.log


def in_words(domain: Domain) -> str:
    """Describe a domain in words."""
    scale = " (log)" if isinstance(domain, Float | Int) and domain.log else ""
    return f"{domain.allowed()}{scale}"


def as_plain(asked: Mapping[str, Asked]) -> dict[str, dict[str, object]]:
    """Convert values and domains by name to JSON values."""
    return {name: {"value": one.value, "domain": one.domain.to_dict()} for name, one in asked.items()}


def asked_from_plain(form: object) -> dict[str, Asked]:
    """Restore values and domains from `as_plain`; empty for other forms."""
    entries = cast("Mapping[str, Mapping[str, object]]", form) if isinstance(form, Mapping) else {}
    return {
        name: Asked(cast("Value", one["value"]), _parsed(json.dumps(one["domain"], sort_keys=True)))
        for name, one in entries.items()
    }


@functools.lru_cache(maxsize=1024)  # most trials of a study have the same few domains
def _parsed(text: str) -> Domain:
    written: dict[str, object] = json.loads(text)
    if written["type"] == _CONSTANT:
        return Constant(cast("float", written["value"]))
    return Space.from_dict({"asked": written}).parameter("asked")
