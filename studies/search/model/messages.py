"""What a sampler that sees finished trials only is told of paused and pruned ones: a message, not a belief.

A forecast of a trial's end is mostly what is known of all trials; told as an outcome, it drags the sampler's own
model to their mean. A message is what the trial's measurements say beyond that. With (M, V) the forecast from its
measurements and (M0, V0) the forecast without any, both without its parameters, whose effect is the sampler's to find
out,

    precision p = 1 / V - 1 / V0,   value = (M / V - M0 / V0) / p,   noise = 1 / p

(the ratio of two Gaussians, as in expectation propagation: Minka 2001). A sampler has no place for the noise, so each
ask hears one draw: multiple imputation (Rubin 1987). A trial that says too little is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from studies.records import CUMULATIVE_METRICS, Objective
from studies.search.model.cokriging import ENOUGH, Scale, decision_rungs
from studies.search.model.population import Array, Population
from studies.search.observations import Snapshot

LEAST_PRECISION = 0.25
"""Of a message, in that of the forecast without measurements."""
ValueOf = Callable[[Array, Array, float, float], Array]
"""From mean and variance of forecasts with measurements [m], and of the one without, to values [m]."""
Message = Mapping[int, float] | None
"""By learned objective its value, turned to be minimised; None is nothing to say."""


def message_rungs(decided_at: Sequence[int], epochs: int) -> tuple[int, ...]:
    """Where curves are looked at: at the rungs of the pruner, else where a forecast is worth it, and at the end."""
    return tuple(sorted({*decided_at, epochs})) if decided_at else decision_rungs(epochs)


@dataclass(frozen=True, slots=True)
class _Curves:
    """One objective of all trials at the rungs, as z, with its population."""

    scale: Scale
    z: Array
    slopes: Array
    population: Population


class Messages:
    """Draws messages. It keeps nothing between calls.

    Args:
        objectives: Of the study.
        rungs: Epochs at which trials are looked at, ascending; the last one is the last epoch.
        statics: Objectives that do not change while a trial trains.
    """

    def __init__(self, objectives: Sequence[Objective], rungs: Sequence[int], statics: Collection[str]) -> None:
        constant = CUMULATIVE_METRICS | frozenset(statics)
        self._learned = [j for j, objective in enumerate(objectives) if objective.metric not in constant]
        self._rungs = tuple(rungs)
        self._logs = np.log(np.asarray(self._rungs, dtype=float))

    def drawn(self, trials: Sequence[Snapshot], cut_short: Collection[int], seed: int) -> dict[int, Message]:
        """One draw for each trial that was cut short.

        Args:
            trials: All that were started.
            cut_short: Numbers of those that wait or were stopped.
            seed: Of this draw.

        Returns:
            By number. Empty as long as too little is known of how trials go on.
        """
        rng = np.random.default_rng(seed)

        def draw(mean: Array, variance: Array, mean0: float, variance0: float) -> Array:
            value, noise = message(mean, variance, mean0, variance0)
            return value + np.sqrt(noise) * rng.standard_normal(len(value))

        return self._told(trials, cut_short, draw)

    def ends(self, trials: Sequence[Snapshot], cut_short: Collection[int]) -> dict[int, Message]:
        """What the curve of each trial that was cut short lets expect of its end: the forecast, and no message.

        For whoever has a place for a forecast that leans towards the mean, and would miss the trials that say little:
        those are mostly the poor ones. Arguments and result as of `drawn`.
        """
        return self._told(trials, cut_short, lambda mean, *_: mean)

    def _told(self, trials: Sequence[Snapshot], cut_short: Collection[int], value_of: ValueOf) -> dict[int, Message]:
        wanted = [i for i, trial in enumerate(trials) if trial.number in cut_short]
        curves = {j: self._curves(trials, j) for j in self._learned}
        if not wanted or not curves or any(one is None for one in curves.values()):
            return {}
        values = {j: self._values(one, wanted, value_of) for j, one in curves.items() if one is not None}
        return {
            trials[i].number: None
            if any(math.isnan(column[at]) for column in values.values())
            else {j: float(column[at]) for j, column in values.items()}
            for at, i in enumerate(wanted)
        }

    def _curves(self, trials: Sequence[Snapshot], j: int) -> _Curves | None:
        """None if fewer than `ENOUGH` steps from a rung to the next were seen."""
        values = np.array([_at_rungs(trial, j, self._rungs) for trial in trials]).reshape(-1, len(self._rungs))
        if (~np.isnan(values[:, 1:])).sum() < ENOUGH:
            return None
        scale = Scale.of(values[np.isfinite(values)], None)
        z = np.where(np.isnan(values), np.nan, scale.to_z(values))
        slopes = np.full_like(z, np.nan)
        slopes[:, 1:] = np.diff(z, axis=1) / np.diff(self._logs)
        slopes[:, 0] = self._first_slopes(trials, j, z[:, 0], scale)
        return _Curves(scale, z, slopes, Population(self._rungs, z, slopes))

    def _first_slopes(self, trials: Sequence[Snapshot], j: int, z: Array, scale: Scale) -> Array:
        first = self._rungs[0]
        before = np.array([trial.at[first - 1][j] if first - 1 in trial.at else math.nan for trial in trials])
        if first < 2:
            return np.where(np.isnan(z), np.nan, 0.0)
        rate = (z - scale.to_z(before)) / math.log(first / (first - 1))
        return np.where(np.isnan(z), np.nan, np.where(np.isnan(before), 0.0, rate))

    def _values(self, curves: _Curves, wanted: Sequence[int], value_of: ValueOf) -> Array:
        """One value each in the objective's own units [m]; NaN of a trial that has nothing to say."""
        z, slopes = curves.z[wanted], curves.slopes[wanted]
        reached = (~np.isnan(z)).sum(axis=1) - 1
        untried = curves.population.untried()
        found = np.full(len(wanted), np.nan)
        for rung in range(len(self._rungs) - 1):
            here = np.flatnonzero(reached == rung)
            if len(here):
                found[here] = value_of(*curves.population.started(rung, z[here, rung], slopes[here, rung]), *untried)
        seen = curves.z[~np.isnan(curves.z)]
        return _in_own_units(curves.scale, np.clip(found, seen.min(), seen.max()))


def message(mean: Array, variance: Array, mean0: float, variance0: float) -> tuple[Array, Array]:
    """What a forecast says beyond another one: value and variance of its noise; NaN where that is too little.

    Args:
        mean: Of the forecast with measurements [m],
        variance: and its variance [m].
        mean0: Of the one without,
        variance0: and its variance.
    """
    precision = 1.0 / variance - 1.0 / variance0
    precision = np.where(precision < LEAST_PRECISION / variance0, np.nan, precision)
    return (mean / variance - mean0 / variance0) / precision, 1.0 / precision


def _in_own_units(scale: Scale, z: Array) -> Array:
    value: Array = np.exp(z) if scale.kind == "lognormal" else scale.centre + scale.width * z
    return value


def _at_rungs(trial: Snapshot, j: int, rungs: Sequence[int]) -> list[float]:
    """NaN where the trial has not been; infinite where it failed on the way there."""
    found = [trial.at[rung][j] if rung in trial.at else math.nan for rung in rungs]
    if trial.state == "failed":
        reached = sum(not math.isnan(value) for value in found)
        if reached < len(found):
            found[reached] = math.inf
    return found
