"""Configurations as points: every parameter scaled to [0, 1], so that distances mean something.

Floats and ints are scaled between their bounds, on a logarithmic scale where the space says so; a categorical of
numbers is a place in their order; any other is one-hot, at half the distance of a whole range. A child that does not
exist in a configuration stands in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.parameters import Categorical, Conditional, Float, Int, Parameter
from search_spaces.space import Space
from trainers.protocol import ParameterValue

Array = NDArray[np.float64]
ONE_HOT = 0.5
ABSENT = 0.5


@dataclass(frozen=True, slots=True)
class _Axis:
    """One parameter's columns."""

    name: str
    parameter: Parameter
    when: Conditional | None
    column: int
    width: int


class Encoder:
    """Turns configurations of a space into points and back.

    Args:
        space: What may vary.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._axes: list[_Axis] = []
        column = 0
        for name, entry in space.entries():
            when = entry if isinstance(entry, Conditional) else None
            parameter = entry.parameter if isinstance(entry, Conditional) else entry
            width = _width(parameter)
            self._axes.append(_Axis(name, parameter, when, column, width))
            column += width
        self.width = column
        self.parameters = len(self._axes)

    def encode(self, params: Mapping[str, ParameterValue]) -> Array:
        """The point of one configuration [D]."""
        x = np.full(self.width, ABSENT)
        for axis in self._axes:
            here = slice(axis.column, axis.column + axis.width)
            if axis.name in params:
                x[here] = _encoded(axis.parameter, params[axis.name])
            elif axis.width > 1:
                x[here] = 0.0
        return x

    def decode(self, units: Array) -> dict[str, ParameterValue]:
        """The configuration at a point of the unit cube [P], one coordinate per parameter in `space.entries()`."""
        at = {axis.name: float(unit) for axis, unit in zip(self._axes, units, strict=True)}
        return self.space.walk(lambda name, parameter: _value_at(parameter, at[name]))

    def unit(self, name: str, value: ParameterValue) -> float:
        """The coordinate in the unit cube of one parameter's value."""
        return _unit_of(self.space.parameter(name), value)

    def units(self, params: Mapping[str, ParameterValue]) -> Array:
        """The inverse of `decode`; NaN for parameters that do not exist [P]."""
        return np.array(
            [_unit_of(axis.parameter, params[axis.name]) if axis.name in params else math.nan for axis in self._axes]
        )


def _width(parameter: Parameter) -> int:
    return 1 if _numbers(parameter) is not None or not isinstance(parameter, Categorical) else len(parameter.choices)


def _numbers(parameter: Parameter) -> list[float] | None:
    """The choices in ascending order, if they are numbers, or two of anything."""
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
        return _place(float(value), numbers)  # type: ignore[arg-type]
    low, high = float(parameter.low), float(parameter.high)
    number = min(max(float(value), low), high)  # type: ignore[arg-type]
    if parameter.log:
        low, high, number = math.log(low), math.log(high), math.log(number)
    return (number - low) / (high - low) if high > low else 0.5


def _place(value: float, numbers: list[float]) -> float:
    """Where a number stands in the order of the choices, from 0 to 1."""
    if len(numbers) == 1:
        return 0.5
    return min(range(len(numbers)), key=lambda i: abs(numbers[i] - value)) / (len(numbers) - 1)


def _unit_of(parameter: Parameter, value: ParameterValue) -> float:
    if isinstance(parameter, Categorical):
        places = [i for i, choice in enumerate(parameter.choices) if value == choice and type(value) is type(choice)]
        return (places[0] + 0.5) / len(parameter.choices) if places else 0.5
    return float(_encoded(parameter, value))


def _value_at(parameter: Parameter, unit: float) -> ParameterValue:
    if isinstance(parameter, Categorical):
        return parameter.choices[min(int(unit * len(parameter.choices)), len(parameter.choices) - 1)]
    low, high = float(parameter.low), float(parameter.high)
    if isinstance(parameter, Int) and parameter.step is None and not parameter.log:
        low, high = low - 0.5, high + 0.5  # the ends are as likely as any other
    value = math.exp(math.log(low) + unit * (math.log(high) - math.log(low))) if parameter.log else low + unit * (
        high - low
    )  # fmt: skip
    if parameter.step is not None:
        value = parameter.low + round((value - parameter.low) / parameter.step) * parameter.step
    if isinstance(parameter, Float):
        return min(max(value, float(parameter.low)), float(parameter.top))
    return min(max(round(value), int(parameter.low)), int(parameter.top))
