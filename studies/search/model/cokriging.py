"""Forecasting learning curves: a recursive co-kriging over rungs, with the slope as a second state.

A chain of small Gaussian processes (Le Gratiet and Garnier 2014, arXiv 1210.0686): stage 0 says where a configuration
stands at the first rung, the slope stage how fast it gets there, and each link how it gets from one rung to the next,
given where it stands and how fast it moves. Each is fitted on every trial that crossed it, so that pruned trials teach
as much as they trained. The same chain forecasts trials that run, trials that wait, and what nobody has tried.

    z = log(objective) where it is positive; otherwise the objective itself, centred and scaled
    score(z_0), d_0 ~ stage 0, slope stage;   z_{k+1} = z_k + a_k + s_k (w'[1, ~z_k, ~d_k] + f_k(x) + e)
    d_{k+1} = (z_{k+1} - z_k) / (L_{k+1} - L_k),   L = log(epoch)

Why increments and not forecasts as data: whether a trial goes on depends on what was observed of it, so what is missing
is missing at random, and the likelihood factorises over the links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from studies.search.acquisition.hypervolume_improvement import Kind
from studies.search.model.gaussian_process import Array, ConditionedPosterior, Hyperparameters, Posterior, Prior, fit
from studies.search.model.normal_scores import NormalScores
from studies.search.model.transfer import TransferMean

RATIO = 2.2
MOST_FITTED, MOST_SEEN = 200, 220
"""Points that a stage is fitted on, and that its posterior knows: the best half and a random half."""
ENOUGH = 6
RATE, SPREAD, SPREAD_RANGE = -0.1, 0.2, (0.03, 1.0)
"""Of log error per log epoch, before enough trials have crossed any link."""
WEIGHT_SD = 0.5
"""Prior deviation of a link's weights on where a trial stands and how fast it moves."""
CLIP_INCREMENT, CLIP_FEATURE = 5.0, 4.0
ABOVE_BOUND = 1.5
"""By so much more than the bound of a metric z is told apart."""
ABOVE_REFERENCE, LEAST_RANGE = 0.15, 0.1
"""Of an objective only by this part of the distance from the best to the reference, and what that distance is at least.
Losses that explode, and what failed, would otherwise be a cliff, and what is beside it the most uncertain of all."""
FAR = 5.0
"""Ceiling of a centred objective as long as nothing says what is far."""
SOFTENED = 0.05
START_PRIOR = Prior(
    length_scale=1.2, length_scale_sd=0.8, amplitude=1.5, amplitude_sd=0.8, noise=1e-3, noise_sd=1.7, warp_sd=1.0
)
LINK_PRIOR = Prior(
    length_scale=1.0, length_scale_sd=0.9, amplitude=1.0, amplitude_sd=0.9, noise=0.06, noise_sd=0.8, warp_sd=0.7
)
"""Both after fits to whole tables of recorded curves where almost no prior was assumed; the start's serves for scores,
too. The few trials that cross a link would be fitted too closely with less noise, now that inputs are warped
(docs/decisions.md)."""


def decision_rungs(epochs: int, ratio: float = RATIO, least: int = 2) -> tuple[int, ...]:
    """Epochs at which a forecast is worth looking at: from the last down by a constant ratio, ascending."""
    found, epoch = [epochs], float(epochs)
    while (epoch := epoch / ratio) >= least - 0.5 and round(epoch) < found[-1]:
        found.append(max(round(epoch), 1))
    return tuple(sorted(set(found)))


@dataclass(frozen=True, slots=True)
class Scale:
    """How an objective, turned to be minimised, becomes z.

    Attributes:
        kind: Of the forecast in the objective's own units: log-normal or Gaussian.
        low: Smallest positive value that is told from 0, where logarithms are taken.
        centre: Subtracted otherwise,
        width: and divided by.
        ceiling: Of z.
    """

    kind: Kind
    low: float = 0.0
    centre: float = 0.0
    width: float = 1.0
    ceiling: float = FAR

    @staticmethod
    def of(values: Array, far: float | None, *, is_worthless_beyond: bool = False) -> Scale:
        """The scale that fits what was seen of an objective or bounded metric; not finite values are left out.

        Args:
            values: What was seen.
            far: The reference point's coordinate, or the bound, if there is one.
            is_worthless_beyond: Whether that is where values are worth nothing: of an objective, beyond the reference.
        """
        seen = values[np.isfinite(values)]
        if not len(seen):
            return Scale("gaussian")
        if seen.min() >= 0 and seen.max() > 0:
            low = float(seen[seen > 0].min()) / 2.0
            end = math.log(max(far if far is not None and far > 0 else float(np.median(seen)), low))
            best = math.log(max(float(seen.min()), low)) if is_worthless_beyond else None
            return Scale("lognormal", low=low, ceiling=_beyond(end, best))
        quarter, centre, three = np.quantile(seen, [0.25, 0.5, 0.75])
        width = float(max(three - quarter, 1e-3 * max(abs(centre), 1e-6)))
        best = (float(seen.min()) - centre) / width if is_worthless_beyond else None
        top = _beyond((far - centre) / width, best) if far is not None else FAR
        return Scale("gaussian", centre=float(centre), width=width, ceiling=max(top, 1.0))

    def to_z(self, values: Array) -> Array:
        """Objective to z; what is not finite is as bad as can be."""
        with np.errstate(invalid="ignore", divide="ignore"):
            z = (
                np.log(np.maximum(values, self.low))
                if self.kind == "lognormal"
                else (values - self.centre) / self.width
            )
        bounded: Array = np.minimum(np.where(np.isfinite(values), z, self.ceiling), self.ceiling)
        return bounded

    def marginal(self, mean: Array, variance: Array) -> tuple[Array, Array, Kind]:
        """Mean, deviation and kind of the objective, in its own units (of its logarithm if it is log-normal)."""
        sd = np.sqrt(variance)
        if self.kind == "lognormal":
            return mean, sd, "lognormal"
        return self.centre + self.width * mean, self.width * sd, "gaussian"


def _beyond(far: float, best: float | None) -> float:
    """Up to where z is told apart; `best` is given where values beyond are worth nothing."""
    return far + (ABOVE_BOUND if best is None else min(ABOVE_REFERENCE * max(far - best, LEAST_RANGE), ABOVE_BOUND))


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossings:
    """What was measured of one objective at the rungs.

    Attributes:
        x: Inputs of the trials [n, D].
        z: At each rung [n, R]; NaN where a trial has not been.
        slopes: d at each rung [n, R], likewise.
        believers: Inputs of trials that run and have no measurement at the first rung yet [b, D].
    """

    x: Array
    z: Array
    slopes: Array
    believers: Array


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one objective at the rungs after the one where the candidates are.

    Attributes:
        mean: Of z [m, H].
        variance: Of z [m, H].
        gain: By how much z there moves with the next innovation [m, H].
        innovation: Variance of what the next rung will tell [m].
    """

    mean: Array
    variance: Array
    gain: Array
    innovation: Array

    def rows(self, chosen: NDArray[np.intp]) -> Forecast:
        """Of some of the candidates."""
        return Forecast(self.mean[chosen], self.variance[chosen], self.gain[chosen], self.innovation[chosen])


@dataclass(frozen=True, slots=True)
class _Standard:
    """Centre and width of what a stage gives or takes."""

    centre: float
    width: float

    @staticmethod
    def feature(values: Array) -> _Standard:
        if not len(values):
            return _Standard(0.0, 1.0)
        return _Standard(float(values.mean()), float(values.std()) + SOFTENED)

    def of(self, values: Array) -> Array:
        return (values - self.centre) / self.width

    def with_seen(self, values: Array) -> _Standard:
        """What it becomes with these values, if it stands for `ENOUGH` of them: few that are alike prove little."""
        if not len(values):
            return self
        share = len(values) / (len(values) + ENOUGH)
        centre = share * float(np.median(values)) + (1.0 - share) * self.centre
        variance = share * float(((values - centre) ** 2).mean()) + (1.0 - share) * self.width**2
        return _Standard(centre, math.sqrt(variance))


@dataclass(frozen=True, slots=True)
class Fits:
    """Hyperparameters by process, with the number of points that each was fitted on; chains may share them."""

    by_stage: dict[int, tuple[Hyperparameters, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Stage:
    """One process of the chain, and what it was last conditioned on.

    Attributes:
        name: -2 for the start, -1 for the slope, else the link's place.
    """

    name: int
    prior: Prior
    own: Hyperparameters | None = None
    data: tuple[bytes, bytes, bytes] | None = None
    posterior: Posterior | None = None


class CandidateInputs:
    """Candidates whose place in each process is worked out once, as long as the process stays the same.

    Args:
        x: Inputs [m, D].
    """

    def __init__(self, x: Array) -> None:
        self.x = x
        self._kept: dict[int, tuple[Posterior, ConditionedPosterior]] = {}

    def at(self, stage: int, posterior: Posterior) -> ConditionedPosterior:
        """The candidates under a stage's posterior."""
        kept = self._kept.get(stage)
        if kept is None or kept[0] is not posterior:
            kept = self._kept[stage] = (posterior, posterior.at(self.x))
        return kept[1]

    def rows(self, chosen: NDArray[np.intp]) -> CandidateInputs:
        """Some of them, with what was worked out already."""
        some = CandidateInputs(self.x[chosen])
        some._kept = {stage: (posterior, at.rows(chosen)) for stage, (posterior, at) in self._kept.items()}
        return some


class Chain:
    """Forecasts one objective.

    Args:
        rungs: Ascending; the last one is the last epoch.
        inputs: Width D of the inputs.
        fits: Where hyperparameters are kept.
        level: Features of the first stage.
    """

    def __init__(
        self, rungs: Sequence[int], inputs: int, fits: Fits | None = None, level: TransferMean | None = None
    ) -> None:
        self._fits = fits or Fits()
        self._level = level or TransferMean()
        self.rungs = tuple(rungs)
        self.logs: Array = np.log(np.asarray(self.rungs, dtype=float))
        self._inputs = inputs
        links = len(self.rungs) - 1
        self._start, self._slope = _Stage(-2, START_PRIOR), _Stage(-1, LINK_PRIOR)
        self._links = [_Stage(k, LINK_PRIOR) for k in range(links)]
        self._start_scores, self._slope_scale = NormalScores.of(np.zeros(0)), _Standard(0.0, 1.0)
        self._increments = [_Standard(0.0, 1.0)] * links
        self._z_feature = [_Standard(0.0, 1.0)] * (links + 1)
        self._d_feature = [_Standard(0.0, 1.0)] * (links + 1)

    # ------------------------------------------------------------------ learning

    def learn(self, seen: Crossings, *, refit: bool) -> None:
        """Take in all that was measured.

        Args:
            seen: Everything so far.
            refit: Whether length-scales may be fitted anew, which takes tenths of a second; else those of before serve.
        """
        self._learn_start(seen, refit=refit)
        self._learn_slope(seen, refit=refit)
        self._learn_links(seen, refit=refit)

    def _learn_start(self, seen: Crossings, *, refit: bool) -> None:
        here = ~np.isnan(seen.z[:, 0])
        z = seen.z[here, 0]
        self._start_scores = scores = NormalScores.of(z)
        self._level.judge(seen.x[here], z)
        u = self._level.features(seen.x[here])
        y = scores.of_z(z) - self._level.expected(u)
        posterior = self._condition(self._start, seen.x[here], u, y, order=z, refit=refit)
        if len(seen.believers):
            # A trial that runs is believed to do what is expected of it: nobody starts its twin beside it.
            mean, _ = posterior.at(seen.believers).predict(self._level.features(seen.believers))
            x, y = np.vstack([posterior.x, seen.believers]), np.concatenate([self._kept_targets, mean])
            assert self._start.own is not None  # noqa: S101 - `_condition` has set it
            self._start.posterior = Posterior(x, self._level.features(x), y, self._start.own)
            self._start.data = None

    def _learn_slope(self, seen: Crossings, *, refit: bool) -> None:
        here = ~np.isnan(seen.z[:, 0])
        z, d = seen.z[here, 0], seen.slopes[here, 0]
        self._z_feature[0], self._d_feature[0] = _Standard.feature(z), _Standard.feature(d)
        self._slope_scale = _Standard(float(np.median(d)), max(float(d.std()), 1e-3)) if len(d) else _Standard(0.0, 0.1)
        y = np.clip(self._slope_scale.of(d), -CLIP_INCREMENT, CLIP_INCREMENT)
        u = np.column_stack([np.ones(len(y)), self._z_feature[0].of(z)])
        self._condition(self._slope, seen.x[here], u, y, order=z, refit=refit)

    def _learn_links(self, seen: Crossings, *, refit: bool) -> None:
        rates = (np.diff(seen.z, axis=1) / np.diff(self.logs)).ravel()
        rates = rates[~np.isnan(rates)]
        common = _Standard(RATE, SPREAD).with_seen(rates)
        rate, spread = common.centre, min(max(common.width, SPREAD_RANGE[0]), SPREAD_RANGE[1])
        for k, stage in enumerate(self._links):
            here = ~np.isnan(seen.z[:, k])
            self._z_feature[k] = _Standard.feature(seen.z[here, k])
            self._d_feature[k] = _Standard.feature(seen.slopes[here, k])
            crossed = ~np.isnan(seen.z[:, k + 1])
            z, d, after = seen.z[crossed, k], seen.slopes[crossed, k], seen.z[crossed, k + 1]
            step = after - z
            length = float(self.logs[k + 1] - self.logs[k])
            self._increments[k] = scale = _Standard(rate * length, spread * length).with_seen(step)
            y = np.clip(scale.of(step), -CLIP_INCREMENT, CLIP_INCREMENT)
            u = _link_features(self._z_feature[k].of(z), self._d_feature[k].of(d))
            self._condition(stage, seen.x[crossed], u, y, order=after, refit=refit)

    def _condition(self, stage: _Stage, x: Array, u: Array, y: Array, *, order: Array, refit: bool) -> Posterior:
        """Bring a stage's posterior up to its data; length-scales are fitted again when it has grown enough."""
        own, fitted_on = self._fits.by_stage.get(stage.name, (None, 0))
        if own is None or (refit and len(y) - fitted_on >= min(max(2.0, fitted_on / 6.0), 8.0)):
            kept = _half_best(order, MOST_FITTED)
            own = fit(x[kept], u[kept], y[kept], stage.prior, own)
            self._fits.by_stage[stage.name] = (own, len(y))
        if own is not stage.own:
            stage.own, stage.data = own, None
        kept = _half_best(order, MOST_SEEN)
        x, u, y = x[kept], u[kept], y[kept]
        self._kept_targets = y
        data = (x.tobytes(), u.tobytes(), y.tobytes())
        if stage.posterior is None or stage.data != data:
            stage.posterior, stage.data = Posterior(x, u, y, own), data
        return stage.posterior

    # ------------------------------------------------------------------ forecasting

    def forecast_untried(self, pool: CandidateInputs) -> Forecast:
        """What candidates that nobody has tried will reach at every rung."""
        u = self._level.features(pool.x)
        mean, variance = self._predicted(pool, self._start, u)
        slope = self._slope_scale
        z, zz = self._start_scores.forecast(mean + self._level.expected(u), variance)
        feature = self._clipped(self._z_feature[0], z)
        u = np.column_stack([np.ones(len(z)), feature])
        mean, variance = self._predicted(pool, self._slope, u)
        d = slope.centre + slope.width * mean
        assert self._slope.posterior is not None  # noqa: S101 - `_predicted` has seen it
        moves = np.full(len(z), self._slope.posterior.weights[1] * slope.width / self._z_feature[0].width)
        spread = np.stack(
            [np.stack([zz, moves * zz], -1), np.stack([moves * zz, moves**2 * zz + slope.width**2 * variance], -1)], -2
        )
        return self._propagate(pool, 0, z, d, spread, (z, zz, np.stack([np.ones(len(z)), moves], -1)))

    def forecast_started(self, pool: CandidateInputs, rung: int, z: Array, d: Array) -> Forecast:
        """What trials that stand at a rung will reach at the later ones.

        Args:
            pool: Their inputs.
            rung: Its index; not the last.
            z: Where they stand [m].
            d: How fast they move [m].
        """
        return self._propagate(pool, rung, z, d, np.zeros((len(z), 2, 2)), None)

    def _propagate(  # noqa: PLR0917
        self,
        pool: CandidateInputs,
        rung: int,
        z: Array,
        d: Array,
        spread: Array,
        first: tuple[Array, Array, Array] | None,
    ) -> Forecast:
        """Carry mean and covariance of (z, d) over the links after a rung; `first` is z there if it is a forecast."""
        means, variances, gains = [], [], []
        innovation, gain = None, None
        if first is not None:
            means, variances, gains = [first[0]], [first[1]], [np.ones(len(z))]
            innovation, gain = first[1], first[2]
        for k in range(rung, len(self._links)):
            step, length = self._increments[k], float(self.logs[k + 1] - self.logs[k])
            u = _link_features(self._clipped(self._z_feature[k], z), self._clipped(self._d_feature[k], d))
            mean, variance = self._predicted(pool, self._links[k], u)
            posterior = self._links[k].posterior
            assert posterior is not None  # noqa: S101 - `_predicted` has seen it
            _, by_z, by_d = WEIGHT_SD * posterior.weights * step.width
            by_z = max(1.0 + by_z / self._z_feature[k].width, 0.0)
            by_d = by_d / self._d_feature[k].width
            jacobian = np.array([[by_z, by_d], [(by_z - 1.0) / length, by_d / length]])
            moved = step.centre + step.width * mean
            z, d = z + moved, moved / length
            shock, along = step.width**2 * variance, np.array([1.0, 1.0 / length])
            spread = jacobian @ spread @ jacobian.T + shock[:, None, None] * np.outer(along, along)
            if gain is None or innovation is None:
                innovation, gain = shock, np.tile(along, (len(z), 1))
            else:
                gain = gain @ jacobian.T
            means.append(z)
            variances.append(spread[:, 0, 0])
            gains.append(gain[:, 0])
        assert innovation is not None  # noqa: S101 - a trial at the last rung is not forecast
        return Forecast(np.stack(means, -1), np.stack(variances, -1), np.stack(gains, -1), innovation)

    def _predicted(self, pool: CandidateInputs, stage: _Stage, u: Array) -> tuple[Array, Array]:
        if stage.posterior is None:  # nothing was learned yet
            own = stage.prior.medians(self._inputs)
            stage.posterior = Posterior(np.zeros((0, self._inputs)), np.zeros((0, u.shape[1])), np.zeros(0), own)
        return pool.at(stage.name, stage.posterior).predict(u)

    def _clipped(self, scale: _Standard, values: Array) -> Array:
        return np.clip(scale.of(values), -CLIP_FEATURE, CLIP_FEATURE)


def _link_features(z: Array, d: Array) -> Array:
    """What a link is linear in [m, 3], scaled so that unit weights are as large as is expected."""
    return np.column_stack([np.ones(len(z)), WEIGHT_SD * z, WEIGHT_SD * d])


def _half_best(order: Array, most: int) -> NDArray[np.intp]:
    """Positions of the best half and a random half, if there are too many; ascending."""
    if len(order) <= most:
        return np.arange(len(order))
    ranked = np.argsort(order, kind="stable")
    others = np.random.default_rng(len(order)).permutation(ranked[most // 2 :])[: most - most // 2]
    return np.sort(np.concatenate([ranked[: most // 2], others]))
