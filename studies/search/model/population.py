"""Forecasting learning curves without looking at parameters: what a curve so far says about its end.

The chain of `studies.search.model.cokriging` with its smooth parts left out: each stage is a Bayesian linear
regression, with the noise that has the largest evidence (Bishop 2006, section 3.5). It keeps nothing between calls, so
that a study that was rebuilt from its store forecasts the same, and takes a millisecond for hundreds of trials.

    z_0, d_0 ~ N;   z_{k+1} = z_k + a_k + s_k (w'[1, ~z_k, ~d_k] + e),   d_{k+1} = (z_{k+1} - z_k) / (L_{k+1} - L_k)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from studies.search.model.cokriging import (
    CLIP_FEATURE,
    CLIP_INCREMENT,
    ENOUGH,
    RATE,
    SOFTENED,
    SPREAD,
    SPREAD_RANGE,
)
from studies.search.model.normal_scores import CLIP_START

Array = NDArray[np.float64]

NOISES: Array = np.geomspace(1e-4, 10.0, 41)
"""Variances that are compared; targets are about standardised."""
NOISE_PRIOR, NOISE_PRIOR_SD = 0.3, 1.5
"""Median of the noise's variance, and deviation of its logarithm."""


@dataclass(frozen=True, slots=True)
class Line:
    """y = w'u + e after its data.

    Attributes:
        weights: Posterior mean of w [F].
        spread: Posterior covariance of w [F, F].
        noise: Variance of e.
    """

    weights: Array
    spread: Array
    noise: float

    @staticmethod
    def fitted(u: Array, y: Array) -> Line:
        """The line under w ~ N(0, 1), with the noise of the largest posterior probability.

        Args:
            u: Features [n, F]; n may be 0.
            y: Targets [n].
        """
        gram, moment = u.T @ u, u.T @ y
        inverses = np.linalg.inv(gram + NOISES[:, None, None] * np.eye(u.shape[1]))  # (U'U + s I)^-1
        explained = np.einsum("f,sfg,g->s", moment, inverses, moment)
        log_determinants = -np.linalg.slogdet(inverses)[1] - u.shape[1] * np.log(NOISES)
        off = (np.log(NOISES) - np.log(NOISE_PRIOR)) / NOISE_PRIOR_SD
        losses = len(y) * np.log(NOISES) + log_determinants + (y @ y - explained) / NOISES + off**2
        best = int(np.argmin(losses))
        noise = float(NOISES[best])
        return Line(inverses[best] @ moment, noise * inverses[best], noise)

    def predict(self, u: Array) -> tuple[Array, Array]:
        """Mean and variance, noise included, at features u [m, F]."""
        return u @ self.weights, np.einsum("mf,fg,mg->m", u, self.spread, u) + self.noise


@dataclass(frozen=True, slots=True)
class _Standard:
    centre: float
    width: float

    def of(self, values: Array) -> Array:
        return (values - self.centre) / self.width


def _feature(values: Array) -> _Standard:
    return _Standard(float(values.mean()), float(values.std()) + SOFTENED)


def _target(values: Array) -> _Standard:
    return _Standard(float(np.median(values)), max(float(values.std()), 1e-3))


@dataclass(frozen=True, slots=True)
class _Link:
    """From one rung to the next: features, target, and the line between them."""

    z: _Standard
    d: _Standard
    step: _Standard
    line: Line
    length: float

    def features(self, z: Array, d: Array) -> Array:
        clipped = [
            np.clip(scale.of(values), -CLIP_FEATURE, CLIP_FEATURE) for scale, values in ((self.z, z), (self.d, d))
        ]
        return np.column_stack([np.ones(len(z)), *clipped])

    def cross(self, z: Array, d: Array, spread: Array) -> tuple[Array, Array, Array]:
        """Mean and covariance of (z, d) at the next rung."""
        mean, variance = self.line.predict(self.features(z, d))
        moved = self.step.centre + self.step.width * mean
        by_z = max(1.0 + self.line.weights[1] * self.step.width / self.z.width, 0.0)
        by_d = self.line.weights[2] * self.step.width / self.d.width
        jacobian = np.array([[by_z, by_d], [(by_z - 1.0) / self.length, by_d / self.length]])
        along = np.array([1.0, 1.0 / self.length])
        shock = self.step.width**2 * variance
        return (
            z + moved,
            moved / self.length,
            jacobian @ spread @ jacobian.T + shock[:, None, None] * np.outer(along, along),
        )


class Population:
    """What trials of a study do from rung to rung, whatever their parameters.

    Args:
        rungs: Ascending; the last one is the last epoch.
        z: Of each trial at each rung [n, R]; NaN where it has not been. At least one has been at the first.
        slopes: d, likewise [n, R].
    """

    def __init__(self, rungs: Sequence[int], z: Array, slopes: Array) -> None:
        self._logs = np.log(np.asarray(rungs, dtype=float))
        rates = (np.diff(z, axis=1) / np.diff(self._logs)).ravel()
        rates = rates[~np.isnan(rates)]
        self.crossings = len(rates)
        rate, spread = (float(np.median(rates)), float(rates.std())) if len(rates) >= ENOUGH else (RATE, SPREAD)
        self._rate, self._rate_spread = rate, min(max(spread, SPREAD_RANGE[0]), SPREAD_RANGE[1])
        here = ~np.isnan(z[:, 0])
        self._begin(z[here, 0], slopes[here, 0])
        self._links = [self._link(k, z, slopes) for k in range(len(rungs) - 1)]

    def _begin(self, z: Array, d: Array) -> None:
        self._z, self._d, self._z_feature = _target(z), _target(d), _feature(z)
        start = np.clip(self._z.of(z), *CLIP_START)
        self._start = Line.fitted(np.ones((len(z), 1)), start)
        moving = np.clip(self._d.of(d), -CLIP_INCREMENT, CLIP_INCREMENT)
        self._slope = Line.fitted(np.column_stack([np.ones(len(z)), self._z_feature.of(z)]), moving)

    def _link(self, k: int, z: Array, slopes: Array) -> _Link:
        here, crossed = ~np.isnan(z[:, k]), ~np.isnan(z[:, k + 1])
        length = float(self._logs[k + 1] - self._logs[k])
        steps = z[crossed, k + 1] - z[crossed, k]
        scale = _target(steps) if len(steps) >= ENOUGH else _Standard(self._rate * length, self._rate_spread * length)
        features = [_feature(values[here, k]) if here.any() else _Standard(0.0, 1.0) for values in (z, slopes)]
        empty = Line.fitted(np.zeros((0, 3)), np.zeros(0))
        link = _Link(features[0], features[1], scale, empty, length)
        y = np.clip(scale.of(steps), -CLIP_INCREMENT, CLIP_INCREMENT)
        line = Line.fitted(link.features(z[crossed, k], slopes[crossed, k]), y)
        return _Link(features[0], features[1], scale, line, length)

    def untried(self) -> tuple[float, float]:
        """Mean and variance of z at the last epoch, of a trial that was not measured."""
        mean, variance = self._start.predict(np.ones((1, 1)))
        z, zz = self._z.centre + self._z.width * mean, self._z.width**2 * variance
        mean, variance = self._slope.predict(np.column_stack([np.ones(1), self._z_feature.of(z)]))
        d, dd = self._d.centre + self._d.width * mean, self._d.width**2 * variance
        moves = np.full(1, self._slope.weights[1] * self._d.width / self._z_feature.width)
        spread = np.stack(
            [np.stack([zz, moves * zz], -1), np.stack([moves * zz, moves**2 * zz + dd], -1)], -2
        )  # fmt: skip
        mean, variance = self._carry(0, z, d, spread)
        return float(mean[0]), float(variance[0])

    def started(self, rung: int, z: Array, d: Array) -> tuple[Array, Array]:
        """Mean and variance of z at the last epoch [m] each, of trials that stand at a rung.

        Args:
            rung: Its index; not the last.
            z: Where they stand [m].
            d: How fast they move [m].
        """
        return self._carry(rung, z, d, np.zeros((len(z), 2, 2)))

    def _carry(self, rung: int, z: Array, d: Array, spread: Array) -> tuple[Array, Array]:
        for link in self._links[rung:]:
            z, d, spread = link.cross(z, d, spread)
        return z, spread[:, 0, 0]
