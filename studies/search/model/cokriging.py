"""Forecasts learning curves by recursive co-kriging: one Gaussian process for each step between two rungs.

After Le Gratiet and Garnier 2014, arXiv 1210.0686. The R rungs are the epochs e_0 < ... < e_{R-1}, with L_k = log e_k
and z_k the metric at rung k (`standardisation.Scale`):

    score(z_0) = m(x) + f_s(x) + e                       start; scores as in `NormalScores`, m(x) as in `transfer`
    d_0 = b + t (w'[1, z_0] + f_d(x) + e)                slope
    z_{k+1} = z_k + a_k + s_k (w'[1, z_k, d_k, x] + f_k(x) + e)             link k, with z_k and d_k standardised
    d_{k+1} = (z_{k+1} - z_k) / (L_{k+1} - L_k)          slope of z in log epochs

Each f is a smooth function of the parameters, each w a vector of weights and each e noise (`gaussian_process`). Each
process is fitted on all trials that crossed its rungs, also pruned trials: pruning depends only on observed values, so
values are missing at random, and the likelihood factorises over the links. Fewer trials cross later links, so the
prior of a_k and s_k is the scale of the link before (of all links for the first), and trends in x extrapolate from the
trials that crossed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from studies.search.arrays import Array, best_and_random
from studies.search.model.candidate_batch import CandidateInputs
from studies.search.model.gaussian_process import Fits, Hyperparameters, Posterior, Prior, fit
from studies.search.model.standardisation import IDENTITY, NormalScores, Standardisation, by_mean, by_median, shrunk
from studies.search.model.transfer import TransferMean

MOST_FITTED, MOST_CONDITIONED = 200, 220
"""Largest number of points for fitting hyperparameters, and for the posterior."""
ENOUGH = 6
"""Number of increments that weigh as much as their prior."""
RATE, SPREAD, SPREAD_RANGE = -0.1, 0.2, (0.01, 1.0)
"""Prior increment of z per unit of log epoch, its standard deviation, and the range of the measured deviation."""
FLATTENING = 0.85
"""Expected ratio of increments per unit of log epoch, and of their deviations, between a link and the link before."""
WEIGHT_SD = 0.5
"""Prior standard deviation of a link's weights on z and slope."""
TREND_SD = 1.0
"""Prior standard deviation of a link's weights on all columns of x together."""
CLIP_INCREMENT, CLIP_FEATURE = 5.0, 4.0
"""Largest absolute values of standardised targets and features."""
SOFTENED = 0.05
"""Number added to the standard deviations of features."""
LEAST_SLOPE_WIDTH, SLOPE_WIDTH = 1e-3, 0.1
"""Smallest width of slopes at the first rung, and their width without measurements."""
START_PRIOR = Prior(
    length_scale=1.2, length_scale_sd=0.8, amplitude=1.5, amplitude_sd=0.8, noise=1e-3, noise_sd=1.7, warp_sd=1.0
)
"""Prior fitted to whole tables of recorded curves with an almost flat prior."""
LINK_PRIOR = Prior(
    length_scale=1.0, length_scale_sd=0.9, amplitude=1.0, amplitude_sd=0.9, noise=0.06, noise_sd=0.8, warp_sd=0.7
)
"""Prior fitted like `START_PRIOR`, with more noise, so that warped inputs do not overfit the few trials that cross a
link (benchmarks/README.md)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveData:
    """Measurements of one metric at the rungs; NaN where not reached."""

    x: Array
    z: Array  # [n, R]
    slopes: Array  # slope d [n, R]
    pending: Array  # points of running trials without a measurement at the first rung [p, D]


def slopes_of(z: Array, before: Array, rungs: Sequence[int]) -> Array:
    """Return the slopes of z [n, R] in log epochs; at the first rung from the epoch before it, or 0 if unknown.

    `before` is z at that epoch [n], NaN if it was not measured.
    """
    slopes = np.full_like(z, np.nan)
    slopes[:, 1:] = np.diff(z, axis=1) / np.diff(np.log(np.asarray(rungs, dtype=float)))
    length = math.log(rungs[0]) - math.log(rungs[0] - 1) if rungs[0] > 1 else math.inf
    first = np.where(np.isnan(before), 0.0, (z[:, 0] - before) / length)
    slopes[:, 0] = np.where(np.isnan(z[:, 0]), np.nan, first)
    return slopes


@dataclass(frozen=True, slots=True)
class CurveForecast:
    """Forecast of one metric for m candidates at the H later rungs."""

    mean: Array
    variance: Array
    gain: Array
    innovation: Array


@dataclass(slots=True)
class _Process:
    key: int
    prior: Prior
    own: Hyperparameters | None = None
    data: tuple[bytes, bytes, bytes] | None = None
    posterior: Posterior | None = None


class Chain:
    """Forecasts one metric at all rungs up to the last epoch. Chains in different threads may share `fits`."""

    def __init__(
        self, rungs: Sequence[int], inputs: int, fits: Fits | None = None, prior_mean: TransferMean | None = None
    ) -> None:
        self._fits = fits or Fits()
        self._prior_mean = prior_mean or TransferMean()
        self.rungs = tuple(rungs)
        self.logs: Array = np.log(np.asarray(self.rungs, dtype=float))
        self._inputs = inputs
        links = len(self.rungs) - 1
        # Fits are kept by key: the rung of a link, and a negative number by first rung for start and slope.
        first = self.rungs[0]
        self._start, self._slope = _Process(-2 * first, START_PRIOR), _Process(-2 * first - 1, LINK_PRIOR)
        self._links = [_Process(rung, LINK_PRIOR) for rung in self.rungs[:-1]]
        self._start_scores, self._slope_scale = NormalScores.of(np.zeros(0)), IDENTITY
        self._increments = [IDENTITY] * links
        self._z_feature = [IDENTITY] * (links + 1)
        self._d_feature = [IDENTITY] * (links + 1)

    def learn(self, data: CurveData, *, refit: bool) -> None:
        """Condition all processes on measurements. `refit` allows fitting hyperparameters, in tenths of a second."""
        self._learn_start(data, refit=refit)
        self._learn_slope(data, refit=refit)
        self._learn_links(data, refit=refit)

    def _learn_start(self, data: CurveData, *, refit: bool) -> None:
        here = ~np.isnan(data.z[:, 0])
        z = data.z[here, 0]
        self._start_scores = scores = NormalScores.of(z)
        self._prior_mean.judge(data.x[here], z)
        u = self._prior_mean.features(data.x[here])
        y = scores.of_z(z) - self._prior_mean.expected(u)
        posterior = self._condition(self._start, data.x[here], u, y, order=z, refit=refit)
        if len(data.pending):
            # Pending points get their posterior means as fantasies, so that no similar configuration is started too.
            mean, _ = posterior.at(data.pending).predict(self._prior_mean.features(data.pending))
            x, y = np.vstack([posterior.x, data.pending]), np.concatenate([self._conditioned_on, mean])
            assert self._start.own is not None  # noqa: S101 - `_condition` has set it
            self._start.posterior = Posterior(x, self._prior_mean.features(x), y, self._start.own)
            self._start.data = None

    def _learn_slope(self, data: CurveData, *, refit: bool) -> None:
        here = ~np.isnan(data.z[:, 0])
        z, d = data.z[here, 0], data.slopes[here, 0]
        self._z_feature[0], self._d_feature[0] = by_mean(z, SOFTENED), by_mean(d, SOFTENED)
        self._slope_scale = by_median(d, LEAST_SLOPE_WIDTH) if len(d) else Standardisation(0.0, SLOPE_WIDTH)
        y = np.clip(self._slope_scale.of(d), -CLIP_INCREMENT, CLIP_INCREMENT)
        u = np.column_stack([np.ones(len(y)), self._z_feature[0].of(z)])
        self._condition(self._slope, data.x[here], u, y, order=z, refit=refit)

    def _learn_links(self, data: CurveData, *, refit: bool) -> None:
        rates = (np.diff(data.z, axis=1) / np.diff(self.logs)).ravel()
        rates = rates[~np.isnan(rates)]
        common = shrunk(Standardisation(RATE, SPREAD), rates, ENOUGH)
        rate, spread = common.centre, spread_in_range(common.width)
        for k, link in enumerate(self._links):
            here = ~np.isnan(data.z[:, k])
            self._z_feature[k] = by_mean(data.z[here, k], SOFTENED)
            self._d_feature[k] = by_mean(data.slopes[here, k], SOFTENED)
            crossed = ~np.isnan(data.z[:, k + 1])
            z, d, after = data.z[crossed, k], data.slopes[crossed, k], data.z[crossed, k + 1]
            step = after - z
            length = float(self.logs[k + 1] - self.logs[k])
            self._increments[k] = scale = shrunk(Standardisation(rate * length, spread * length), step, ENOUGH)
            rate, spread = FLATTENING * scale.centre / length, spread_in_range(FLATTENING * scale.width / length)
            y = np.clip(scale.of(step), -CLIP_INCREMENT, CLIP_INCREMENT)
            u = _link_features(self._z_feature[k].of(z), self._d_feature[k].of(d), data.x[crossed])
            self._condition(link, data.x[crossed], u, y, order=after, refit=refit)

    def _condition(self, process: _Process, x: Array, u: Array, y: Array, *, order: Array, refit: bool) -> Posterior:
        """Condition a process on data, and fit its hyperparameters if the data have grown enough."""
        ranking = np.argsort(order, kind="stable")
        own, fitted_on = self._fits.by_process.get(process.key, (None, 0))
        if own is None or (refit and len(y) - fitted_on >= min(max(2.0, fitted_on / 6.0), 8.0)):
            kept = best_and_random(ranking, MOST_FITTED)
            own = fit(x[kept], u[kept], y[kept], process.prior, own)
            self._fits.by_process[process.key] = (own, len(y))
        if own is not process.own:
            process.own, process.data = own, None
        kept = best_and_random(ranking, MOST_CONDITIONED)
        x, u, y = x[kept], u[kept], y[kept]
        self._conditioned_on = y
        data = (x.tobytes(), u.tobytes(), y.tobytes())
        if process.posterior is None or process.data != data:
            process.posterior, process.data = Posterior(x, u, y, own), data
        return process.posterior

    def forecast_untried(self, candidates: CandidateInputs) -> CurveForecast:
        """Return forecasts at every rung for configurations that were not started."""
        u = self._prior_mean.features(candidates.x)
        mean, variance = self._predicted(candidates, self._start, u)
        slope = self._slope_scale
        z, zz = self._start_scores.forecast(mean + self._prior_mean.expected(u), variance)
        feature = _clipped(self._z_feature[0], z)
        u = np.column_stack([np.ones(len(z)), feature])
        mean, variance = self._predicted(candidates, self._slope, u)
        d = slope.inverse(mean)
        assert self._slope.posterior is not None  # noqa: S101 - `_predicted` has set it
        d_by_z = np.full(len(z), self._slope.posterior.weights[1] * slope.width / self._z_feature[0].width)
        covariance = np.stack(
            [np.stack([zz, d_by_z * zz], -1), np.stack([d_by_z * zz, d_by_z**2 * zz + slope.width**2 * variance], -1)],
            -2,
        )
        return self._propagate(candidates, 0, z, d, covariance, (z, zz, np.stack([np.ones(len(z)), d_by_z], -1)))

    def forecast_started(self, candidates: CandidateInputs, rung_index: int, z: Array, d: Array) -> CurveForecast:
        """Return forecasts at the later rungs for trials that are at a rung before the last."""
        return self._propagate(candidates, rung_index, z, d, np.zeros((len(z), 2, 2)), None)

    def _propagate(  # noqa: PLR0917
        self,
        candidates: CandidateInputs,
        rung_index: int,
        z: Array,
        d: Array,
        covariance: Array,
        first: tuple[Array, Array, Array] | None,
    ) -> CurveForecast:
        """Propagate mean and covariance of (z, d) from rung to rung, like an extended Kalman filter."""
        means, variances, gains = [], [], []
        innovation, gain = None, None
        if first is not None:
            means, variances, gains = [first[0]], [first[1]], [np.ones(len(z))]
            innovation, gain = first[1], first[2]
        for k in range(rung_index, len(self._links)):
            step, length = self._increments[k], float(self.logs[k + 1] - self.logs[k])
            u = _link_features(_clipped(self._z_feature[k], z), _clipped(self._d_feature[k], d), candidates.x)
            mean, variance = self._predicted(candidates, self._links[k], u)
            moved = step.inverse(mean)
            z, d = z + moved, moved / length
            jacobian, along = self._jacobian(k, length), np.array([1.0, 1.0 / length])
            shock = step.width**2 * variance
            covariance = jacobian @ covariance @ jacobian.T + shock[:, None, None] * np.outer(along, along)
            if gain is None or innovation is None:
                innovation, gain = shock, np.tile(along, (len(z), 1))
            else:
                gain = gain @ jacobian.T
            means.append(z)
            variances.append(covariance[:, 0, 0])
            gains.append(gain[:, 0])
        assert innovation is not None  # noqa: S101 - a trial at the last rung is not forecast
        return CurveForecast(np.stack(means, -1), np.stack(variances, -1), np.stack(gains, -1), innovation)

    def _jacobian(self, k: int, length: float) -> Array:
        """Return the derivatives of (z, d) at rung k + 1 by (z, d) at rung k; dz/dz is at least 0."""
        posterior = self._links[k].posterior
        assert posterior is not None  # noqa: S101 - `_predicted` has set it
        _, by_z, by_d = WEIGHT_SD * posterior.weights[:3] * self._increments[k].width
        by_z = max(1.0 + by_z / self._z_feature[k].width, 0.0)
        by_d = by_d / self._d_feature[k].width
        return np.array([[by_z, by_d], [(by_z - 1.0) / length, by_d / length]])

    def _predicted(self, candidates: CandidateInputs, process: _Process, u: Array) -> tuple[Array, Array]:
        """Return mean and variance of a process's target [m] at features u [m, F]."""
        if process.posterior is None:
            own = process.prior.medians(self._inputs)
            process.posterior = Posterior(np.zeros((0, self._inputs)), np.zeros((0, u.shape[1])), np.zeros(0), own)
        return candidates.at(process.key, process.posterior).predict(u)


def spread_in_range(spread: float) -> float:
    """Return a deviation per unit of log epoch within `SPREAD_RANGE`."""
    return min(max(spread, SPREAD_RANGE[0]), SPREAD_RANGE[1])


def _clipped(scale: Standardisation[float], values: Array) -> Array:
    return np.clip(scale.of(values), -CLIP_FEATURE, CLIP_FEATURE)


def _link_features(z: Array, d: Array, x: Array) -> Array:
    """Return the linear features of a step between rungs [m, 3 + D], scaled for weights of about 1."""
    trend = TREND_SD / math.sqrt(max(x.shape[1], 1)) * (2.0 * x - 1.0)
    return np.column_stack([np.ones(len(z)), WEIGHT_SD * z, WEIGHT_SD * d, trend])
