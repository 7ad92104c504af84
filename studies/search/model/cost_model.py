"""Regressions of dollars per epoch and of sizes, for untrained configurations."""

import threading
from collections.abc import Iterable, Sequence

import numpy as np

from studies.records.records import Objective
from studies.search.arrays import Array, Marginal
from studies.search.model.candidate_batch import CandidateFeatures
from studies.search.model.size_model import LogRegression, SizeModel
from studies.search.model.trial_arrays import TrialTable

_learning = threading.Lock()
"""Lock that lets one thread learn at a time; not an attribute, since Ray Tune pickles models."""
GROWN = 1.01
"""Growth of the number of values from which a model learns again without refitting. Below it, the regression that
another thread has learned is as good."""


class CostModel:
    """Regressions of dollars per epoch and of sizes, also from `counted` models; thread-safe."""

    def __init__(
        self,
        columns: Sequence[Objective],
        static: Iterable[int],
        counted: SizeModel | None = None,
        examples: CandidateFeatures | None = None,
    ) -> None:
        self.counted, self._examples, self._columns = counted, examples, columns
        self._costs = LogRegression()
        self._sizes = {j: LogRegression() for j in static}

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of values learned from: costs per epoch, then each kind of size."""
        return (self._costs.count, *(regression.count for regression in self._sizes.values()))

    def learn(self, table: TrialTable, *, refit: bool) -> None:
        """Learn from costs and sizes of trials; `refit` allows fitting hyperparameters."""
        with _learning:
            paid = table.rows_with_cost
            # Only new trials count: the costs of known trials change little with each epoch.
            if _has_grown(self._costs, len(paid), refit=refit):
                x = table.x[paid]
                covariates = self._cost_covariates(x, table.covariates[paid])
                self._costs.learn(x, covariates, table.usd_per_epoch[paid], refit=refit)
            for j, regression in self._sizes.items():
                self._learn_size(j, regression, table, refit=refit)

    def _learn_size(self, j: int, regression: LogRegression, table: TrialTable, *, refit: bool) -> None:
        values = self._columns[j].signed(1.0) * table.first(j)  # in the metric's own sign, since logarithms are taken
        usable = np.flatnonzero(np.isfinite(values) & (values > 0))
        counted = np.zeros(0) if self.counted is None else self.counted.values(self._columns[j].metric)
        if not _has_grown(regression, len(counted) + len(usable), refit=refit):
            return
        x, covariates = table.x[usable], table.covariates[usable]
        if self._examples is not None and len(counted):
            x = np.vstack([self._examples.x, x])
            width = self._examples.covariates.shape[1]
            covariates = np.vstack([self._examples.covariates, covariates.reshape(len(usable), width)])
        regression.learn(x, covariates, np.concatenate([counted, values[usable]]), refit=refit)

    def log_usd_per_epoch(self, some: CandidateFeatures) -> tuple[Array, Array]:
        """Return mean and standard deviation of the logarithm of dollars per epoch [m]."""
        return self._costs.predict(some.x, self._cost_covariates(some.x, some.covariates))

    def size(self, j: int, some: CandidateFeatures) -> Marginal:
        """Return the distribution of column `j` [m]; Gaussian and negated if larger is better."""
        mean, sd = self._sizes[j].predict(some.x, some.covariates)
        if self._columns[j].direction == "minimize":
            return mean, sd, "lognormal"
        return -np.exp(mean), np.exp(mean) * sd, "gaussian"

    def _cost_covariates(self, x: Array, covariates: Array) -> Array:
        """Return covariates of the cost [m, K], with expected sizes from counted models."""
        return covariates if self.counted is None else np.hstack([covariates, self.counted.covariates(x)])


def _has_grown(regression: LogRegression, values: int, *, refit: bool) -> bool:
    if not refit:
        return values > GROWN * regression.count
    return values > regression.count or (values > 0 and regression.is_due(values))
