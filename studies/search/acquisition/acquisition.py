"""The acquisition function: the expected hypervolume improvement per dollar of each candidate."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Protocol, TypeVar

import numpy as np
from scipy.special import ndtr

from studies.results import pareto
from studies.search.acquisition.hypervolume_improvement import Improvement, improvement_over
from studies.search.arrays import Array, Kind, Marginal
from studies.search.model.batch_forecast import NO_NODES, BatchForecast
from studies.search.model.candidate_batch import CandidateBatch
from studies.search.model.curve_model import ColumnLimit, ColumnLimits, CurveModel
from studies.search.model.money_progress import Progress
from studies.search.observations import Snapshot, TrialLimits, Values

NODES = 5
"""Number of quadrature nodes for each innovation."""
MOST_INNOVATIONS = 2
"""Largest number of learned objectives whose innovations get quadrature nodes."""
BISECTIONS = 28
"""Number of bisections that find the index: exact to 2^-28 of its upper bound."""


@cache
def hermite_nodes(learned: int) -> tuple[Array, Array]:
    """Return Gauss-Hermite nodes [J, up to `MOST_INNOVATIONS`] for normal variables, and weights [J] of sum 1."""
    points, weights = np.polynomial.hermite_e.hermegauss(NODES)
    count = min(learned, MOST_INNOVATIONS)
    grid = np.array(list(itertools.product(points, repeat=count))).reshape(NODES**count, count)
    products = [math.prod(one) for one in itertools.product(weights / weights.sum(), repeat=count)]
    return grid, np.array(products)


def break_even(gains: Array, weights: Array, to_next_rung: Array, beyond: Array) -> Array:
    """Return the break-even index [m], in gain per dollar, from gains [m, J, H] with weights [J].

    The index is the price of a dollar at which training breaks even, if it may stop after the next rung. `to_next_rung`
    [m] and `beyond` [m, H] are dollars.
    """
    low, high = np.zeros(len(gains)), gains.max(axis=(1, 2)) / to_next_rung
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        worth = np.maximum((gains - (middle[:, None] * beyond)[:, None, :]).max(axis=2), 0.0) @ weights
        pays = worth >= middle * to_next_rung
        low, high = np.where(pays, middle, low), np.where(pays, high, middle)
    index: Array = 0.5 * (low + high)
    return index


LEAST = 1e-9
"""Smallest probability, so that improvements rank configurations even if all are probably infeasible."""


def probability_of_feasibility(limits: ColumnLimits, marginal_of: Callable[[int], Marginal]) -> Array:
    """Return the probability that each candidate keeps all constraints, in the marginals' shape."""
    probability: Array = np.ones(1)
    for one in limits.each:
        probability = probability * _within(one, *marginal_of(one.column))
    return np.maximum(probability, LEAST) if limits.each else probability


def _within(limit: ColumnLimit, mean: Array, sd: Array, kind: Kind) -> Array:
    """Return P(low <= Y <= high)."""
    low, high = (_log(limit.low), _log(limit.high)) if kind == "lognormal" else (limit.low, limit.high)
    safe = np.maximum(sd, 1e-12)
    uncertain = ndtr((high - mean) / safe) - ndtr((low - mean) / safe)
    value = np.exp(mean) if kind == "lognormal" else mean
    return np.where(sd > 1e-9, uncertain, (limit.low <= value) & (value <= limit.high))


def _log(bound: float) -> float:
    return math.log(bound) if bound > 0 else -math.inf


WORTHWHILE = 0.02
"""Smallest relative growth of the hypervolume for which it is worth spending the same money again."""
GROWING_SHARE = 0.4
"""Smallest share of the spent money without progress that counts as stagnation."""
GROWING_TRIALS = 5.0
"""Smallest amount of money without progress that counts as stagnation, in typical full trainings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stagnation:
    """Decides whether a search still makes progress for its money."""

    progress: Progress
    budget_usd: float = math.inf
    slots: int = 1

    def is_worthwhile(self, index: float, volume: float) -> bool:
        """Return whether spending the same money again should raise the hypervolume by `WORTHWHILE`."""
        return index * self.progress.spent_usd >= WORTHWHILE * volume

    def is_stagnating(self, index: float, volume: float) -> bool:
        """Return whether the search makes too little progress; False without money for a full training."""
        return self._has_time() and (self._lacks_progress() or not self.is_worthwhile(index, volume))

    def _has_time(self) -> bool:
        full_slot_usd = self.progress.full_slot_usd
        return full_slot_usd is None or (self.budget_usd - self.progress.spent_usd) / self.slots >= full_slot_usd

    def _lacks_progress(self) -> bool:
        progress = self.progress
        if progress.grown_to == 0 or progress.full_usd is None:
            return False
        since_usd = progress.spent_usd - progress.grown_at_usd
        return since_usd >= max(GROWING_SHARE * progress.spent_usd, GROWING_TRIALS * progress.full_usd)


INITIAL_TRIALS = 4
"""Number of initial trials: drawn at random, they wait at the first rung until all can be compared."""
CAUTION = 0.7
"""Number of standard deviations that are added to the logarithm of an unknown cost per epoch."""
LIKELY = 0.5
"""Smallest probability of feasibility with which a running trial becomes a pending point."""
VANISHING = 1e-12
"""Largest index that is treated as zero."""
STAGNATION_INFLATION = 4.0
"""Factor for the variances of forecasts while the search stagnates."""


class Valued(Protocol):
    """Values of candidates."""

    @property
    def largest(self) -> float:
        """The largest value."""
        ...


SomeValued = TypeVar("SomeValued", bound=Valued)


@dataclass(frozen=True, slots=True)
class BatchValues:
    """Values of candidates [m], with the acquisition function that computed them."""

    acquisition: "Acquisition"
    values: Array

    @property
    def largest(self) -> float:
        """The largest value; 0 for an empty batch."""
        return float(self.values.max(initial=0.0))


@dataclass(frozen=True, kw_only=True)
class Acquisition:
    """Calculates the expected hypervolume improvement per dollar."""

    archive: Array
    pending: Array  # expected values of running trials at their next rungs [p, objectives], so no gain counts twice
    reference: Array
    reachable_reference: Array  # a point worse than the reference point and all measurements [objectives]
    limits: ColumnLimits
    learned: int
    stagnation: Stagnation
    trial_limits: TrialLimits  # rungs beyond them have no value

    @cached_property
    def hypervolume(self) -> float:
        """Hypervolume of the best models, without running trials."""
        return pareto.hypervolume([tuple(p) for p in self.archive.tolist()], self.reference.tolist())

    @cached_property
    def improvement(self) -> Improvement:
        """Expected improvement over the best models and the expected results of running trials."""
        return improvement_over(np.vstack([self.archive, self.pending]), self.reference)

    def where_it_tells(self, work_out: "Callable[[Acquisition], SomeValued]") -> SomeValued:
        """Return `work_out(self)`; if all its values are 0, the result for the reachable reference point."""
        found = work_out(self)
        if found.largest > VANISHING:
            return found
        return work_out(replace(self, reference=self.reachable_reference))

    def index(self, forecast: BatchForecast, *, exact: bool) -> Array:
        """Return the value of each candidate [m] in hypervolume per dollar: `break_even` if `exact`.

        The approximation, the largest ratio of improvement to dollars, ignores the option to stop early, is much faster
        and ranks candidates almost equally.
        """
        usd = _cautious_usd_per_epoch(forecast)
        to_next_rung, beyond = forecast.usd_to_next_rung(usd), forecast.usd_beyond_next_rung(usd)
        if not exact:
            gains = self._gains(forecast, NO_NODES)[:, 0]
            best: Array = (gains / (to_next_rung[:, None] + beyond)).max(axis=1)
            return best
        nodes, weights = hermite_nodes(self.learned)
        return break_even(self._gains(forecast, nodes), weights, to_next_rung, beyond)

    def full_training_value(self, forecast: BatchForecast) -> Array:
        """Return the value of fully training each candidate [m], for searches that stagnate.

        It is the expected improvement at the last allowed epoch, with larger variances, per square root of a dollar.
        """
        batch, last = forecast.batch, forecast.within(self.trial_limits).sum(axis=1) - 1
        usd = (batch.start_epochs + forecast.ahead[last] - batch.done) * _cautious_usd_per_epoch(forecast)
        gains = self._gains(forecast.inflated(STAGNATION_INFLATION), NO_NODES)
        worth: Array = gains[np.arange(len(batch)), 0, last] / np.sqrt(usd)
        return worth

    def is_worthwhile(self, index: float) -> bool:
        """See `Stagnation.is_worthwhile`."""
        return self.stagnation.is_worthwhile(index, self.hypervolume)

    def is_stagnating(self, index: float) -> bool:
        """Return whether the search makes too little progress; `index` is the largest index."""
        return self.stagnation.is_stagnating(index, self.hypervolume)

    def _gains(self, forecast: BatchForecast, nodes: Array) -> Array:
        """Return expected improvement times feasibility [m, J, H]; 0 beyond a trial's limits."""
        marginals = [forecast.marginal(j, nodes) for j in range(len(self.reference))]
        gained = self.improvement.expected(marginals)
        if self.limits.each or forecast.trains is not None:
            gained = gained * probability_of_a_feasible_model(forecast, self.limits, nodes)
        gained = np.broadcast_to(gained, (len(forecast.batch), len(nodes), len(forecast.ahead)))
        within = forecast.within(self.trial_limits)
        return gained if within.all() else gained * within[:, None, :]


def _cautious_usd_per_epoch(forecast: BatchForecast) -> Array:
    """Return dollars per epoch [m]; above the median if the cost is uncertain."""
    return np.exp(forecast.batch.log_usd + CAUTION * forecast.batch.log_usd_sd)


def probability_of_a_feasible_model(forecast: BatchForecast, limits: ColumnLimits, nodes: Array) -> Array:
    """Return the probability that a candidate trains without failing and is feasible [m, J, H]."""
    found = probability_of_feasibility(limits, lambda j: forecast.marginal(j, nodes))
    if forecast.trains is not None:
        found = found * forecast.trains[:, None, None]
    return np.broadcast_to(found, np.broadcast_shapes(found.shape, (len(forecast.batch), 1, 1)))


def build_acquisition(
    model: CurveModel, trials: Sequence[Snapshot], *, refit: bool, without: int | None = None
) -> Acquisition:
    """Return the acquisition function for all trials of a study, valid until the model learns again.

    `refit` also fits the model's hyperparameters, in tenths of a second. `without` is the number of a running trial
    that is not a pending point, because it is a candidate itself.
    """
    model.learn(trials, refit=refit)
    problem = model.problem
    return Acquisition(
        archive=model.archive,
        pending=_pending_points(model, without),
        reference=model.reference,
        reachable_reference=model.reachable_reference,
        limits=model.limits,
        learned=sum(j < len(model.reference) for j in model.learned),
        stagnation=Stagnation(progress=model.progress, budget_usd=problem.budget_usd, slots=problem.slots),
        trial_limits=problem.trial_limits,
    )


def _pending_points(model: CurveModel, without: int | None) -> Array:
    table, points = model.table, list[Values]()
    running = table.are("running")
    if without is not None:
        running[table.row_of(without)] = False
    for rung, rows in table.by_rung(np.flatnonzero(running)):
        if rung < 0:
            features = model.features([table.trials[row].params for row in rows])
            points += next_points(model, model.untried(features))
        elif rung < len(model.rungs) - 1:
            points += next_points(model, model.started(rows, is_running=True))
    return np.asarray(points, dtype=float).reshape(-1, len(model.reference))


def next_points(model: CurveModel, batch: CandidateBatch) -> list[Values]:
    """Return the objectives' medians at the next rung for probably feasible candidates."""
    forecast = model.forecast(batch)
    medians = []
    for j in range(len(model.reference)):
        mean, _, kind = forecast.marginal(j)
        medians.append(np.exp(mean[:, 0, 0]) if kind == "lognormal" else mean[:, 0, 0])
    probability = probability_of_a_feasible_model(forecast, model.limits, NO_NODES)[:, 0, 0]
    points = np.stack(np.broadcast_arrays(*medians), -1)[probability >= LIKELY]
    return [tuple(map(float, row)) for row in points]
