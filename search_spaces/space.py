"""The search space: a tree of parameters, each of which exists only at some values of its parent."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from search_spaces.messages import found, listed, meant, nearest, shown
from search_spaces.parameters import (
    Categorical,
    Conditional,
    Float,
    Int,
    Parameter,
    SpaceError,
    Value,
    kind_of,
    parameter_of,
    refusal,
)
from search_spaces.relations import Relation

CONSTRAINTS = "constraints"
"""Key of the YAML form for relations; no parameter can have this name."""
_KEYS: Mapping[str, tuple[str, ...]] = {
    "float": ("low", "high", "log", "step", "prior"),
    "int": ("low", "high", "log", "step", "prior"),
    "categorical": ("choices", "prior"),
}
_REQUIRED = ("low", "high", "choices")
_END = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_RANGE = re.compile(rf"(?P<low>{_END}) ?\.\. ?(?P<high>{_END})(?P<log> log)?", re.IGNORECASE)
ALLOWED = (
    "a mapping with type, and low and high or choices; a range, such as 1e-4..0.1 log; a list of choices; "
    "or one value, for a constant"
)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Space:
    """A frozen tree of parameters.

    Space({
        "optimizer": Categorical(["sgd", "adamw"]),
        "momentum": Float(low=0.0, high=0.99).when(optimizer="sgd"),
    })
    """

    _entries: tuple[tuple[str, Parameter | Conditional], ...]
    _children: Mapping[str | None, tuple[str, ...]]
    _relations: tuple[Relation, ...]

    def __init__(self, parameters: Mapping[str, Parameter | Conditional], constraints: Sequence[str] = ()) -> None:
        """Build the tree.

        Args:
            parameters: Parameters by name, in the order in which roots and siblings get their values.
            constraints: Relations that every configuration satisfies, such as `layers * width <= 4096`.

        Raises:
            SpaceError: A name is not a plain word, a parent is unknown, a float, or cannot take a value in `when`,
                parents form a cycle, or a constraint is not a comparison.
        """
        if not isinstance(parameters, Mapping):
            raise SpaceError(found(parameters, "a mapping of parameter names to parameters"))
        for name, entry in parameters.items():
            _checked_name(name)
            if not isinstance(entry, Parameter | Conditional):
                raise SpaceError(found(entry, "Float, Int or Categorical, with or without .when(...)"), (name,))
        children: dict[str | None, tuple[str, ...]] = {}
        for name, entry in parameters.items():
            parent = entry.parent if isinstance(entry, Conditional) else None
            children[parent] = (*children.get(parent, ()), name)
            if isinstance(entry, Conditional):
                _check_parent(name, entry, parameters)
        object.__setattr__(self, "_entries", tuple(parameters.items()))
        object.__setattr__(self, "_children", MappingProxyType(children))
        _check_no_circle(parameters, {name for name, _ in self.entries()})
        relations, known = [], {}
        for name, entry in parameters.items() if constraints else ():
            known[name] = dict.fromkeys(map(str, getattr(parameter_of(entry), "choices", ())))
        for index, text in enumerate(constraints):
            try:
                relations.append(Relation.of(text, known))
            except SpaceError as error:
                raise error.under(f"{CONSTRAINTS}[{index}]") from None
        object.__setattr__(self, "_relations", tuple(relations))

    def __reduce__(self) -> "tuple[type[Space], tuple[dict[str, Parameter | Conditional], tuple[str, ...]]]":
        return Space, (dict(self._entries), self.constraints)

    def __hash__(self) -> int:
        return hash((self._entries, self.constraints))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return any(name == own for own, _ in self._entries)

    def __repr__(self) -> str:
        return f"Space.from_dict({self.to_dict()!r})"

    @classmethod
    def from_dict(cls, form: object) -> "Space":
        """Read a space from YAML form `{name: {type, low, high, log, step, choices, prior, when}}`, or a short form.

        `(1e-4, 0.1, "log")`, `(16, 64)`, "1e-4..0.1 log" and "16..64" are ranges, of integers if both ends are. Lists
        are choices. A single value is a constant.
        """
        if not isinstance(form, Mapping):
            raise SpaceError(found(form, "a mapping of parameter names to parameters"))
        constraints = form.get(CONSTRAINTS, ())
        if not isinstance(constraints, list | tuple):
            raise SpaceError(found(constraints, "a list of texts, such as layers * width <= 4096"), (CONSTRAINTS,))
        return cls({name: _read_entry(name, entry) for name, entry in form.items() if name != CONSTRAINTS}, constraints)

    def to_dict(self) -> dict[str, Any]:
        """Return the YAML form, from which `Space.from_dict` restores an equal space."""
        form: dict[str, Any] = {name: form_of(entry) for name, entry in self._entries}
        return form | ({CONSTRAINTS: list(self.constraints)} if self._relations else {})

    @property
    def constraints(self) -> tuple[str, ...]:
        """Return the relations as they were written."""
        return tuple(one.text for one in self._relations)

    def allows(self, params: Mapping[str, Value]) -> bool:
        """Return whether a configuration satisfies all constraints."""
        return all(relation.holds(params) for relation in self._relations)

    def names(self) -> tuple[str, ...]:
        """Return all names, in the order of declaration."""
        return tuple(name for name, _ in self._entries)

    def entries(self) -> Iterator[tuple[str, Parameter | Conditional]]:
        """Yield all parameters by name, parents before children, in the order of `walk`."""
        entries = dict(self._entries)
        waiting = list(reversed(self._children.get(None, ())))
        while waiting:
            name = waiting.pop()
            yield name, entries[name]
            waiting.extend(reversed(self._children.get(name, ())))

    def parameter(self, name: str) -> Parameter:
        """Return the parameter of this name. Raises SpaceError if there is none."""
        for own, entry in self._entries:
            if own == name:
                return parameter_of(entry)
        raise SpaceError(self._unknown(name), (name,))

    def walk(self, choose: Callable[[str, Parameter], Value]) -> dict[str, Value]:
        """Choose a value for every active parameter: each root, followed by its active children."""
        params: dict[str, Value] = {}
        entries = dict(self._entries)
        waiting = list(reversed(self._children.get(None, ())))
        while waiting:
            name = waiting.pop()
            entry = entries[name]
            if isinstance(entry, Conditional) and not entry.holds(params[entry.parent]):
                continue
            params[name] = choose(name, parameter_of(entry))
            waiting.extend(reversed(self._children.get(name, ())))
        return params

    def active(self, params: Mapping[str, object]) -> tuple[str, ...]:
        """Return the active parameters at these values, in the order of `walk`."""
        active: dict[str, None] = {}
        for name, entry in self.entries():
            if not isinstance(entry, Conditional) or (
                entry.parent in active and entry.parent in params and entry.holds(params[entry.parent])
            ):
                active[name] = None
        return tuple(active)

    def check(self, params: Mapping[str, Any], *, with_constraints: bool = True) -> None:
        """Raise SpaceError for an unknown, missing, inactive or out-of-range parameter."""
        for name in params:
            if name not in self:
                raise SpaceError(self._unknown(name), (str(name),))
        active = set(self.active(params))
        for name, entry in self.entries():
            parameter = parameter_of(entry)
            if name in active and name not in params:
                raise SpaceError(f"found no value, allowed: {parameter.allowed()}", (name,))
            if name in active and not parameter.contains(params[name]):
                raise SpaceError(refusal(parameter, params[name]), (name,))
            if name not in active and name in params and isinstance(entry, Conditional):
                values = " or ".join(shown(value) for value in entry.values)
                problem = f"found {shown(params[name])}, but this parameter exists only if {entry.parent} is {values}"
                raise SpaceError(problem, (name,))
        if with_constraints:
            self.check_constraints(params)

    def check_constraints(self, params: Mapping[str, Any]) -> None:
        """Raise SpaceError if a configuration violates a constraint."""
        for relation in self._relations:
            if not relation.holds(params):
                given = listed(f"{name}={shown(params[name])}" for name in sorted(relation.names))
                raise SpaceError(f"found {given}, allowed: configurations with {relation.text}", (CONSTRAINTS,))

    def _unknown(self, name: object) -> str:
        return found(name, f"the parameters {listed(self.names())}", nearest(name, self.names()))


def form_of(entry: Parameter | Conditional) -> dict[str, object]:
    """Return the YAML form of one parameter."""
    form = parameter_of(entry).to_dict()
    return form | {"when": entry.to_dict()} if isinstance(entry, Conditional) else form


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name.isascii() or not name.isidentifier():
        problem = found(name, "a name of letters, digits and _ that does not start with a digit")
        raise SpaceError(problem, (str(name),))
    return name


def _check_parent(name: str, child: Conditional, parameters: Mapping[str, Parameter | Conditional]) -> None:
    path = (name, "when", child.parent)
    if child.parent not in parameters:
        others = [other for other in parameters if other != name]
        problem = found(
            child.parent, f"a parent among {listed(others) or 'other parameters'}", nearest(child.parent, others)
        )
        raise SpaceError(problem, path)
    parent = parameter_of(parameters[child.parent])
    if isinstance(parent, Float):
        raise SpaceError("the parent is a float. Use a parent of type categorical or int", path)
    for value in child.values:
        if not parent.contains(value):
            raise SpaceError(refusal(parent, value), path)


def _check_no_circle(parameters: Mapping[str, Parameter | Conditional], reached: set[str]) -> None:
    """Raise SpaceError if a parameter is part of a cycle of parents."""
    parents = {name: entry.parent for name, entry in parameters.items() if isinstance(entry, Conditional)}
    for start in parents:
        if start in reached:
            continue
        trail: list[str] = []
        name = start
        while name not in trail:
            trail.append(name)
            name = parents[name]
        circle = trail[trail.index(name) :]
        arrows = " -> ".join([*circle, name])
        raise SpaceError(
            f"these parameters need each other: {arrows}. Remove `when` from one of them",
            (circle[0], "when", circle[1] if len(circle) > 1 else name),
        )


def _read_entry(key: object, form: object) -> Parameter | Conditional:
    name = _checked_name(key)
    if not isinstance(form, Mapping):
        try:
            return _read_short(form) or _read_constant(form)
        except SpaceError as error:
            raise error.under(name) from None
    kind = form.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        given = f"found {shown(kind)}" if "type" in form else "found nothing"
        problem = f"{given}, allowed: {listed(_KEYS)}{meant(kind, _KEYS)}"
        raise SpaceError(problem, (name, "type"))
    _check_keys(name, kind, form)
    try:
        parameter = _read_parameter(kind, {key: form[key] for key in _KEYS[kind] if key in form})
        return Conditional(parameter=parameter, when=form["when"]) if "when" in form else parameter
    except SpaceError as error:
        raise error.under(name) from None


def _read_short(form: object) -> Parameter | None:
    """Read a range or a list of choices. Returns None for other values."""
    if isinstance(form, str) and (match := _RANGE.fullmatch(form)):
        low, high = (json.loads(match[end]) for end in ("low", "high"))
        return _range(low, high, log=match["log"] is not None)
    if isinstance(form, list | tuple) and len(form) == 3 and form[2] == "log" and all(map(_is_number, form[:2])):
        return _range(form[0], form[1], log=True)  # YAML has no tuples
    if isinstance(form, tuple):
        if len(form) == 2 and all(map(_is_number, form)):
            return _range(*form)
        raise SpaceError(found(form, "(low, high) or (low, high, 'log'); a list has choices"))
    return Categorical(form) if isinstance(form, list) else None


def _range(low: float, high: float, *, log: bool = False) -> Parameter:
    if isinstance(low, int) and isinstance(high, int):
        return Int(low, high, log=log)
    return Float(low, high, log=log)


def _is_number(value: object) -> bool:
    return kind_of(value) in {"int", "float"}


def _read_constant(value: object) -> Categorical:
    """Read a constant as a parameter with one choice. Refuses null: an empty YAML key is probably a mistake."""
    if kind_of(value) in {None, "null"} or (isinstance(value, float) and not math.isfinite(value)):
        raise SpaceError(found(value, ALLOWED))
    return Categorical([cast("Value", value)])


def _check_keys(name: str, kind: str, form: Mapping[object, object]) -> None:
    keys = ("type", *_KEYS[kind], "when")
    for key in form:
        if key not in keys:
            raise SpaceError(
                found(key, f"the keys {listed(keys)} of type {kind}", nearest(key, keys)), (name, str(key))
            )
    for key in _KEYS[kind]:
        if key in _REQUIRED and key not in form:
            allowed = "a list of values" if key == "choices" else "a number"
            raise SpaceError(f"found nothing, allowed: {allowed}", (name, key))


def _read_parameter(kind: str, fields: dict[str, object]) -> Parameter:
    # The constructors check this, despite the static types.
    if kind == "float":
        return Float(**fields)  # type: ignore[arg-type]
    if kind == "int":
        return Int(**fields)  # type: ignore[arg-type]
    return Categorical(**fields)  # type: ignore[arg-type]
