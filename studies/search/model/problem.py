"""The problem that a search solves."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from search_spaces.space import Space
from studies.records.records import STATIC_METRICS, Constraint, Objective
from studies.search.arrays import Array
from studies.search.model.size_model import SizeModel, nothing_counted
from studies.search.model.transfer import Transfer
from studies.search.observations import UNLIMITED, TrialLimits, Values, decision_rungs
from trainers.protocol import ParameterValue

KnownMetrics = Callable[[Mapping[str, ParameterValue]], Mapping[str, float]]
"""Function from a configuration's parameters to its metrics known without training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A study's space, objectives, limits, prices and known metrics, for its search."""

    space: Space
    objectives: tuple[Objective, ...]
    epochs: int
    milestones: tuple[int, ...]
    usd_per_slot_hour: float
    reference: Values | None = None  # reference point, signed so that smaller is better; None takes measurements
    known: KnownMetrics | None = None  # returns metrics that are known without training
    positive: frozenset[str] = frozenset()  # metrics of `known` that are always above 0, so logarithms are covariates
    statics: frozenset[str] = STATIC_METRICS  # names of metrics that do not change while a trial trains
    constraints: tuple[Constraint, ...] = ()
    examples: Sequence[Mapping[str, ParameterValue]] = ()  # random, for the ranges of costs and sizes; drawn if empty
    transfer: Transfer | None = None
    counted: Callable[[], SizeModel | None] = nothing_counted  # sizes counted without training; None while unknown
    budget_usd: float = math.inf  # dollars that the whole study may spend; infinite without a limit
    slots: int = 1
    trial_limits: TrialLimits = UNLIMITED

    def covariates(self, params: Mapping[str, ParameterValue]) -> Array:
        """Return a configuration's known metrics [K], sorted by name; logarithms if positive."""
        known = {} if self.known is None else self.known(params)
        return np.array([math.log(value) if name in self.positive else value for name, value in sorted(known.items())])

    @property
    def knows_an_objective(self) -> bool:
        """Return whether an objective is known without training."""
        counted, static = self.counted(), [one.metric for one in self.objectives if one.metric in self.statics]
        is_counted = counted is not None and any(len(counted.values(one)) for one in static)
        return is_counted or (self.known is not None and bool(static))

    def seconds_per_usd(self, world_sizes: Array) -> Array:
        """Return the seconds that a dollar pays on each number of slots [m]."""
        return 3600.0 / (self.usd_per_slot_hour * world_sizes)

    def rungs(self) -> tuple[int, ...]:
        """Return the epochs of forecasts, ascending to the last epoch."""
        return decision_rungs(self.epochs)
