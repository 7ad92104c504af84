"""Parameters of a search space as Optuna's distributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from search_spaces.parameters import Categorical, Float, Int, Parameter
from search_spaces.space import Space
from search_spaces.suggestions import Asked, Constant, Domain, are_compatible
from trainers.protocol import ParameterValue

if TYPE_CHECKING:
    from optuna import distributions


def to_distribution(parameter: Parameter) -> distributions.BaseDistribution:
    """Return the Optuna distribution of a parameter."""
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


def distributions_of(
    space: Space, params: Mapping[str, ParameterValue], asked: Mapping[str, Asked], first: Mapping[str, Domain]
) -> dict[str, distributions.BaseDistribution]:
    """Return the distributions of the parameters that have a value, by name.

    Optuna takes one kind and scale per name: `asked` domains that differ from `first` or have one value are left out.
    """
    return {
        name: to_distribution(domain)
        for name in params
        if (domain := _domain_of(name, space, asked, first)) is not None
    }


def _domain_of(name: str, space: Space, asked: Mapping[str, Asked], first: Mapping[str, Domain]) -> Parameter | None:
    if name not in asked:
        return space.parameter(name)
    domain = asked[name].domain
    return None if isinstance(domain, Constant) or not are_compatible(first[name], domain) else domain
