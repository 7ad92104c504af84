"""Parameters of a search space as Optuna's distributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from search_spaces.parameters import Categorical, Float, Int, Parameter
from search_spaces.space import Space
from trainers.protocol import ParameterValue

if TYPE_CHECKING:
    from optuna import distributions


def to_distribution(parameter: Parameter) -> distributions.BaseDistribution:
    """Returns the Optuna distribution of a parameter."""
    from optuna import distributions

    match parameter:
        case Float():
            return distributions.FloatDistribution(
                parameter.low, parameter.high, log=parameter.log, step=parameter.step
            )
        case Int():
            return distributions.IntDistribution(
                parameter.low, parameter.high, log=parameter.log, step=parameter.step or 1
            )
        case Categorical():
            return distributions.CategoricalDistribution(tuple(parameter.choices))


def distributions_of(space: Space, params: Mapping[str, ParameterValue]) -> dict[str, distributions.BaseDistribution]:
    """Returns the distributions of the parameters that have a value, by name."""
    return {name: to_distribution(space.parameter(name)) for name in params}
