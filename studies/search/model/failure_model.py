"""Failure model: P(trains | x) = Phi((1/2 - p - f(x)) / sd), a coarse regression failed_i - p = w + f(x_i) + e_i.

p is the share of failed trials, failed_i is 1 or 0, and w, f and e are as in `gaussian_process`. The metrics' processes
already treat failed trials as worst values, but that alone does not keep a search from configurations that fail yet
promise a large gain in another objective.
"""

import numpy as np
from scipy.special import ndtr

from studies.search.arrays import Array
from studies.search.model.candidate_batch import CandidateInputs
from studies.search.model.cokriging import MOST_CONDITIONED, MOST_FITTED
from studies.search.model.gaussian_process import Fits, Posterior, Prior, fit
from studies.search.model.sampling import with_rare_ones

PROCESS = -3
"""Key of this process, distinct from the keys of a chain's processes."""
PRIOR = Prior(length_scale=1.0, length_scale_sd=0.8, amplitude=0.2, amplitude_sd=0.8, noise=0.02, noise_sd=1.0)
LEAST = 1e-6
"""Smallest probability: no configuration is ruled out."""
GROWN = 6
"""Smallest number of new trials after which hyperparameters are fitted again."""


class FailureModel:
    """Learns in which region trials fail; models in different threads may share `fits`."""

    def __init__(self, fits: Fits) -> None:
        self._fits = fits
        self._share = 0.0
        self._posterior: Posterior | None = None
        self._learned_from = b""

    @property
    def is_certain(self) -> bool:
        """Return whether no trial has failed so far; every configuration then counts as able to train."""
        return self._posterior is None

    def learn(self, x: Array, failed: Array, *, refit: bool) -> None:
        """Learn from points x [n, D] of trials that failed (1) or reached the first rung (0) [n]."""
        if not failed.any():
            self._posterior = None
            return
        self._share = float(failed.mean())
        own, fitted_on = self._fits.by_process.get(PROCESS, (None, 0))
        features = np.ones((len(x), 1))
        if own is None or (refit and len(x) - fitted_on >= max(GROWN, fitted_on // 4)):
            rows = with_rare_ones(failed, MOST_FITTED)
            own = fit(x[rows], features[rows], failed[rows] - self._share, PRIOR, own)
            self._fits.by_process[PROCESS] = (own, len(x))
        learned_from = x.tobytes() + failed.tobytes()
        if self._posterior is None or self._posterior.own is not own or learned_from != self._learned_from:
            rows = with_rare_ones(failed, MOST_CONDITIONED)
            self._posterior = Posterior(x[rows], features[rows], failed[rows] - self._share, own)
            self._learned_from = learned_from

    def probability_of_training(self, candidates: CandidateInputs) -> Array:
        """Return the probability that each candidate trains [m]."""
        if self._posterior is None:
            return np.ones(len(candidates.x))
        mean, variance = candidates.at(PROCESS, self._posterior).predict(np.ones((len(candidates.x), 1)))
        probability: Array = ndtr((0.5 - self._share - mean) / np.sqrt(variance))
        return np.maximum(probability, LEAST)
