"""Forecasts the last values of shortened trainings from their learning curves alone, without parameters.

The model is simpler than `studies.search.model.cokriging`: each step between rungs is a Bayesian linear regression on
the curve so far, with the most probable noise variance (Bishop 2006, section 3.5).

    z_{k+1} = z_k + a_k + s_k (w'[1, ~z_k, ~d_k] + e),   d_{k+1} = (z_{k+1} - z_k) / (L_{k+1} - L_k)

z_k: metric at rung k on the study's scale; d_k: slope per unit of L_k = log(epoch of rung k); a_k, s_k: location and
width of the measured steps; ~: standardised.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from studies.records.records import STATIC_METRICS, Objective
from studies.search.arrays import Array
from studies.search.model.cokriging import (
    CLIP_FEATURE,
    CLIP_INCREMENT,
    ENOUGH,
    RATE,
    SOFTENED,
    SPREAD,
    slopes_of,
    spread_in_range,
)
from studies.search.model.standardisation import LEAST_WIDTH, Scale, Standardisation, by_mean, by_median
from studies.search.observations import Snapshot
from trainers.protocol import CUMULATIVE_METRICS

Ends = Mapping[int, float]
"""Forecasts at the last epoch by objective, signed so that smaller is better."""

NOISES: Array = np.geomspace(1e-4, 10.0, 41)
"""Possible noise variances of standardised targets."""
NOISE_PRIOR, NOISE_PRIOR_SD = 0.3, 1.5
"""Prior median of the noise variance, and prior standard deviation of its logarithm."""


def forecast_ends(
    trials: Sequence[Snapshot], cut_short: Collection[int], *, objectives: Sequence[Objective], rungs: Sequence[int]
) -> dict[int, Ends | None]:
    """Return forecasts at the last epoch by number, for trials that were stopped early.

    The value is None for a trial that did not reach the first rung. The result is empty if too few trials reached two
    successive rungs. `rungs` ascend to the last epoch.
    """
    wanted = [row for row, trial in enumerate(trials) if trial.number in cut_short]
    constant = CUMULATIVE_METRICS | STATIC_METRICS
    learned = [j for j, objective in enumerate(objectives) if objective.metric not in constant]
    curves = {j: _curves(trials, j, rungs) for j in learned}
    if not wanted or not curves or any(one is None for one in curves.values()):
        return {}
    values = {j: one.ends_of(wanted) for j, one in curves.items() if one is not None}
    return {
        trials[row].number: None
        if any(math.isnan(column[position]) for column in values.values())
        else {j: float(column[position]) for j, column in values.items()}
        for position, row in enumerate(wanted)
    }


def _curves(trials: Sequence[Snapshot], j: int, rungs: Sequence[int]) -> "_Curves | None":
    """Return the curves of one objective; None if fewer than `ENOUGH` steps between rungs were measured."""
    values = np.array([_at_rungs(trial, j, rungs) for trial in trials]).reshape(-1, len(rungs))
    if (~np.isnan(values[:, 1:])).sum() < ENOUGH:
        return None
    scale = Scale.of(values[np.isfinite(values)], None)
    z = np.where(np.isnan(values), np.nan, scale.to_z(values))
    first = rungs[0] - 1
    before = np.array([trial.at[first][j] if first in trial.at else math.nan for trial in trials])
    slopes = slopes_of(z, scale.to_z(before), rungs)
    return _Curves(scale=scale, z=z, slopes=slopes, steps=_steps(rungs, z, slopes))


def _at_rungs(trial: Snapshot, j: int, rungs: Sequence[int]) -> list[float]:
    """Return an objective at each rung: NaN if not reached, infinite at the rung a failed trial missed."""
    at = [trial.at_rung(rung) for rung in rungs]
    values = [math.nan if one is None else one[j] for one in at]
    if trial.state == "failed":
        reached = sum(not math.isnan(value) for value in values)
        if reached < len(values):
            values[reached] = math.inf
    return values


@dataclass(frozen=True, kw_only=True, slots=True)
class _Curves:
    """Learning curves of one objective [n, R], with the regressions between rungs."""

    scale: Scale
    z: Array
    slopes: Array
    steps: "Sequence[_Step]"

    def ends_of(self, rows: Sequence[int]) -> Array:
        """Return forecasts at the last rung [m]; NaN for a trial that reached no rung."""
        z, slopes = self.z[rows], self.slopes[rows]
        reached = (~np.isnan(z)).sum(axis=1) - 1
        ends = np.full(len(rows), np.nan)
        for rung in range(len(self.steps)):
            here = np.flatnonzero(reached == rung)
            moved, slope = z[here, rung], slopes[here, rung]
            for step in self.steps[rung:]:
                moved, slope = step.after(moved, slope)
            ends[here] = moved
        seen = self.z[~np.isnan(self.z)]
        return self.scale.from_z(np.clip(ends, seen.min(), seen.max()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    z: Standardisation[float]
    slope: Standardisation[float]
    step: Standardisation[float]
    weights: Array
    length: float

    def after(self, z: Array, slopes: Array) -> tuple[Array, Array]:
        moved = self.step.inverse(_features(self.z, self.slope, z, slopes) @ self.weights)
        return z + moved, moved / self.length


def _steps(rungs: Sequence[int], z: Array, slopes: Array) -> list[_Step]:
    logs = np.log(np.asarray(rungs, dtype=float))
    rates = slopes[:, 1:].ravel()
    rates = rates[~np.isnan(rates)]
    rate, spread = (float(np.median(rates)), float(rates.std())) if len(rates) >= ENOUGH else (RATE, SPREAD)
    usual = Standardisation(centre=rate, width=spread_in_range(spread))
    return [_step(k, float(logs[k + 1] - logs[k]), usual, z, slopes) for k in range(len(logs) - 1)]


def _step(k: int, length: float, usual: Standardisation[float], z: Array, slopes: Array) -> _Step:
    """Return the regression from rung k to the next; `usual` is the scale of fewer than `ENOUGH` steps."""
    here, crossed = ~np.isnan(z[:, k]), ~np.isnan(z[:, k + 1])
    steps = z[crossed, k + 1] - z[crossed, k]
    if len(steps) >= ENOUGH:
        scale = by_median(steps, LEAST_WIDTH)
    else:
        scale = Standardisation(centre=usual.centre * length, width=usual.width * length)
    z_scale, slope_scale = (by_mean(values[here, k], SOFTENED) for values in (z, slopes))
    y = np.clip(scale.of(steps), -CLIP_INCREMENT, CLIP_INCREMENT)
    weights = regression_weights(_features(z_scale, slope_scale, z[crossed, k], slopes[crossed, k]), y)
    return _Step(z=z_scale, slope=slope_scale, step=scale, weights=weights, length=length)


def _features(z_scale: Standardisation[float], slope_scale: Standardisation[float], z: Array, slopes: Array) -> Array:
    clipped = [
        np.clip(scale.of(values), -CLIP_FEATURE, CLIP_FEATURE)
        for scale, values in ((z_scale, z), (slope_scale, slopes))
    ]
    return np.column_stack([np.ones(len(z)), *clipped])


def regression_weights(u: Array, y: Array) -> Array:
    """Return the posterior mean of w [F] in y = w'u + e, w ~ N(0, I), at the most probable noise; u [n, F]."""
    gram, moment = u.T @ u, u.T @ y
    inverses = np.linalg.inv(gram + NOISES[:, None, None] * np.eye(u.shape[1]))  # (U'U + s I)^-1
    explained = np.einsum("f,sfg,g->s", moment, inverses, moment)
    log_determinants = -np.linalg.slogdet(inverses)[1] - u.shape[1] * np.log(NOISES)
    off = (np.log(NOISES) - np.log(NOISE_PRIOR)) / NOISE_PRIOR_SD
    losses = len(y) * np.log(NOISES) + log_determinants + (y @ y - explained) / NOISES + off**2
    weights: Array = inverses[int(np.argmin(losses))] @ moment
    return weights
