"""Forecasts sizes and operations of models from examples that were counted without training.

Forecasts predict `model_parameters` before any trial has run. They are covariates of the cost: [E log parameters, E log
(FLOPs per sample x samples per epoch)].
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from search_spaces.space import Space
from studies.search.arrays import Array, sobol_points
from studies.search.model.encoding import Encoder, identity
from studies.search.model.gaussian_process import Hyperparameters, Posterior, Prior, fit
from studies.search.model.standardisation import Standardisation, by_column, by_median
from trainers.protocol import ParameterValue

PRIOR = Prior(length_scale=1.0, amplitude=0.2, noise=1e-2)
LEAST_WIDTH = 0.3
"""Smallest width of logarithms."""
COVARIATE_DEVIATIONS, COVARIATE_ADDED_WIDTH = 2.0, 1e-2
"""Width of a covariate: number of standard deviations, plus a constant."""
SD_RANGE = (0.02, 1.5)
"""Range of forecast standard deviations; the upper end applies without data."""
GROWN = 1.05
"""Growth of the number of values from which hyperparameters are fitted again."""
MOST_POINTS = 300
"""Number of latest values to learn from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Learned:
    count: int
    posterior: Posterior
    target: Standardisation[float]
    covariates: Standardisation[Array]


class LogRegression:
    """Predicts a positive quantity; one thread may learn while others predict."""

    def __init__(self) -> None:
        self._learned: _Learned | None = None  # replaced as a whole, so that readers in other threads see one state
        self._own: Hyperparameters | None = None
        self._fitted_on = 0

    @property
    def count(self) -> int:
        """Number of values learned from."""
        return 0 if self._learned is None else self._learned.count

    def is_due(self, values: int) -> bool:
        """Return whether hyperparameters need another fit for this number of values."""
        return self._own is None or min(values, MOST_POINTS) >= GROWN * self._fitted_on + 1

    def learn(self, x: Array, covariates: Array, values: Array, *, refit: bool) -> None:
        """Learn from all values; `refit` allows fitting hyperparameters."""
        count = len(values)
        x, covariates, values = x[-MOST_POINTS:], covariates[-MOST_POINTS:], values[-MOST_POINTS:]
        logs = np.log(values)
        target = by_median(logs, LEAST_WIDTH)
        scale = by_column(covariates, COVARIATE_DEVIATIONS, COVARIATE_ADDED_WIDTH)
        u, y = _features(x, scale.of(covariates)), target.of(logs)
        own = self._own
        if own is None or (refit and self.is_due(len(y))):
            own, self._fitted_on = fit(x, u, y, PRIOR, own), len(y)
            self._own = own
        self._learned = _Learned(count=count, posterior=Posterior(x, u, y, own), target=target, covariates=scale)

    def predict(self, x: Array, covariates: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the logarithm [m]."""
        if (learned := self._learned) is None:
            return np.zeros(len(x)), np.full(len(x), SD_RANGE[1])
        u = _features(x, learned.covariates.of(covariates))
        mean, variance = learned.posterior.at(x).predict(u)
        return learned.target.inverse(mean), np.clip(learned.target.width * np.sqrt(variance), *SD_RANGE)


def _features(x: Array, covariates: Array) -> Array:
    off = x - 0.5
    return np.hstack([np.ones((len(x), 1)), off, 4.0 * off**2, covariates])


EXAMPLES = 96
"""Largest number of configurations whose models are counted."""
ENOUGH_TO_FIT = 8
"""Smallest number of counted examples for a regression."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """A configuration with counted size; FLOPs are of a forward pass, and None means unknown."""

    params: Mapping[str, ParameterValue]
    model_parameters: int
    flops_per_sample: int | None = None
    samples_per_epoch: int | None = None

    @property
    def flops_per_epoch(self) -> float:
        """FLOPs of an epoch's forward passes; 0 if unknown."""
        return float(self.flops_per_sample or 0) * float(self.samples_per_epoch or 0)

    def to_plain(self) -> dict[str, Any]:
        """Return JSON data for the store."""
        return asdict(self)

    @staticmethod
    def from_plain(form: Mapping[str, Any]) -> "Counted":
        """Return the object for JSON data of `to_plain`."""
        return Counted(**form)


def examples_of(space: Space) -> list[dict[str, ParameterValue]]:
    """Return at most `EXAMPLES` distinct configurations to count, spread evenly over the space, always the same."""
    encoder = Encoder(space)
    if not encoder.parameters:
        return [{}]
    units = sobol_points(encoder.parameters, EXAMPLES, seed=0)
    return list({identity(params): params for params in map(encoder.decode, units)}.values())


class SizeModel:
    """Expected size and operations of any configuration; immutable, so threads may share it."""

    def __init__(self, space: Space, counted: Sequence[Counted]) -> None:
        self._encoder = Encoder(space)
        self.examples = tuple(one for one in counted if one.model_parameters > 0)
        parameters = np.array([one.model_parameters for one in self.examples], dtype=float)
        work = np.array([one.flops_per_epoch for one in self.examples])
        self._values = {"model_parameters": parameters}
        fitted = [self._fitted(values) for values in (parameters, work)]
        self._regressions = [regression for regression in fitted if regression is not None]

    def _fitted(self, values: Array) -> LogRegression | None:
        known = np.flatnonzero(values > 0)
        if len(known) < ENOUGH_TO_FIT:
            return None
        x = np.array([self._encoder.encode(self.examples[i].params) for i in known])
        regression = LogRegression()
        regression.learn(x, np.zeros((len(x), 0)), values[known], refit=True)
        return regression

    def values(self, metric: str) -> Array:
        """Return a metric's counted value for each example [n]; empty if it cannot be counted."""
        return self._values.get(metric, np.zeros(0))

    def covariates(self, x: Array) -> Array:
        """Return expected logarithms of size and operations at points [m, D], as [m, up to 2]."""
        if not len(x):
            return np.zeros((0, len(self._regressions)))
        none = np.zeros((len(x), 0))
        return np.hstack([none, *(one.predict(x, none)[0][:, None] for one in self._regressions)])


def nothing_counted() -> SizeModel | None:
    """Return None: no models are counted."""
    return None
