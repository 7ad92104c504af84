"""Parameters: `Float`, `Int` and `Categorical`. They are frozen, and checked when created."""

import math
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Literal, get_args

from search_spaces.messages import UserError, found, listed, nearest, shown

Value = bool | int | float | str | None  # types of a parameter's value; floats are finite

LARGEST_INT = 2**53
"""Largest integer that is exact as a float: samplers and databases compute with floats."""

_GRID_TOLERANCE = 1e-8  # in steps, as in Optuna's distributions


def first_repeated(values: Iterable[Hashable]) -> int | None:
    """Return the index of the first value that equals an earlier value, or None."""
    seen = set[Hashable]()
    for index, value in enumerate(values):
        if value in seen:
            return index
        seen.add(value)
    return None


class SpaceError(UserError, ValueError):
    """A parameter, a space or an assignment of values is wrong.

    Attributes:
        path: Place inside the space, such as `("momentum", "when", "optimizer")`.
    """

    def __init__(self, problem: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.problem}" if self.path else self.problem

    def under(self, *names: str) -> "SpaceError":
        """Return the error with these names in front of its path."""
        return SpaceError(self.problem, (*names, *self.path))


def kind_of(value: object) -> str | None:
    """Return "null", "bool", "int", "float" or "str"; None for other types. In Python, 1, 1.0 and True are equal."""
    if value is None:
        return "null"
    for kind, cls in (("bool", bool), ("int", int), ("float", float), ("str", str)):
        if isinstance(value, cls):
            return kind
    return None


def same(one: object, other: object) -> bool:
    """Return whether two values are equal and of the same type, so that 1 is not True."""
    return kind_of(one) is not None and kind_of(one) == kind_of(other) and one == other


Confidence = Literal["low", "medium", "high"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    """A user's expectation of good values. `confidence` sets the width of the prior: high, medium or low."""

    center: Value
    confidence: Confidence = "medium"

    def __post_init__(self) -> None:
        if self.confidence not in get_args(Confidence):
            raise SpaceError(found(self.confidence, listed(get_args(Confidence))), ("confidence",))

    def to_dict(self) -> dict[str, object]:
        """Return the YAML form, without default values."""
        form: dict[str, object] = {"center": self.center}
        return form if self.confidence == "medium" else form | {"confidence": self.confidence}


class _WithWhen:
    __slots__ = ()

    def when(self, /, **parent: Value | Sequence[Value]) -> "Conditional":
        """Return this parameter as the child of another: `Float(0, 1).when(optimizer="sgd")`."""
        return Conditional(parameter=self, when=parent)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Float(_WithWhen):
    """A real number from `low` to `high`, both included.

    Attributes:
        log: Search on a log scale; requires `low` above 0.
        step: Distance between allowed values, counted from `low`; None allows all values.
        prior: Expected good values: a `Prior` or its YAML form, or weights of equal parts of the (log) range.
    """

    low: float
    high: float
    _: KW_ONLY
    log: bool = False
    step: float | None = None
    prior: Prior | Sequence[float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", _finite(self.low, "low"))
        object.__setattr__(self, "high", _finite(self.high, "high"))
        if self.step is not None:
            object.__setattr__(self, "step", _finite(self.step, "step"))
        _check_range(self)
        if not math.isfinite(self.high - self.low):
            raise SpaceError(found(self.high, f"at most the largest float above low ({self.low})"), ("high",))
        object.__setattr__(self, "prior", _checked_prior(self))

    @property
    def top(self) -> float:
        """Return the largest possible value: `high`, or the last step below it."""
        if self.step is None:
            return self.high
        steps = math.floor((self.high - self.low) / self.step + _GRID_TOLERANCE)
        return min(self.high, self.low + steps * self.step)

    def contains(self, value: object) -> bool:
        """Return whether the value is a number in the range and on a step."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        if self.step is None:
            return True
        steps = (value - self.low) / self.step
        return abs(steps - round(steps)) < _GRID_TOLERANCE

    def allowed(self) -> str:
        """Return the allowed values in words."""
        steps = f" in steps of {self.step}" if self.step is not None else ""
        return f"a number from {self.low} to {self.high}{steps}"

    def to_dict(self) -> dict[str, object]:
        """Return the YAML form, without default values."""
        return {"type": "float", **_range_dict(self)}


@dataclass(frozen=True, slots=True)
class Int(_WithWhen):
    """A whole number from `low` to `high`, both included.

    Attributes:
        log: Search on a log scale; requires `low` above 0.
        step: Distance between allowed values, counted from `low`; None is 1.
        prior: Expected good values, as for `Float`.
    """

    low: int
    high: int
    _: KW_ONLY
    log: bool = False
    step: int | None = None
    prior: Prior | Sequence[float] | None = None

    def __post_init__(self) -> None:
        _whole(self.low, "low")
        _whole(self.high, "high")
        if self.step is not None:
            _whole(self.step, "step")
        _check_range(self)
        object.__setattr__(self, "prior", _checked_prior(self))

    @property
    def top(self) -> int:
        """Return the largest possible value: `high`, or the last step below it."""
        return self.high - (self.high - self.low) % (self.step or 1)

    def contains(self, value: object) -> bool:
        """Return whether the value is an int (not a bool, not 1.0) in the range and on a step."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            return False
        return (value - self.low) % (self.step or 1) == 0

    def allowed(self) -> str:
        """Return the allowed values in words."""
        steps = f" in steps of {self.step}" if self.step is not None else ""
        return f"a whole number from {self.low} to {self.high}{steps}"

    def to_dict(self) -> dict[str, object]:
        """Return the YAML form, without default values."""
        return {"type": "int", **_range_dict(self)}


@dataclass(frozen=True, slots=True)
class Categorical(_WithWhen):
    """A value from a list of choices that have no order.

    Attributes:
        choices: None, bools, ints, finite floats and strings, all different under `==`: Optuna equates 1, 1.0 and True.
        prior: Expected best choice: a `Prior` or its YAML form, or a weight for each choice.
    """

    choices: Sequence[Value]
    prior: Prior | Sequence[float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", _checked_values(self.choices, "choices"))
        object.__setattr__(self, "prior", _checked_prior(self))

    def contains(self, value: object) -> bool:
        """Return whether the value is a choice of the same kind: 1.0 and True are not 1."""
        return any(same(choice, value) for choice in self.choices)

    def allowed(self) -> str:
        """Return the allowed values in words."""
        return f"one of {listed(shown(choice) for choice in self.choices)}"

    def to_dict(self) -> dict[str, object]:
        """Return the YAML form."""
        return {"type": "categorical", "choices": list(self.choices), **_prior_dict(self)}


Parameter = Float | Int | Categorical


@dataclass(frozen=True, slots=True, init=False)
class Conditional:
    """A parameter that exists only at some values of its parent. Made by `.when(...)`."""

    parameter: Parameter
    parent: str
    values: tuple[Value, ...]

    def __init__(self, *, parameter: Parameter, when: object) -> None:
        """Check `when`, which maps the parent's name to its values. Raises SpaceError."""
        if not isinstance(when, Mapping) or len(when) != 1:
            raise SpaceError(found(when, "one parent with a value or a list of values"), ("when",))
        ((parent, values),) = when.items()
        if not isinstance(parent, str):
            raise SpaceError(found(parent, "the name of a parameter"), ("when",))
        values = values if isinstance(values, list | tuple) else [values]
        try:
            checked = _checked_values(values, parent)
        except SpaceError as error:
            raise error.under("when") from None
        object.__setattr__(self, "parameter", parameter)
        object.__setattr__(self, "parent", parent)
        object.__setattr__(self, "values", checked)

    def holds(self, value: object) -> bool:
        """Return whether the parameter exists at this value of its parent."""
        return any(same(allowed, value) for allowed in self.values)

    def to_dict(self) -> dict[str, object]:
        """Return the `when` of the YAML form."""
        return {self.parent: self.values[0] if len(self.values) == 1 else list(self.values)}


def parameter_of(entry: Parameter | Conditional) -> Parameter:
    """Return the parameter of a space's entry."""
    return entry.parameter if isinstance(entry, Conditional) else entry


def refusal(parameter: Parameter, value: object) -> str:
    """Return the message for a value that is not allowed."""
    choices = parameter.choices if isinstance(parameter, Categorical) else ()
    return found(value, parameter.allowed(), nearest(value, [c for c in choices if isinstance(c, str)]))


def _finite(value: object, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise SpaceError(found(value, "a finite number"), (name,))


def _whole(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST_INT:
        raise SpaceError(found(value, f"a whole number, at most {LARGEST_INT} in size"), (name,))


def _check_range(parameter: Float | Int) -> None:
    low, high, step = parameter.low, parameter.high, parameter.step
    if not isinstance(parameter.log, bool):
        raise SpaceError(found(parameter.log, "true or false"), ("log",))
    if low >= high:
        raise SpaceError(found(low, f"a number below high ({high})"), ("low",))
    if parameter.log and low <= 0:
        raise SpaceError(found(low, "a number above 0, because log is true"), ("low",))
    if step is None:
        return
    if parameter.log:
        raise SpaceError(found(step, "no step, because log is true"), ("step",))
    if not 0 < step <= high - low:
        raise SpaceError(found(step, f"above 0 and at most high - low ({high - low})"), ("step",))


def _range_dict(parameter: Float | Int) -> dict[str, object]:
    form: dict[str, object] = {"low": parameter.low, "high": parameter.high}
    if parameter.log:
        form["log"] = True
    if parameter.step is not None:
        form["step"] = parameter.step
    return form | _prior_dict(parameter)


def _prior_dict(parameter: Float | Int | Categorical) -> dict[str, object]:
    prior = parameter.prior
    if prior is None:
        return {}
    return {"prior": prior.to_dict() if isinstance(prior, Prior) else list(prior)}


_PRIOR_KEYS = ("center", "confidence")


def _checked_prior(parameter: Float | Int | Categorical) -> Prior | tuple[float, ...] | None:
    """Return the prior, read from its YAML form if needed. Raises SpaceError for a wrong centre or weight."""
    prior = parameter.prior
    try:
        if prior is None:
            return None
        is_array = getattr(prior, "ndim", 0) == 1  # of numpy
        if is_array or (isinstance(prior, Sequence) and not isinstance(prior, str)):
            return _checked_weights(parameter, tuple(prior))  # type: ignore[arg-type]
        prior = prior if isinstance(prior, Prior) else _read_prior(prior)
        _check_center(parameter, prior.center)
    except SpaceError as error:
        raise error.under("prior") from None
    return prior


def _checked_weights(parameter: Float | Int | Categorical, weights: tuple[object, ...]) -> tuple[float, ...]:
    if isinstance(parameter, Categorical) and len(weights) != len(parameter.choices):
        raise SpaceError(f"found {len(weights)} weights, allowed: one for each of {len(parameter.choices)} choices")
    numbers = []
    for index, weight in enumerate(weights):
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight <= sys.float_info.max:  # type: ignore[operator]
            raise SpaceError(found(weight, "a weight: a finite number, at least 0"), (str(index),))
        numbers.append(float(weight))  # type: ignore[arg-type]
    if not any(numbers):
        raise SpaceError(found(list(weights), "weights, at least one of them above 0"))
    return tuple(numbers)


def _read_prior(form: object) -> Prior:
    if not isinstance(form, Mapping):
        raise SpaceError(found(form, "a mapping with center and, optionally, confidence, or a list of weights"))
    for key in form:
        if key not in _PRIOR_KEYS:
            raise SpaceError(found(key, f"the keys {listed(_PRIOR_KEYS)}", nearest(key, _PRIOR_KEYS)), (str(key),))
    if "center" not in form:
        raise SpaceError("the value is missing. Set it to the value that you expect to be best", ("center",))
    return Prior(**form)


def _check_center(parameter: Float | Int | Categorical, center: Value) -> None:
    if isinstance(parameter, Categorical):
        if not parameter.contains(center):
            raise SpaceError(refusal(parameter, center), ("center",))
        return
    kinds, number = (int, "a whole number") if isinstance(parameter, Int) else (int | float, "a number")
    is_number = isinstance(center, kinds) and not isinstance(center, bool)
    if not (is_number and parameter.low <= center <= parameter.high):  # type: ignore[operator]
        raise SpaceError(found(center, f"{number} from {parameter.low} to {parameter.high}"), ("center",))


def _checked_values(values: object, name: str) -> tuple[Value, ...]:
    if not isinstance(values, list | tuple):
        raise SpaceError(found(values, "a list of values"), (name,))
    if not values:
        raise SpaceError(found(list(values), "at least one value"), (name,))
    for value in values:
        if kind_of(value) is None or (isinstance(value, float) and not math.isfinite(value)):
            raise SpaceError(found(value, "null, true, false, finite numbers and strings"), (name,))
    if (index := first_repeated(values)) is not None:
        allowed = "allowed: values that all differ (1, 1.0 and true are equal)"
        raise SpaceError(f"found {shown(values[index])} twice, {allowed}", (name,))
    return tuple(values)
