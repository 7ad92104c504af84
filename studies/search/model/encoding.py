"""Configurations as points, with every parameter scaled to [0, 1].

Numbers are scaled between their bounds, logarithmically if the space says so. A categorical parameter with numeric
choices becomes the scaled rank of its value; others are one-hot with the values 0 and `ONE_HOT`. An absent parameter is
`ABSENT`, or 0 in all its columns if one-hot. Gaussian processes use points x [D]. Samplers draw points u [P] of the
unit cube, one coordinate for each of `Space.entries`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.parameters import Categorical, Conditional, Float, Int, Parameter, parameter_of
from search_spaces.space import Space
from studies.search.arrays import Array
from trainers.protocol import ParameterValue

ONE_HOT = 0.5
"""Coordinate of a one-hot parameter's choice."""
ABSENT = 0.5
"""Coordinate of a parameter that a configuration lacks."""


def identity(params: Mapping[str, ParameterValue]) -> tuple[tuple[str, str], ...]:
    """Return a key that equal configurations share; 1, 1.0 and true differ."""
    return tuple(sorted((name, repr(value)) for name, value in params.items()))


@dataclass(frozen=True, slots=True)
class _Axis:
    name: str
    parameter: Parameter
    when: Conditional | None
    column: int
    width: int


class Encoder:
    """Converts configurations of a space to points and back."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._axes: list[_Axis] = []
        column = 0
        for name, entry in space.entries():
            when = entry if isinstance(entry, Conditional) else None
            parameter = parameter_of(entry)
            width = _width(parameter)
            self._axes.append(_Axis(name, parameter, when, column, width))
            column += width
        self.width = column
        self.parameters = len(self._axes)

    def encode(self, params: Mapping[str, ParameterValue]) -> Array:
        """Return a configuration's point for Gaussian processes [D]."""
        x = np.full(self.width, ABSENT)
        for axis in self._axes:
            here = slice(axis.column, axis.column + axis.width)
            if axis.name in params:
                x[here] = _encoded(axis.parameter, params[axis.name])
            elif axis.width > 1:
                x[here] = 0.0
        return x

    def decode(self, units: Array) -> dict[str, ParameterValue]:
        """Return the configuration at a point of the unit cube [P]."""
        at = {axis.name: float(unit) for axis, unit in zip(self._axes, units, strict=True)}
        return self.space.walk(lambda name, parameter: _value_at(parameter, at[name]))

    def random(self, rng: np.random.Generator, count: int) -> list[dict[str, ParameterValue]]:
        """Return `count` configurations, drawn uniformly from the unit cube."""
        return [self.decode(rng.random(self.parameters)) for _ in range(count)]

    def unit(self, name: str, value: ParameterValue) -> float:
        """Return a value's coordinate in the unit cube."""
        return _unit_of(self.space.parameter(name), value)

    def encode_units(self, units: Array) -> Array:
        """Return points for Gaussian processes [m, D] from points of the unit cube [m, P]."""
        x = np.full((len(units), self.width), ABSENT)
        for axis, values, is_active in self._values(units):
            here = slice(axis.column, axis.column + axis.width)
            encoded = _all_encoded(axis.parameter, values).reshape(len(units), axis.width)
            absent = ABSENT if axis.width == 1 else 0.0
            x[:, here] = np.where(is_active[:, None], encoded, absent)
        return x

    def numbers_at(self, units: Array, name: str, *, default: float) -> Array:
        """Return a parameter's values [m] at points [m, P]; `default` if absent or not numeric."""
        for axis, values, is_active in self._values(units):
            if axis.name == name and (numbers := _as_numbers(axis.parameter, values)) is not None:
                return np.where(is_active, numbers, default)
        return np.full(len(units), default)

    def present(self, units: Array) -> NDArray[np.bool_]:
        """Return whether each configuration has each parameter [m, P]."""
        return np.stack([is_active for _, _, is_active in self._values(units)], axis=1)

    def _values(self, units: Array) -> Iterator[tuple[_Axis, Array, NDArray[np.bool_]]]:
        """Yield each parameter, its values or indices of choices [m], and where it is present [m]."""
        found: dict[str, tuple[Parameter, Array, NDArray[np.bool_]]] = {}
        for coordinate, axis in enumerate(self._axes):
            values = _values_at(axis.parameter, units[:, coordinate])
            is_active = np.ones(len(units), dtype=bool)
            if axis.when is not None:
                is_active = _holds(axis.when, *found[axis.when.parent])
            found[axis.name] = (axis.parameter, values, is_active)
            yield axis, values, is_active

    def units(self, params: Mapping[str, ParameterValue]) -> Array:
        """Return a configuration's point in the unit cube [P]; NaN for absent parameters."""
        return np.array(
            [_unit_of(axis.parameter, params[axis.name]) if axis.name in params else math.nan for axis in self._axes]
        )


def _width(parameter: Parameter) -> int:
    return 1 if _numbers(parameter) is not None or not isinstance(parameter, Categorical) else len(parameter.choices)


def _numbers(parameter: Parameter) -> list[float] | None:
    """Return a categorical parameter's choices, ascending; None unless all are numbers."""
    if not isinstance(parameter, Categorical):
        return None
    choices = parameter.choices
    if all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in choices):
        return sorted(float(choice) for choice in choices)  # type: ignore[arg-type]
    return None


def _encoded(parameter: Parameter, value: ParameterValue) -> Array | float:
    if isinstance(parameter, Categorical):
        numbers = _numbers(parameter)
        if numbers is None:
            return np.array(
                [ONE_HOT * (value == choice and type(value) is type(choice)) for choice in parameter.choices]
            )
        return _scaled_rank(float(value), numbers)  # type: ignore[arg-type]
    return float(_scaled(parameter, np.float64(value)))


def _scaled(parameter: Float | Int, values: Array | np.float64) -> Array:
    low, high = float(parameter.low), float(parameter.high)
    values = np.clip(values, low, high)
    if parameter.log:
        low, high, values = math.log(low), math.log(high), np.log(values)
    return np.asarray((values - low) / (high - low) if high > low else 0.0 * values + 0.5)


def _scaled_rank(value: float, numbers: list[float]) -> float:
    if len(numbers) == 1:
        return 0.5
    return min(range(len(numbers)), key=lambda i: abs(numbers[i] - value)) / (len(numbers) - 1)


def _unit_of(parameter: Parameter, value: ParameterValue) -> float:
    if isinstance(parameter, Categorical):
        indices = [i for i, choice in enumerate(parameter.choices) if value == choice and type(value) is type(choice)]
        return (indices[0] + 0.5) / len(parameter.choices) if indices else 0.5
    return float(_encoded(parameter, value))


def _all_encoded(parameter: Parameter, values: Array) -> Array:
    if isinstance(parameter, Categorical):
        each = np.array([_encoded(parameter, choice) for choice in parameter.choices])
        return each[values.astype(np.intp)]
    return _scaled(parameter, values)


def _as_numbers(parameter: Parameter, values: Array) -> Array | None:
    if not isinstance(parameter, Categorical):
        return values
    if _numbers(parameter) is None:
        return None
    return np.array([float(choice) for choice in parameter.choices])[values.astype(np.intp)]  # type: ignore[arg-type]


def _holds(when: Conditional, parent: Parameter, values: Array, is_active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether a conditional parameter is present [m], from values and presence of its parent [m]."""
    unique, inverse = np.unique(values, return_inverse=True)
    if isinstance(parent, Categorical):
        meant = [parent.choices[int(index)] for index in unique]
    else:
        meant = [int(value) if isinstance(parent, Int) else float(value) for value in unique]
    holds: NDArray[np.bool_] = is_active & np.array([when.holds(value) for value in meant], dtype=bool)[inverse]
    return holds


def _values_at(parameter: Parameter, units: Array) -> Array:
    """Return a parameter's values at coordinates [m]; indices of choices if categorical."""
    if isinstance(parameter, Categorical):
        return np.minimum((units * len(parameter.choices)).astype(np.intp), len(parameter.choices) - 1).astype(float)
    low, high = float(parameter.low), float(parameter.high)
    if isinstance(parameter, Int) and parameter.step is None and not parameter.log:
        low, high = low - 0.5, high + 0.5  # the bounds are as likely as any other value
    values = np.exp(math.log(low) + units * (math.log(high) - math.log(low))) if parameter.log else (
        low + units * (high - low)
    )  # fmt: skip
    if parameter.step is not None:
        values = parameter.low + np.round((values - parameter.low) / parameter.step) * parameter.step
    if isinstance(parameter, Float):
        return np.clip(values, float(parameter.low), float(parameter.top))
    whole: Array = np.clip(np.round(values), int(parameter.low), int(parameter.top))
    return whole


def _value_at(parameter: Parameter, unit: float) -> ParameterValue:
    value = float(_values_at(parameter, np.array([unit]))[0])
    if isinstance(parameter, Categorical):
        return parameter.choices[int(value)]
    return value if isinstance(parameter, Float) else int(value)
