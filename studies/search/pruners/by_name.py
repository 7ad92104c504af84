"""Builds pruners from their name and options in a spec.

A custom pruner is one file next to the spec, named `search.pruner: my_module:MyPruner`:

    @dataclass(frozen=True, kw_only=True)
    class MyPruner(StoppingPruner):
        grace: int = field(default=3, metadata={"at_least": 1})

        def rungs(self, epochs): ...
        def decide(self, history, number, rung): ...

The dataclass's fields are its options in the spec (`pruner: {name: "my_module:MyPruner", grace: 5}`). Values are
checked against annotations and the lower bound `at_least`. A pruner that needs the study's random seed or
learning-curve model has a class method `for_study(context, **options)`, called instead of the class.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from search_spaces.messages import found, listed, nearest
from studies.search.user_objects import SearchError, load_object

if TYPE_CHECKING:
    from studies.search.policy import Pruner, PrunerContext

BUILT_IN: Mapping[str, str] = {
    "none": "studies.search.pruners.none:NoPruner",
    "mo_asha": "studies.search.pruners.mo_asha:MoAsha",
    "median": "studies.search.pruners.median:Median",
    "break_even": "studies.search.pruners.break_even:BreakEven",
}
"""Import path of each built-in pruner, by its short name."""
METHODS = ("rungs", "decide", "thaw", "prepare", "worth_least")
"""Methods of a pruner (`studies.search.policy.Pruner`)."""


def make_pruner(name: str, options: Mapping[str, object], context: PrunerContext) -> Pruner:
    """Build a pruner. Raises `SearchError` for an unknown pruner or option."""
    pruner: Pruner = _made(name, options_with_defaults(name, options), context)
    missing = [method for method in METHODS if not callable(getattr(pruner, method, None))]
    if missing:
        problem = f"{name!r} returns a {type(pruner).__name__} without {listed(missing)}. Add them"
        raise SearchError(problem, ("pruner",))
    return pruner


def _made(name: str, options: Mapping[str, object], context: PrunerContext) -> Any:
    make = _object(name)
    try:
        return make.for_study(context, **options) if takes_context(name) else make(**options)
    except (Exception, SystemExit) as error:
        if name in BUILT_IN:
            raise
        raise SearchError(f"{name!r} cannot be used ({type(error).__name__}: {error})", ("pruner",)) from None


def options_with_defaults(name: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return all options of a pruner in the order of its fields. Raises `SearchError` for a wrong option."""
    make = _object(name)
    fields = {field.name: field for field in dataclasses.fields(make) if field.init} if _is_dataclass(make) else {}
    hints = _hints(make)
    for option, value in options.items():
        if option not in fields:
            raise SearchError(unknown_option(name, option, tuple(fields)), ("pruner", option))
        problem = _refusal(value, hints.get(option), fields[option].metadata.get("at_least"))
        if problem is not None:
            raise SearchError(problem, ("pruner", option))
    defaults = {field.name: field.default for field in fields.values() if field.default is not dataclasses.MISSING}
    return {option: {**defaults, **options}[option] for option in fields if option in {**defaults, **options}}


def takes_context(name: str) -> bool:
    """Return whether a pruner has `for_study`. Raises `SearchError` for an unknown pruner."""
    return hasattr(_object(name), "for_study")


def _object(name: str) -> Any:
    return load_object(BUILT_IN.get(name, name), ("pruner",))


def _is_dataclass(made: object) -> bool:
    return isinstance(made, type) and dataclasses.is_dataclass(made)


def _hints(made: Any) -> dict[str, Any]:
    """Return the annotations by field; empty if they cannot be evaluated, as with type-checking imports."""
    try:
        return typing.get_type_hints(made) if _is_dataclass(made) else {}
    except NameError:
        return {}


def unknown_option(name: str, option: str, options: tuple[str, ...] = ()) -> str:
    """Return the message about an unknown option."""
    others = [other for other in BUILT_IN if other != name and option in _option_names(other)]
    allowed = listed(options) or "no option"
    text = f"the unknown key {found(option, f'{allowed} with the pruner {name}', nearest(option, options))}"
    hint = f"; {' and '.join(others)} {'have' if others[1:] else 'has'} it" if others else ""
    return f"found {text.replace('found ', '', 1)}{hint}"


def _option_names(name: str) -> tuple[str, ...]:
    made = _object(name)
    return tuple(field.name for field in dataclasses.fields(made)) if _is_dataclass(made) else ()


def _refusal(value: object, hint: Any, at_least: float | None) -> str | None:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    said = [_allowed(kind, at_least) for kind in kinds]
    if any(one is None for one in said) or any(_is_of(value, kind, at_least) for kind in kinds):
        return None
    words = [word for kind in kinds if typing.get_origin(kind) is Literal for word in typing.get_args(kind)]
    return found(value, " or ".join(one for one in said if one is not None), nearest(value, map(str, words)))


def _allowed(kind: Any, at_least: float | None) -> str | None:
    if typing.get_origin(kind) is Literal:
        return listed(map(str, typing.get_args(kind)))
    bound = "" if at_least is None else f" of at least {at_least:g}"
    words = {
        bool: "true or false",
        int: f"a whole number{bound}",
        float: f"a finite number{bound}",
        str: "text",
        type(None): "null",
    }
    return words.get(kind)


def _is_of(value: object, kind: Any, at_least: float | None) -> bool:
    if typing.get_origin(kind) is Literal:
        return any(value == word and type(value) is type(word) for word in typing.get_args(kind))
    if kind in {int, float}:
        if not isinstance(value, (int, kind)) or isinstance(value, bool) or not math.isfinite(value):
            return False
        return bool(at_least is None or value >= at_least)
    return isinstance(value, kind)
