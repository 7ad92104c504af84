"""What a configuration will cost, or how large it will be, before its first epoch: one process on a logarithm.

    t = log value;   (t - median) / max(sd, 0.3) ~ w'[1, x - 1/2, 4 (x - 1/2)^2, hints] + f(x) + e

Hints are what is known without training, such as the number of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from studies.search.model.gaussian_process import Array, Hyperparameters, Posterior, Prior, fit

PRIOR = Prior(length_scale=1.0, amplitude=0.2, noise=1e-2)
LEAST_WIDTH = 0.3
SD_RANGE = (0.02, 1.5)
GROWN = 1.05  # fitted anew with five percent more values
MOST_POINTS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class _Learned:
    """What came of the values so far: a process, and how its inputs and its target are scaled."""

    seen: int
    posterior: Posterior
    centre: float
    width: float
    hint_centre: Array
    hint_width: Array


class LogRegression:
    """Predicts a positive quantity of untried configurations. One thread at a time may learn while others predict."""

    def __init__(self) -> None:
        self._learned: _Learned | None = None  # replaced as a whole
        self._own: Hyperparameters | None = None
        self._fitted_on = 0

    @property
    def seen(self) -> int:
        """How many values it has learned from."""
        return 0 if self._learned is None else self._learned.seen

    def is_due(self, values: int) -> bool:
        """Whether hyperparameters were fitted on too few values, if there are so many now."""
        return self._own is None or min(values, MOST_POINTS) >= GROWN * self._fitted_on + 1

    def learn(self, x: Array, hints: Array, values: Array, *, refit: bool) -> None:
        """Take in all that was measured.

        Args:
            x: Points of the configurations [n, D].
            hints: Logarithms of what was known of them before [n, K].
            values: Positive [n].
            refit: Whether hyperparameters may be fitted anew.
        """
        seen = len(values)
        x, hints, values = x[-MOST_POINTS:], hints[-MOST_POINTS:], values[-MOST_POINTS:]
        t = np.log(values)
        centre, width = float(np.median(t)), max(float(t.std()), LEAST_WIDTH)
        hint_centre, hint_width = hints.mean(axis=0), 2.0 * hints.std(axis=0) + 1e-2
        u, y = _features(x, (hints - hint_centre) / hint_width), (t - centre) / width
        own = self._own
        if own is None or (refit and self.is_due(len(y))):
            own, self._fitted_on = fit(x, u, y, PRIOR, own), len(y)
            self._own = own
        self._learned = _Learned(
            seen=seen,
            posterior=Posterior(x, u, y, own),
            centre=centre,
            width=width,
            hint_centre=hint_centre,
            hint_width=hint_width,
        )

    def predict(self, x: Array, hints: Array) -> tuple[Array, Array]:
        """Mean and deviation of the logarithm [m] each; all alike before anything was measured."""
        if (learned := self._learned) is None:
            return np.zeros(len(x)), np.full(len(x), SD_RANGE[1])
        u = _features(x, (hints - learned.hint_centre) / learned.hint_width)
        mean, variance = learned.posterior.at(x).predict(u)
        return learned.centre + learned.width * mean, np.clip(learned.width * np.sqrt(variance), *SD_RANGE)


def _features(x: Array, hints: Array) -> Array:
    """Of the linear part, for scaled hints."""
    off = x - 0.5
    return np.hstack([np.ones((len(x), 1)), off, 4.0 * off**2, hints])
