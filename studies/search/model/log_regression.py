"""Regression of a positive quantity (a cost or a size) for configurations that were never trained.

    t = log value;   (t - median) / max(sd, 0.3) = w'[1, x - 1/2, 4 (x - 1/2)^2, c] + f(x) + e

with covariates c that are known without training, such as the number of parameters, each standardised to twice its
standard deviation; w, f and e as in `gaussian_process`.
"""

from dataclasses import dataclass

import numpy as np

from studies.search.arrays import Array
from studies.search.model.gaussian_process import Hyperparameters, Posterior, Prior, fit
from studies.search.model.standardisation import Standardisation, by_column, by_median

PRIOR = Prior(length_scale=1.0, amplitude=0.2, noise=1e-2)
LEAST_WIDTH = 0.3
"""Smallest divisor that standardises logarithms."""
COVARIATE_DEVIATIONS, COVARIATE_ADDED_WIDTH = 2.0, 1e-2
"""Width of a covariate: this number of its standard deviations, plus this constant."""
SD_RANGE = (0.02, 1.5)
"""Range of the standard deviations of forecast logarithms; the upper end applies without data."""
GROWN = 1.05
"""Growth factor of the number of values at which hyperparameters are fitted again."""
MOST_POINTS = 300
"""Largest number of values learned from: the latest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Learned:
    count: int
    posterior: Posterior
    target: Standardisation[float]
    covariates: Standardisation[Array]


class LogRegression:
    """Predicts a positive quantity of configurations. One thread at a time may learn while others predict."""

    def __init__(self) -> None:
        self._learned: _Learned | None = None  # replaced as a whole, so that readers in other threads see one state
        self._own: Hyperparameters | None = None
        self._fitted_on = 0

    @property
    def count(self) -> int:
        """Number of values learned from."""
        return 0 if self._learned is None else self._learned.count

    def is_due(self, values: int) -> bool:
        """Return whether this number of values is enough to fit hyperparameters again."""
        return self._own is None or min(values, MOST_POINTS) >= GROWN * self._fitted_on + 1

    def learn(self, x: Array, covariates: Array, values: Array, *, refit: bool) -> None:
        """Learn from all values."""
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
        """Return the mean and standard deviation of the logarithm [m]; constant before anything was learned."""
        if (learned := self._learned) is None:
            return np.zeros(len(x)), np.full(len(x), SD_RANGE[1])
        u = _features(x, learned.covariates.of(covariates))
        mean, variance = learned.posterior.at(x).predict(u)
        return learned.target.inverse(mean), np.clip(learned.target.width * np.sqrt(variance), *SD_RANGE)


def _features(x: Array, covariates: Array) -> Array:
    off = x - 0.5
    return np.hstack([np.ones((len(x), 1)), off, 4.0 * off**2, covariates])
