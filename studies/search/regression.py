"""What a configuration will cost, or how large it will be, before its first epoch: one process on a logarithm.

    t = log value;   (t - median) / max(sd, 0.3) ~ w'[1, x - 1/2, 4 (x - 1/2)^2, hints] + f(x) + e

Hints are what is known without training, such as the number of parameters.
"""

from __future__ import annotations

import numpy as np

from studies.search.gaussian_process import Array, Hyperparameters, Posterior, Prior, fit

PRIOR = Prior(length_scale=1.0, amplitude=0.2, noise=1e-2)
LEAST_WIDTH = 0.3
SD_RANGE = (0.02, 1.5)
GROWN = 1.05  # fitted anew with five percent more values
MOST_POINTS = 300


class LogRegression:
    """Predicts a positive quantity of untried configurations.

    Attributes:
        seen: How many values it has learned from.
    """

    def __init__(self) -> None:
        self._own: Hyperparameters | None = None
        self._fitted_on = self.seen = 0
        self._posterior: Posterior | None = None
        self._centre, self._width = 0.0, 1.0
        self._hint_centre: Array = np.zeros(0)
        self._hint_width: Array = np.ones(0)

    def learn(self, x: Array, hints: Array, values: Array, *, refit: bool) -> None:
        """Take in all that was measured.

        Args:
            x: Points of the configurations [n, D].
            hints: Logarithms of what was known of them before [n, K].
            values: Positive [n].
            refit: Whether hyperparameters may be fitted anew.
        """
        self.seen = len(values)
        x, hints, values = x[-MOST_POINTS:], hints[-MOST_POINTS:], values[-MOST_POINTS:]
        t = np.log(values)
        self._centre, self._width = float(np.median(t)), max(float(t.std()), LEAST_WIDTH)
        self._hint_centre, self._hint_width = hints.mean(axis=0), 2.0 * hints.std(axis=0) + 1e-2
        u, y = self._features(x, hints), (t - self._centre) / self._width
        if self._own is None or (refit and len(y) >= GROWN * self._fitted_on + 1):
            self._own, self._fitted_on = fit(x, u, y, PRIOR, self._own), len(y)
        self._posterior = Posterior(x, u, y, self._own)

    def predict(self, x: Array, hints: Array) -> tuple[Array, Array]:
        """Mean and deviation of the logarithm [m] each; all alike before anything was measured."""
        if self._posterior is None:
            return np.zeros(len(x)), np.full(len(x), SD_RANGE[1])
        mean, variance = self._posterior.at(x).predict(self._features(x, hints))
        return self._centre + self._width * mean, np.clip(self._width * np.sqrt(variance), *SD_RANGE)

    def _features(self, x: Array, hints: Array) -> Array:
        off = x - 0.5
        return np.hstack([np.ones((len(x), 1)), off, 4.0 * off**2, (hints - self._hint_centre) / self._hint_width])
