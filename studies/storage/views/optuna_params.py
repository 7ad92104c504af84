"""Parameters of trials as Optuna's tables take them: with a distribution each, of one kind for a name in a study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.parameters import Categorical, Float, Parameter, SpaceError
from search_spaces.space import Space
from search_spaces.suggestions import Constant
from studies.search.samplers.distributions import to_distribution
from studies.storage.views.view_rows import MirroredTrial
from trainers.protocol import ParameterValue

if TYPE_CHECKING:
    import optuna


class OptunaParams:
    """Finds the parameters of a trial that the view can hold."""

    def __init__(self, space: Space, present: Iterable[Mapping[str, Any]]) -> None:
        self._space = space
        self._first: dict[str, Any] = {}
        for distributions in present:
            self._first = {**distributions, **self._first}

    def distributions(self, trial: MirroredTrial) -> dict[str, Any]:
        """Optuna's distribution of each parameter that a distribution of the study can hold."""
        declared = {name: value for name, value in trial.params.items() if name not in trial.asked}
        return _declared(self._space, declared) | self._asked(trial)

    def _asked(self, trial: MirroredTrial) -> dict[str, Any]:
        """Distributions of requested parameters; the first trial with a name decides on its kind."""
        from optuna.distributions import check_distribution_compatibility

        found: dict[str, Any] = {}
        for name, one in trial.asked.items():
            if isinstance(one.domain, Constant):
                continue
            distribution = to_distribution(one.domain)
            try:
                check_distribution_compatibility(self._first.setdefault(name, distribution), distribution)
            except ValueError:
                continue
            found[name] = distribution
        return found


def _declared(space: Space, params: Mapping[str, ParameterValue]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in params.items():
        try:
            parameter = space.parameter(name)
        except SpaceError:
            continue
        distribution = to_distribution(parameter) if parameter.contains(value) else _widened(parameter, value)
        if distribution is not None:
            found[name] = distribution
    return found


def _widened(parameter: Parameter, value: ParameterValue) -> optuna.distributions.BaseDistribution | None:
    """A range extended to an enqueued number outside the space: Optuna wants one kind and scale per name in a study."""
    import optuna

    if isinstance(parameter, Categorical) or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if parameter.log and value <= 0:
        return None
    low, high = min(parameter.low, value), max(parameter.high, value)
    if isinstance(parameter, Float):
        return optuna.distributions.FloatDistribution(low, high, log=parameter.log)
    if not isinstance(value, int):
        return None
    return optuna.distributions.IntDistribution(int(low), int(high), log=parameter.log)
