"""The chance that a configuration trains at all, instead of diverging, running out of memory or raising an error.

A process on 0 and 1: coarse, and enough to keep away from where trials fail. The processes of the objectives take what
failed for as bad as can be. That alone is not enough where what fails would be far ahead in another objective.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from studies.search.model.cokriging import MOST_FITTED, MOST_SEEN, CandidateInputs, Fits
from studies.search.model.gaussian_process import Array, Posterior, Prior, fit

STAGE = -3
"""Its name among the processes whose hyperparameters and candidates are kept."""
PRIOR = Prior(length_scale=1.0, length_scale_sd=0.8, amplitude=0.2, amplitude_sd=0.8, noise=0.02, noise_sd=1.0)
LEAST = 1e-6
"""No configuration is ruled out."""
GROWN = 6


class FailureModel:
    """Learns where trials fail.

    Args:
        fits: Where hyperparameters are kept; twins share them.
    """

    def __init__(self, fits: Fits) -> None:
        self._fits = fits
        self._share = 0.0
        self._posterior: Posterior | None = None
        self._learned_from = b""

    @property
    def is_certain(self) -> bool:
        """Whether nothing has failed so far."""
        return self._posterior is None

    def learn(self, x: Array, failed: Array, *, refit: bool) -> None:
        """Take in which trials have failed.

        Args:
            x: Points of all that have failed, or have been measured at the first rung [n, D].
            failed: 1 if it has, else 0 [n].
            refit: Whether hyperparameters may be fitted anew.
        """
        if not failed.any():
            self._posterior = None
            return
        self._share = float(failed.mean())
        own, fitted_on = self._fits.by_stage.get(STAGE, (None, 0))
        inputs = np.ones((len(x), 1))
        if own is None or (refit and len(x) - fitted_on >= max(GROWN, fitted_on // 4)):
            rows = _some(failed, MOST_FITTED)
            own = fit(x[rows], inputs[rows], failed[rows] - self._share, PRIOR, own)
            self._fits.by_stage[STAGE] = (own, len(x))
        learned_from = x.tobytes() + failed.tobytes()
        if self._posterior is None or self._posterior.own is not own or learned_from != self._learned_from:
            rows = _some(failed, MOST_SEEN)
            self._posterior = Posterior(x[rows], inputs[rows], failed[rows] - self._share, own)
            self._learned_from = learned_from

    def probability(self, pool: CandidateInputs) -> Array:
        """That each candidate trains [m]."""
        if self._posterior is None:
            return np.ones(len(pool.x))
        mean, variance = pool.at(STAGE, self._posterior).predict(np.ones((len(pool.x), 1)))
        probability: Array = ndtr((0.5 - self._share - mean) / np.sqrt(variance))
        return np.maximum(probability, LEAST)


def _some(failed: Array, most: int) -> np.ndarray:
    """Rows; if there are too many, some at random, among them a quarter that failed or all of these; ascending."""
    if len(failed) <= most:
        return np.arange(len(failed))
    mixed = np.random.default_rng(len(failed)).permutation(len(failed))
    bad, good = mixed[failed[mixed] > 0], mixed[failed[mixed] == 0]
    few = min(len(bad), max(most // 4, most - len(good)))
    return np.sort(np.concatenate([bad[:few], good[: most - few]]))
