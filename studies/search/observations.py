"""Trials as the search sees them: `Snapshot` for pruners and models, `Observation` for samplers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from search_spaces.suggestions import Asked
from studies.search.arrays import Array
from trainers.protocol import ParameterValue

Values = tuple[float, ...]
"""Objectives in the spec's order, signed so that smaller is better."""
Columns = tuple[float, ...]
"""Objectives as in `Values`, then other bounded metrics (`studies.results.constraints.columns`)."""
Outcome = Literal["running", "finished", "infeasible", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A trial with its results so far, for pruners and models."""

    number: int
    params: Mapping[str, ParameterValue]
    state: Literal["running", "paused", "ended", "failed"]  # "ended": stopped or complete; "failed": would fail again
    epochs: int = 0  # number of recorded epochs
    at: Mapping[int, Columns] = field(default_factory=dict)  # at rungs, milestones, and the epoch before the first rung
    ends: Mapping[int, Columns] = field(default_factory=dict)  # `at`, cumulative metrics extrapolated to the last epoch
    usd_per_epoch: float | None = None
    paid_usd: float = 0.0  # start and train charges
    starts: int = 1
    world_size: int = 1
    last_model: int | None = None  # epoch of a complete training's last model, which may be before the planned end
    keeps_nothing: bool = False  # the user's code saves no state, so that a pause would train the epochs again

    def at_rung(self, rung: int) -> Columns | None:
        """Return the values at a decision epoch (rung); None if the trial has not reached it.

        A completed training keeps its last values, so that late rungs do not learn only from long trainings.
        """
        if rung not in self.at and self.last_model is not None and rung > self.last_model:
            return self.at[self.last_model]
        return self.at.get(rung)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """A trial with its results so far, for samplers.

    `outcome` is "running", "finished" with values, "infeasible" (out of memory, or the user's code raised), or
    "failed", from which the search learns nothing. `values` are the objectives in the spec's order, each in its own
    direction, with cumulative objectives extrapolated to the last epoch; not finite for a diverged trial. `excesses`
    are violations as fractions of the bound, at most 0 where it is kept; None before the first epoch.
    """

    trial_id: int  # identity of the trial; a history is sorted by it
    params: Mapping[str, ParameterValue]
    outcome: Outcome
    values: tuple[float, ...] | None = None  # None before any measurement
    attributes: Mapping[str, Any] = field(default_factory=dict)  # Optuna's system attributes after its suggestion
    snapshot: Snapshot | None = None  # `cokriging` learns only from this
    excesses: Mapping[str, float | None] = field(default_factory=dict)
    asked: Mapping[str, Asked] = field(default_factory=dict)


RUNG_RATIO = 2.2
"""Ratio of a rung to the previous rung."""
FIRST_RUNG = 2
"""Smallest rung before the first trials are known, unless the full training is shorter."""


def decision_rungs(epochs: int, *, least: int = FIRST_RUNG) -> tuple[int, ...]:
    """Return the epochs of forecasts, from `least` to the last epoch, growing by a constant ratio."""
    found, epoch = [epochs], float(epochs)
    while (epoch := epoch / RUNG_RATIO) >= least - 0.5 and round(epoch) < found[-1]:
        found.append(max(round(epoch), 1))
    return tuple(sorted(set(found)))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialLimits:
    """Limits of dollars and seconds for each trial."""

    usd: float = math.inf
    seconds: float = math.inf

    def most_usd(self, seconds_per_usd: Array) -> Array:
        """Return the dollars at which either limit ends trials, from their seconds per dollar [m]."""
        return np.minimum(self.usd, self.seconds / seconds_per_usd)


UNLIMITED = TrialLimits()
