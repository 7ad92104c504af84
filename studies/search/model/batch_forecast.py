"""Forecasts for a batch of candidates: distributions of metrics at later epochs, and costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from studies.records.records import Forecast, Objective
from studies.search.arrays import Array, Marginal
from studies.search.model.candidate_batch import CandidateBatch
from studies.search.model.cokriging import CurveForecast
from studies.search.model.standardisation import Scale
from studies.search.observations import TrialLimits

NO_NODES: Array = np.zeros((1, 0))
"""A node that does not condition forecasts on the next rung's value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchForecast:
    """Forecast for m candidates at one rung (decision epoch), at the H later rungs."""

    batch: CandidateBatch
    ahead: Array
    curves: Mapping[int, CurveForecast]  # forecasts of the learned columns, by column index, ascending
    scales: Mapping[int, Scale]
    in_seconds: frozenset[int]  # indices of the cumulative columns in seconds of wall time; others are in dollars
    trains: Array | None = None  # probability that each candidate trains without failing [m]; None if 1 for all

    def usd_to_next_rung(self, usd_per_epoch: Array) -> Array:
        """Return the dollars to the next rung [m], including the start, from dollars per epoch [m]."""
        usd: Array = usd_per_epoch * (self.batch.start_epochs + self.ahead[0] - self.batch.done)
        return usd

    def usd_beyond_next_rung(self, usd_per_epoch: Array) -> Array:
        """Return the dollars from the next rung to each later rung [m, H], from dollars per epoch [m]."""
        usd: Array = usd_per_epoch[:, None] * (self.ahead - self.ahead[0])
        return usd

    def inflated(self, factor: float) -> "BatchForecast":
        """Return this forecast with variances of learned metrics multiplied by `factor`."""
        curves = {j: replace(one, variance=factor * one.variance) for j, one in self.curves.items()}
        return replace(self, curves=curves)

    def marginal(self, j: int, nodes: Array = NO_NODES) -> Marginal:
        """Return the distribution of metric `j` at each node and later rung [m, J, H]; constant axes have length 1.

        The node u of a learned metric fixes its innovation i ~ N(0, v) at the next rung. With the gain g of z per unit
        of i: z | u ~ N(mean + g sqrt(v) u, variance - g^2 v).
        """
        batch = self.batch
        if j in self.curves:
            return self._learned_marginal(j, nodes)
        if j in batch.statics:
            mean, sd, kind = batch.statics[j]
            return mean[:, None, None], sd[:, None, None], kind
        epochs = batch.start_epochs[:, None] + self.ahead - batch.done
        unit = batch.seconds_per_usd[:, None] if j in self.in_seconds else 1.0
        if batch.rung_index < 0:
            mean = batch.log_usd[:, None] + np.log(epochs * unit)
            return mean[:, None, :], batch.log_usd_sd[:, None, None], "lognormal"
        total = unit * (batch.paid_usd[:, None] + np.exp(batch.log_usd)[:, None] * epochs)
        return total[:, None, :], np.zeros((1, 1, 1)), "gaussian"

    def within(self, limits: TrialLimits) -> NDArray[np.bool_]:
        """Return whether each candidate will probably reach each later rung within its limits [m, H].

        A limit ends a trial after the epoch that exceeds it. The next rung always counts as reached, for comparisons.
        """
        batch, most = self.batch, limits.most_usd(self.batch.seconds_per_usd)
        epochs = batch.start_epochs[:, None] + self.ahead - batch.done
        reached = batch.paid_usd[:, None] + np.exp(batch.log_usd)[:, None] * (epochs - 1.0) < most[:, None]
        within: NDArray[np.bool_] = reached | (self.ahead == self.ahead[0])
        return within

    def _learned_marginal(self, j: int, nodes: Array) -> Marginal:
        curve, coordinate = self.curves[j], tuple(self.curves).index(j)
        mean, variance = curve.mean[:, None, :], curve.variance[:, None, :]
        if coordinate < nodes.shape[1]:
            moved = (curve.gain * np.sqrt(curve.innovation)[:, None])[:, None, :]
            mean = mean + moved * nodes[:, coordinate][None, :, None]
            variance = np.maximum(variance - moved**2, 1e-12)
        return self.scales[j].marginal(mean, variance)


def told_forecast(objectives: Sequence[Objective], forecast: BatchForecast) -> dict[str, Forecast]:
    """Return the first candidate's forecast of each objective that training changes, for reports."""
    epochs = tuple(int(epoch) for epoch in forecast.ahead)
    told = {}
    for j, objective in enumerate(objectives):
        if j in forecast.batch.statics:
            continue
        means, deviations, kind = forecast.marginal(j)
        mean, deviation = (np.broadcast_to(each[0, 0], len(epochs)).tolist() for each in (means, deviations))
        is_log = kind == "lognormal"
        if is_log and objective.direction == "maximize":  # the values are negative: logarithms are of their negatives
            mean = np.exp(mean).tolist()
            deviation = (np.array(mean) * deviation).tolist()
            is_log = False
        told[objective.metric] = Forecast(
            epochs=epochs,
            mean=tuple(mean if is_log else map(objective.signed, mean)),
            deviation=tuple(deviation),
            is_log=is_log,
        )
    return told
