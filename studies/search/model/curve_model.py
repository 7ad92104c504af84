"""The search model: forecasts results and costs of new, paused and running configurations."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_

import numpy as np
from scipy.special import ndtr

from studies.records.records import Constraint, Objective
from studies.results import pareto
from studies.results.constraints import columns
from studies.search.arrays import Array, Marginal, Rows, centred_ranks, with_rare_ones
from studies.search.model.batch_forecast import BatchForecast
from studies.search.model.candidate_batch import CandidateBatch, CandidateFeatures, CandidateInputs, FeatureExtractor
from studies.search.model.cokriging import MOST_CONDITIONED, MOST_FITTED, Chain, CurveData, CurveForecast, slopes_of
from studies.search.model.cost_model import CostModel
from studies.search.model.encoding import Encoder
from studies.search.model.gaussian_process import Fits, Posterior, Prior, fit
from studies.search.model.money_progress import ArchiveTracker, Progress
from studies.search.model.problem import Problem
from studies.search.model.standardisation import Scale
from studies.search.model.transfer import TransferMean
from studies.search.model.trial_arrays import TrialTable
from studies.search.observations import Columns, Snapshot, decision_rungs
from trainers.protocol import CUMULATIVE_METRICS, ParameterValue

START_EPOCHS = 0.3
"""Assumed cost of a start or thaw, in epochs, until `ENOUGH_STARTS` trials have measured it."""
ENOUGH_STARTS = 3
"""Smallest number of trials that measure the cost of a start."""
EXAMPLES = 256
"""Number of random configurations for the ranges of costs and sizes."""


@dataclass(kw_only=True, slots=True)
class _Shared:
    """Fits that models of one problem share between threads."""

    fits: dict[int, Fits]
    failures: Fits
    costs: CostModel
    reach: tuple[object, Array]


class CurveModel:
    """Learns from all trials and forecasts candidates. Not thread-safe: other threads use `sharing_fits`.

    Columns are the objectives, then other metrics with constraints. Cumulative columns follow from dollars per epoch,
    static columns never change during a trial, and all other columns are learned. `reachable_reference` [objectives] is
    worse than the reference point and all measurements.
    """

    def __init__(self, problem: Problem, shared: _Shared | None = None) -> None:
        self.problem = problem
        self.encoder = Encoder(problem.space)
        self.all_rungs = decision_rungs(problem.epochs, least=1)
        self._columns = columns(problem.objectives, problem.constraints)
        self.limits = ColumnLimits(self._columns, problem.constraints)
        names, objectives = [column.metric for column in self._columns], len(problem.objectives)
        self._cumulative = [j for j, name in enumerate(names) if name in CUMULATIVE_METRICS]
        self._in_seconds = frozenset(j for j, name in enumerate(names) if name == "wall_seconds")
        self._static = [j for j, name in enumerate(names) if name in problem.statics]
        self.learned = [j for j in range(len(names)) if j not in (*self._cumulative, *self._static)]
        self._shared = shared or _Shared(
            fits={j: Fits() for j in self.learned},
            failures=Fits(),
            costs=CostModel(self._columns, self._static),
            reach=(None, np.zeros(0)),
        )
        self._first: Sequence[Snapshot] = ()  # trials of the latest test of epoch 1
        self._use(problem.rungs())
        self._scales: dict[int, Scale] = {j: Scale("gaussian") for j in self.learned}
        self._failures = FailureModel(self._shared.failures)
        self._features = FeatureExtractor(problem, self.encoder, self._columns, self._static)
        self._examples = self.features(problem.examples or self.encoder.random(np.random.default_rng(0), EXAMPLES))
        self._start_epochs = START_EPOCHS
        self.archive: Array = np.zeros((0, objectives))
        self.reference: Array = np.zeros(objectives)
        self.reachable_reference: Array = self.reference
        self.progress = Progress()

    def _use(self, rungs: tuple[int, ...]) -> None:
        """Forecast at these rungs from now on, and discard everything learned."""
        self.rungs = rungs
        self._chains = {j: self._chain(j) for j in self.learned}
        problem, transfer = self.problem, self.problem.transfer
        earlier = None if transfer is None else transfer.cost_covariates
        self.table = TrialTable(self.encoder, rungs, len(self._columns), problem.covariates, earlier)
        self.count_milestones(problem.milestones)

    def settle_rungs(self, trials: Sequence[Snapshot]) -> None:
        """Make epoch 1 a rung if it ranked the first trials like the first rung."""
        first = trials[:TELLING_TRIALS]
        if self.rungs == self.all_rungs or (len(first) == len(self._first) and all(map(is_, first, self._first))):
            return
        self._first = first
        objectives = [j for j in self.learned if j < len(self.problem.objectives)]
        if objectives and first_epoch_tells(first, self.rungs[0], objectives[0]):
            self._use(self.all_rungs)

    def _chain(self, j: int) -> Chain:
        # Earlier studies are informative about the objectives only.
        is_objective = j < len(self.problem.objectives)
        prior_mean = TransferMean(self.problem.transfer, j) if is_objective else TransferMean()
        return Chain(self.rungs, self.encoder.width, self._shared.fits[j], prior_mean)

    def count_milestones(self, milestones: tuple[int, ...]) -> None:
        """Set the epochs whose models count as results, before `learn` is called."""
        self.problem = replace(self.problem, milestones=milestones)
        self._milestones = ArchiveTracker(
            milestones, objectives=len(self.problem.objectives), feasible=self.limits.holds
        )

    def sharing_fits(self) -> "CurveModel":
        """Return a model for another thread, which shares fitted hyperparameters."""
        return CurveModel(self.problem, self._shared)

    def learn(self, trials: Sequence[Snapshot], *, refit: bool) -> None:
        """Learn from all started trials. `refit` allows fitting hyperparameters, in tenths of a second.

        A snapshot counts as unchanged if it is the same object as in the previous call.
        """
        self.settle_rungs(trials)
        changed, counted = self.table.update(trials), self.problem.counted()
        has_come = counted is not self._shared.costs.counted
        if not changed and not has_come and len(trials):
            return
        for trial in changed:
            self._milestones.add(trial)
        self.archive = self._milestones.archive
        costs = self._shared.costs
        if has_come:
            examples = None if counted is None else self.features([one.params for one in counted.examples])
            costs = CostModel(self._columns, self._static, counted, examples)
        costs.learn(self.table, refit=refit)
        if has_come:  # only now, since other threads predict with the shared model
            self._shared.costs = costs
        self._learn_starts()
        given, observed = self.problem.reference, np.maximum(self._milestones.reference(), self._reach())
        self.reference = observed if given is None else np.asarray(given, dtype=float)
        self.reachable_reference = np.maximum(self.reference, observed)
        self._learn_curves(refit=refit)
        volume = pareto.hypervolume([tuple(p) for p in self.archive.tolist()], self.reference.tolist())
        most_usd = self.problem.trial_limits.most_usd(self.problem.seconds_per_usd(self.table.world_sizes))
        self.progress = self.progress.after(volume, self.table, self.problem.epochs, most_usd)

    def _reach(self) -> Array:
        """Return the reference point for expected costs and sizes of random configurations [objectives]."""
        costs = self._shared.costs
        learned_from = (costs.counted, costs.counts, round(self._start_epochs, 2))
        known, reach = self._shared.reach
        if known == learned_from:
            return reach
        reach = np.full(len(self._columns), -np.inf)
        some = self._forecast(self.untried(self._examples), {})
        for j in self._static:
            mean, _, kind = some.batch.statics[j]
            reach[j] = pareto.reference_coordinate((np.exp(mean) if kind == "lognormal" else mean).tolist())
        for j in self._cumulative if costs.counts[0] else ():
            mean, _, _ = some.marginal(j)
            reach[j] = pareto.reference_coordinate(np.exp(mean[:, 0, -1]).tolist())
        reach = reach[: len(self.problem.objectives)]
        self._shared.reach = (learned_from, reach)
        return reach

    def _learn_starts(self) -> None:
        table, paid = self.table, self.table.rows_with_cost
        starts = (table.paid_usd[paid] / table.usd_per_epoch[paid] - table.epochs[paid]) / table.starts[paid]
        self._start_epochs = max(float(np.median(starts)), 0.0) if len(starts) >= ENOUGH_STARTS else START_EPOCHS

    def _learn_curves(self, *, refit: bool) -> None:
        table = self.table
        is_measured, failed = table.epochs >= self.rungs[0], table.are("failed")
        has_outcome = is_measured | failed
        x, pending = table.x[has_outcome], table.x[table.are("running") & ~is_measured]
        self._failures.learn(x, failed[has_outcome].astype(float), refit=refit)
        for j, chain in self._chains.items():
            values, before = table.at_rungs(j)[has_outcome], table.before(j)[has_outcome]
            scale = self._scales[j] = Scale.of(
                values, self._far_end(j, values), is_worthless_beyond=j < len(self.reference)
            )
            z = np.where(np.isnan(values), np.nan, scale.to_z(values))
            slopes = slopes_of(z, scale.to_z(before), self.rungs)
            chain.learn(CurveData(x=x, z=z, slopes=slopes, pending=pending), refit=refit)

    def _far_end(self, j: int, values: Array) -> float | None:
        """Return the value beyond which column `j` does not matter: its bound, or the reference if larger."""
        bound = self.limits.far_end(j, values[np.isfinite(values)])
        if j >= len(self.reference):
            return bound
        is_reached = len(self.archive) and (self.archive < self.reference).all(axis=1).any()
        far = self.reference[j] if is_reached else self.reachable_reference[j]
        return float(far if bound is None else max(far, bound))

    def features(self, configurations: Sequence[Mapping[str, ParameterValue]]) -> CandidateFeatures:
        """Return the features of configurations."""
        return self._features.of(configurations)

    def features_at(self, units: Array) -> CandidateFeatures:
        """Return the features of configurations at points of the unit cube [m, P]."""
        return self._features.at(units)

    def untried(self, some: CandidateFeatures) -> CandidateBatch:
        """Return a batch of configurations that were not started."""
        costs = self._shared.costs
        log_usd, sd = costs.log_usd_per_epoch(some)
        statics: dict[int, Marginal] = {}
        for j in self._static:
            statics[j] = (some.sizes[j], np.zeros(len(some.x)), "gaussian") if j in some.sizes else costs.size(j, some)
        return CandidateBatch(
            inputs=CandidateInputs(some.x),
            rung_index=-1,
            log_usd=log_usd,
            log_usd_sd=sd,
            paid_usd=np.zeros(len(some.x)),
            start_epochs=np.full(len(some.x), self._start_epochs),
            done=0,
            seconds_per_usd=self.problem.seconds_per_usd(some.world_sizes),
            statics=statics,
        )

    def started(self, rows: Rows, *, is_running: bool) -> CandidateBatch:
        """Return a batch of trials at one rung; running trials pay for no start."""
        table, rung = self.table, int(self.table.last_rungs[rows[0]])
        curves = {}
        for j in self._chains:
            scale = self._scales[j]
            z = scale.to_z(table.at_rungs(j)[rows])
            slopes = slopes_of(z, scale.to_z(table.before(j)[rows]), self.rungs)
            curves[j] = (z[:, rung], slopes[:, rung])
        count = len(rows)
        usd = np.where(np.isnan(table.usd_per_epoch[rows]), 1e-12, table.usd_per_epoch[rows])
        return CandidateBatch(
            inputs=CandidateInputs(table.x[rows]),
            rung_index=rung,
            log_usd=np.log(usd),
            log_usd_sd=np.zeros(count),
            paid_usd=table.paid_usd[rows] - usd * (table.epochs[rows] - self.rungs[rung]),
            start_epochs=np.full(count, 0.0 if is_running else self._start_epochs),
            done=self.rungs[rung],
            seconds_per_usd=self.problem.seconds_per_usd(table.world_sizes[rows]),
            statics={j: (table.at_rungs(j)[rows, rung], np.zeros(count), "gaussian") for j in self._static},
            curves=curves,
        )

    def forecast(self, batch: CandidateBatch) -> BatchForecast:
        """Return the forecast of the candidates at the later rungs."""
        if batch.rung_index < 0:
            curves = {j: chain.forecast_untried(batch.inputs) for j, chain in self._chains.items()}
            trains = None if self._failures.is_certain else self._failures.probability_of_training(batch.inputs)
            return self._forecast(batch, curves, trains)
        started = {
            j: chain.forecast_started(batch.inputs, batch.rung_index, *batch.curves[j])
            for j, chain in self._chains.items()
        }
        return self._forecast(batch, started)

    def _forecast(
        self, batch: CandidateBatch, curves: Mapping[int, CurveForecast], trains: Array | None = None
    ) -> BatchForecast:
        return BatchForecast(
            batch=batch,
            ahead=np.asarray(self.rungs[batch.rung_index + 1 :], dtype=float),
            curves=curves,
            scales=dict(self._scales),
            in_seconds=self._in_seconds,
            trains=trains,
        )


PROCESS = -3
"""Key of this process, which no chain uses."""
PRIOR = Prior(length_scale=1.0, length_scale_sd=0.8, amplitude=0.2, amplitude_sd=0.8, noise=0.02, noise_sd=1.0)
LEAST = 1e-6
"""Smallest probability: no configuration is ruled out."""
GROWN = 6
"""Smallest number of new trials after which hyperparameters are fitted again."""


class FailureModel:
    """Learns where trials fail. Models in different threads may share `fits`."""

    def __init__(self, fits: Fits) -> None:
        self._fits = fits
        self._share = 0.0
        self._posterior: Posterior | None = None
        self._learned_from = b""

    @property
    def is_certain(self) -> bool:
        """Return whether no trial has failed, so that every configuration should train."""
        return self._posterior is None

    def learn(self, x: Array, failed: Array, *, refit: bool) -> None:
        """Learn from trials at points x [n, D] that failed (1) or reached the first rung (0) [n]."""
        if not failed.any():
            self._posterior = None
            return
        self._share = float(failed.mean())
        own, fitted_on = self._fits.by_process.get(PROCESS, (None, 0))
        features = np.ones((len(x), 1))
        if own is None or (refit and len(x) - fitted_on >= max(GROWN, fitted_on // 4)):
            rows = with_rare_ones(failed, MOST_FITTED)
            own = fit(x[rows], features[rows], failed[rows] - self._share, PRIOR, own)
            self._fits.by_process[PROCESS] = (own, len(x))
        learned_from = x.tobytes() + failed.tobytes()
        if self._posterior is None or self._posterior.own is not own or learned_from != self._learned_from:
            rows = with_rare_ones(failed, MOST_CONDITIONED)
            self._posterior = Posterior(x[rows], features[rows], failed[rows] - self._share, own)
            self._learned_from = learned_from

    def probability_of_training(self, candidates: CandidateInputs) -> Array:
        """Return the probability that each candidate does not fail [m]."""
        if self._posterior is None:
            return np.ones(len(candidates.x))
        mean, variance = candidates.at(PROCESS, self._posterior).predict(np.ones((len(candidates.x), 1)))
        probability: Array = ndtr((0.5 - self._share - mean) / np.sqrt(variance))
        return np.maximum(probability, LEAST)


TELLING_TRIALS, TELLING_CORRELATION = 6, 0.7
"""Number of trials that decide whether epoch 1 becomes a rung, and the smallest rank correlation for it."""


def first_epoch_tells(trials: Sequence[Snapshot], rung: int, column: int) -> bool:
    """Return whether a metric ranks the first trials alike at epoch 1 and at the rung.

    False until all of them have reached the rung or ended. The answer stays the same afterwards.
    """
    first = trials[:TELLING_TRIALS]
    at = [(trial.at.get(1), trial.at_rung(rung)) for trial in first]
    if any(late is None and one.state in {"running", "paused"} for one, (_, late) in zip(first, at, strict=True)):
        return False
    pairs = [(early[column], late[column]) for early, late in at if early is not None and late is not None]
    if len(first) < TELLING_TRIALS or len(pairs) < TELLING_TRIALS - 1:
        return False
    early, late = (centred_ranks(np.nan_to_num(values, nan=math.inf)) for values in np.array(pairs).T)
    if not (early.std() and late.std()):
        return False
    return float(np.corrcoef(early, late)[0, 1]) >= TELLING_CORRELATION


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnLimit:
    """Bounds of one column of `Snapshot.at`, signed like it; infinite without a bound."""

    column: int
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Return whether the value keeps both bounds."""
        return self.low <= value <= self.high


class ColumnLimits:
    """All constraints of a study."""

    def __init__(self, columns: Sequence[Objective], constraints: Iterable[Constraint]) -> None:
        index = {column.metric: j for j, column in enumerate(columns)}
        self.each = tuple(_limit(index[one.metric], columns[index[one.metric]], one) for one in constraints)

    def holds(self, values: Columns) -> bool:
        """Return whether measured values keep all constraints."""
        return all(one.holds(values[one.column]) for one in self.each)

    def far_end(self, column: int, seen: Array) -> float | None:
        """Return the column's upper bound, or the median of its measured values if larger; None without a bound."""
        high = next((one.high for one in self.each if one.column == column), math.inf)
        if not math.isfinite(high):
            return None
        return max(high, float(np.median(seen))) if len(seen) else high


def _limit(column: int, of: Objective, constraint: Constraint) -> ColumnLimit:
    low = -math.inf if constraint.min is None else constraint.min
    high = math.inf if constraint.max is None else constraint.max
    if of.direction == "maximize":
        low, high = -high, -low
    return ColumnLimit(column=column, low=low, high=high)
