"""`sampler: cokriging` as an Optuna sampler: the untried configuration with the largest break-even price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna

from studies.search.model.search_model import STARTERS, SearchModel
from studies.search.model.threads import in_one_thread
from studies.search.observations import Snapshot
from studies.search.samplers.acquisition_optimizer import AcquisitionOptimizer


class CoKrigingSampler(optuna.samplers.BaseSampler):
    """Suggests one trial.

    Args:
        model: Shared by the samplers of a study, so that hyperparameters are not fitted from nothing each time.
        untried: Chooses.
        trials: All that were started.
        distributions: Of every parameter of the space, by name.
        seed: Of this suggestion.
    """

    def __init__(
        self,
        model: SearchModel,
        untried: AcquisitionOptimizer,
        trials: Sequence[Snapshot],
        *,
        distributions: Mapping[str, optuna.distributions.BaseDistribution],
        seed: int,
    ) -> None:
        self._model, self._untried, self._trials = model, untried, trials
        self._distributions, self._seed = dict(distributions), seed
        self._independent = optuna.samplers.RandomSampler(seed=seed)

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002 - Optuna's interface
        trial: optuna.trial.FrozenTrial,  # noqa: ARG002 - as above
    ) -> dict[str, optuna.distributions.BaseDistribution]:
        """Every parameter: they are chosen together."""
        return self._distributions

    @in_one_thread
    def sample_relative(
        self,
        study: optuna.Study,  # noqa: ARG002 - Optuna's interface
        trial: optuna.trial.FrozenTrial,  # noqa: ARG002 - as above
        search_space: dict[str, optuna.distributions.BaseDistribution],  # noqa: ARG002 - as above
    ) -> dict[str, Any]:
        """The active parameters of the choice."""
        if len(self._trials) >= STARTERS:
            self._model.learn(self._trials, refit=True)
            self._model.expect_running()
        return self._untried.choose(self._trials, len(self._trials), self._seed)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        param_name: str,
        param_distribution: optuna.distributions.BaseDistribution,
    ) -> Any:
        """At random: only what the choice left out gets here."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)
