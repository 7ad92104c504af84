"""What configurations that nobody has tried will cost, and how large they will be."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np

from studies.records import Objective
from studies.search.acquisition.candidate_batch import CandidateFeatures
from studies.search.acquisition.hypervolume_improvement import Marginal
from studies.search.model.gaussian_process import Array
from studies.search.model.log_regression import LogRegression
from studies.search.model.size_model import SizeModel
from studies.search.model.trial_table import TrialTable

_learning = threading.Lock()
"""One twin at a time; not an attribute, since models are pickled (Ray Tune does)."""
GROWN = 1.01
"""Who may not refit learns again with one percent more values; with fewer, what a twin has learned is as good."""


class CostModel:
    """A regression of prices, and one of each static column. Models that are twins share them.

    Args:
        columns: Objectives, and bounded metrics behind them.
        static: Which of them do not change while a trial trains.
        counted: What was counted of models without training them, if that is known: data on sizes, hints about prices.
        examples: The configurations of which it was counted.
    """

    def __init__(
        self,
        columns: Sequence[Objective],
        static: Iterable[int],
        counted: SizeModel | None = None,
        examples: CandidateFeatures | None = None,
    ) -> None:
        self.counted, self._examples, self._columns = counted, examples, columns
        self._prices = LogRegression()
        self._sizes = {j: LogRegression() for j in static}

    @property
    def seen(self) -> tuple[int, ...]:
        """How many prices, and how many values of each static column, it has learned from."""
        return (self._prices.seen, *(regression.seen for regression in self._sizes.values()))

    def learn(self, table: TrialTable, *, refit: bool) -> None:
        """Take in what trials have cost and how large they are.

        Args:
            table: All trials.
            refit: Whether hyperparameters may be fitted anew.
        """
        with _learning:
            self._learn(table, refit=refit)

    def _learn(self, table: TrialTable, *, refit: bool) -> None:
        paid = table.paid
        # Prices that are known move a little with each epoch, which changes nothing for those that are not.
        if _has_grown(self._prices, len(paid), refit=refit):
            x = table.x[paid]
            self._prices.learn(x, self._price_hints(x, table.hints[paid]), table.usd_per_epoch[paid], refit=refit)
        for j, regression in self._sizes.items():
            self._learn_size(j, regression, table, refit=refit)

    def _learn_size(self, j: int, regression: LogRegression, table: TrialTable, *, refit: bool) -> None:
        values = self._columns[j].signed(1.0) * table.first(j)  # as they are, also where more is better
        usable = np.flatnonzero(np.isfinite(values) & (values > 0))
        counted = np.zeros(0) if self.counted is None else self.counted.values(self._columns[j].metric)
        if not _has_grown(regression, len(counted) + len(usable), refit=refit):
            return
        x, hints = table.x[usable], table.hints[usable]
        if self._examples is not None and len(counted):
            x = np.vstack([self._examples.x, x])
            hints = np.vstack([self._examples.hints, hints.reshape(len(usable), self._examples.hints.shape[1])])
        regression.learn(x, hints, np.concatenate([counted, values[usable]]), refit=refit)

    def log_usd_per_epoch(self, some: CandidateFeatures) -> tuple[Array, Array]:
        """Mean and deviation of the logarithm of each price [m]."""
        return self._prices.predict(some.x, self._price_hints(some.x, some.hints))

    def size(self, j: int, some: CandidateFeatures) -> Marginal:
        """A static column that is not known; where more is better, its negative is about Gaussian."""
        mean, sd = self._sizes[j].predict(some.x, some.hints)
        if self._columns[j].direction == "minimize":
            return mean, sd, "lognormal"
        return -np.exp(mean), np.exp(mean) * sd, "gaussian"

    def _price_hints(self, x: Array, hints: Array) -> Array:
        """All hints about prices [m, K]: what is known, earlier studies, and what counted models tell."""
        return hints if self.counted is None else np.hstack([hints, self.counted.hints(x)])


def _has_grown(regression: LogRegression, values: int, *, refit: bool) -> bool:
    """Whether there is enough more to learn from."""
    if not refit:
        return values > GROWN * regression.seen
    return values > regression.seen or (values > 0 and regression.is_due(values))
