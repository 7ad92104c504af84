"""Random and exemplary configurations of a space."""

from __future__ import annotations

import math
import random

from search_spaces.parameters import Categorical, Float, Int, Parameter, Value
from search_spaces.space import Space


def example_params(space: Space) -> dict[str, Value]:
    """One configuration of a space, always the same: first choices, and numbers drawn with a fixed seed."""
    generator = random.Random(0)

    def choose(_name: str, parameter: Parameter) -> Value:
        return parameter.choices[0] if isinstance(parameter, Categorical) else draw_number(parameter, generator)

    return space.walk(choose)


def draw_number(parameter: Float | Int, generator: random.Random) -> float:
    """Draw a value uniform on the parameter's scale, or uniform among stepped or whole values.

    A whole number n on a log scale has the probability of the interval from n - 0.5 to n + 0.5.
    """
    if parameter.step is not None:
        steps = round((parameter.top - parameter.low) / parameter.step)
        return min(parameter.low + generator.randint(0, steps) * parameter.step, parameter.top)
    if isinstance(parameter, Int) and not parameter.log:
        return generator.randint(parameter.low, parameter.high)
    half = 0.5 if isinstance(parameter, Int) else 0.0
    low, high = parameter.low - half, parameter.high + half
    drawn = (
        math.exp(generator.uniform(math.log(low), math.log(high))) if parameter.log else generator.uniform(low, high)
    )
    drawn = round(drawn) if isinstance(parameter, Int) else drawn
    return min(max(drawn, parameter.low), parameter.high)
