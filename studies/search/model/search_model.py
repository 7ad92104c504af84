"""One model for the whole search: what untried, paused and running configurations will reach, and what that will cost.

It holds a chain per learned objective, a regression for prices before the first epoch, and the archive, and gives each
configuration its index (`acquisition.break_even_index`), in hypervolume per dollar: the larger, the better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from search_spaces.space import Space
from studies import pareto
from studies.constraints import columns
from studies.records import CUMULATIVE_METRICS, STATIC_METRICS, Constraint, Objective
from studies.search.acquisition.archive_tracker import ArchiveTracker
from studies.search.acquisition.break_even_index import break_even, hermite_nodes
from studies.search.acquisition.candidate_batch import CandidateBatch, CandidateFeatures
from studies.search.acquisition.feasibility import Feasibility
from studies.search.acquisition.hypervolume_improvement import (
    BoxDecomposition,
    Directions,
    Marginal,
    expected_below,
    improvement,
)
from studies.search.acquisition.stagnation import Stagnation
from studies.search.model.cokriging import CandidateInputs, Chain, Crossings, Fits, Forecast, Scale, decision_rungs
from studies.search.model.cost_model import CostModel
from studies.search.model.encoding import Encoder
from studies.search.model.failure_model import FailureModel
from studies.search.model.gaussian_process import Array
from studies.search.model.size_model import SizeModel, nothing_counted
from studies.search.model.transfer import Transfer, TransferMean
from studies.search.model.trial_table import Known, Rows, TrialTable, hint
from studies.search.observations import Snapshot, Values
from trainers.protocol import ParameterValue

START_EPOCHS = 0.3
"""What a start or a thaw costs, in epochs, until it was measured."""
CAUTION = 0.7
"""Deviations of its logarithm by which an unknown price is taken too high."""
EXAMPLES = 256
STARTERS = 4
"""Trials that are drawn at random; as many wait at the first rung until they can be compared."""
LIKELY = 0.5
"""Probability of feasibility from which a running trial is believed to reach the archive."""
VANISHING = 1e-12
"""An index below this is none."""
DOUBT = 4.0
"""Factor of the variance of forecasts that are doubted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What is searched.

    Attributes:
        epochs: Of a full training.
        milestones: Epochs whose model is a deliverable.
        reference: Of the hypervolume, turned to be minimised; None works one out from what was seen.
        known: What can be told of a configuration without training it, by metric.
        statics: Objectives that do not change while a trial trains.
        constraints: What a milestone has to keep to count.
        examples: Configurations drawn at random, which show how far prices and sizes reach; some of the space if empty.
        transfer: Earlier studies.
        counted: Gives what was counted of models without training them, None as long as that is not known.
        budget_usd: What the study may spend in all, as far as that is limited.
        slots: Of the pool that spends it.
    """

    space: Space
    objectives: tuple[Objective, ...]
    epochs: int
    milestones: tuple[int, ...]
    usd_per_slot_hour: float
    reference: Values | None = None
    known: Known | None = None
    statics: frozenset[str] = STATIC_METRICS
    constraints: tuple[Constraint, ...] = ()
    examples: Sequence[Mapping[str, ParameterValue]] = ()
    transfer: Transfer | None = None
    counted: Callable[[], SizeModel | None] = nothing_counted
    budget_usd: float = math.inf
    slots: int = 1

    def rungs(self) -> tuple[int, ...]:
        """Epochs between which forecasts go, ascending, with the last."""
        return decision_rungs(self.epochs)


@dataclass(kw_only=True, slots=True)
class _Shared:
    """What twins have in common: whatever one of them has learned or fitted serves the other as well.

    Attributes:
        fits: Hyperparameters of the curves' processes, by learned column.
        failures: Those of the process that learns where trials fail.
        costs: What is learned of prices and sizes; replaced as a whole when models were counted.
        reached: How far prices and sizes reach, and what that was worked out from.
    """

    fits: dict[int, Fits]
    failures: Fits
    costs: CostModel
    reached: tuple[object, Array]


class SearchModel:
    """Learns from all trials, and prices configurations. For one thread; a twin serves another.

    Args:
        problem: What is searched.
        shared: Of a twin.

    Attributes:
        table: What was seen of the trials.
        archive: Their non-dominated milestones [n, objectives].
        reference: From which improvements are measured [objectives].
    """

    def __init__(self, problem: Problem, shared: _Shared | None = None) -> None:
        self.problem = problem
        self.encoder = Encoder(problem.space)
        self.rungs = problem.rungs()
        # Bounded metrics that are no objectives are forecast like these, in the columns behind them.
        self._columns = columns(problem.objectives, problem.constraints)
        self._feasibility = Feasibility(self._columns, problem.constraints)
        names, objectives = [column.metric for column in self._columns], len(problem.objectives)
        self._cumulative = [j for j, name in enumerate(names) if name in CUMULATIVE_METRICS]
        self._static = [j for j, name in enumerate(names) if name in problem.statics]
        self._learned = [j for j in range(len(names)) if j not in (*self._cumulative, *self._static)]
        self._shared = shared or _Shared(
            fits={j: Fits() for j in self._learned},
            failures=Fits(),
            costs=CostModel(self._columns, self._static),
            reached=(None, np.zeros(0)),
        )
        self._chains = {
            j: Chain(
                self.rungs,
                self.encoder.width,
                self._shared.fits[j],
                # Of earlier studies the objectives alone are forecast.
                TransferMean(problem.transfer, j) if j < objectives else TransferMean(),
            )
            for j in self._learned
        }
        self._soundness = FailureModel(self._shared.failures)
        self._scales: dict[int, Scale] = {j: Scale("gaussian") for j in self._learned}
        self._nodes = hermite_nodes(sum(j < objectives for j in self._learned))
        self._directions = Directions(objectives) if objectives > 2 else None
        self._examples = self.describe(problem.examples or self._drawn())
        self._start_epochs = START_EPOCHS
        self._book = ArchiveTracker(
            problem.milestones,
            objectives=objectives,
            feasible=self._feasibility.holds,
        )
        self.table = TrialTable(
            self.encoder,
            self.rungs,
            len(names),
            problem.known,
            None if problem.transfer is None else problem.transfer.hints,
        )
        self.archive: Array = np.zeros((0, objectives))
        self._progress = Stagnation(epochs=problem.epochs, budget_usd=problem.budget_usd, slots=problem.slots)
        self.reference: Array = np.zeros(objectives)
        self._own_reference = self._provisional = self.reference

    def twin(self) -> SearchModel:
        """A model of the same problem for another thread: what either fits, both use."""
        return SearchModel(self.problem, self._shared)

    # ------------------------------------------------------------------ learning

    def learn(self, trials: Sequence[Snapshot], *, refit: bool) -> None:
        """Take in everything that is known.

        Args:
            trials: All that were started. A trial that is the same object as before has not changed.
            refit: Whether hyperparameters may be fitted anew, which takes a while.
        """
        changed, counted = self.table.update(trials), self.problem.counted()
        has_come = counted is not self._shared.costs.counted
        if not changed and not has_come and len(trials):
            self.reference = self._own_reference
            self._look_at(self.archive)
            return
        for trial in changed:
            self._book.add(trial)
        self.archive = self._book.archive
        costs = self._costs_with(counted) if has_come else self._shared.costs
        costs.learn(self.table, refit=refit)
        if has_come:
            self._shared.costs = costs
        self._learn_starts()
        given = self.problem.reference
        self._provisional = np.maximum(self._book.reference(), self._reach())
        self.reference = self._own_reference = self._provisional if given is None else np.asarray(given, dtype=float)
        self._learn_curves(refit=refit)
        self._look_at(self.archive)
        self._progress.look(self.hypervolume(), self.table)

    def _reach(self) -> Array:
        """How far prices and sizes of random configurations are expected to reach: a few trials do not show that.

        A reference point within that would hide large or dear configurations that nobody has tried from the search.
        """
        costs = self._shared.costs
        learned_from = (costs.counted, costs.seen, round(self._start_epochs, 2))
        known, far = self._shared.reached
        if known == learned_from:
            return far
        far = np.full(len(self._columns), -np.inf)
        some = self.untried(self._examples)
        for j in self._static:
            mean, _, kind = some.statics[j]
            far[j] = pareto.reference_coordinate((np.exp(mean) if kind == "lognormal" else mean).tolist())
        for j in self._cumulative if costs.seen[0] else ():
            mean, _, _ = self._marginal(j, some, {}, np.zeros((1, 0)))
            far[j] = pareto.reference_coordinate(np.exp(mean[:, 0, -1]).tolist())
        far = far[: len(self.problem.objectives)]
        self._shared.reached = (learned_from, far)
        return far

    def _costs_with(self, counted: SizeModel | None) -> CostModel:
        """Regressions that have learned nothing yet: what few trials told is too vague beside counted models."""
        examples = None if counted is None else self.describe([one.params for one in counted.examples])
        return CostModel(self._columns, self._static, counted, examples)

    def _drawn(self) -> list[dict[str, ParameterValue]]:
        rng = np.random.default_rng(0)
        return [self.encoder.decode(rng.random(self.encoder.parameters)) for _ in range(EXAMPLES)]

    def _learn_curves(self, *, refit: bool) -> None:
        table = self.table
        is_measured, failed = table.epochs >= self.rungs[0], table.are("failed")
        started = is_measured | failed
        x, believers = table.x[started], table.x[table.are("running") & ~is_measured]
        self._soundness.learn(x, failed[started].astype(float), refit=refit)
        for j, chain in self._chains.items():
            values, before = table.at_rungs(j)[started], table.before(j)[started]
            scale = self._scales[j] = Scale.of(
                values, self._far_end(j, values), is_worthless_beyond=j < len(self.reference)
            )
            z = np.where(np.isnan(values), np.nan, scale.to_z(values))
            slopes = np.full_like(z, np.nan)
            slopes[:, 1:] = np.diff(z, axis=1) / np.diff(chain.logs)
            slopes[:, 0] = self._first_slopes(z[:, 0], before, scale)
            chain.learn(Crossings(x=x, z=z, slopes=slopes, believers=believers), refit=refit)

    def _far_end(self, j: int, values: Array) -> float | None:
        """Where a learned column stops to matter: its bound, or the reference point if that is farther.

        As long as nothing dominates the reference point, it is the one from which improvements will be measured then.
        """
        bound = self._feasibility.far_end(j, values[np.isfinite(values)])
        if j >= len(self.reference):
            return bound
        is_reached = len(self.archive) and (self.archive < self.reference).all(axis=1).any()
        far = self.reference[j] if is_reached else max(self.reference[j], self._provisional[j])
        return float(far if bound is None else max(far, bound))

    def _first_slopes(self, z: Array, before: Array, scale: Scale) -> Array:
        """D at the first rung, from the epoch before it; 0 if there is none."""
        first = self.rungs[0]
        if first < 2:
            return np.where(np.isnan(z), np.nan, 0.0)
        length = math.log(first) - math.log(first - 1)
        rate = (z - scale.to_z(before)) / length
        return np.where(np.isnan(z), np.nan, np.where(np.isnan(before), 0.0, rate))

    def _learn_starts(self) -> None:
        table, paid = self.table, self.table.paid
        starts = (table.paid_usd[paid] / table.usd_per_epoch[paid] - table.epochs[paid]) / table.starts[paid]
        self._start_epochs = max(float(np.median(starts)), 0.0) if len(starts) >= 3 else START_EPOCHS

    def _look_at(self, archive: Array) -> None:
        """Measure improvements over this archive from now on."""
        self._seen_archive = archive
        if self._directions is not None:
            inside = archive[(archive < self.reference).all(axis=1)]
            self._unit = np.maximum(self.reference - archive.min(axis=0), 1e-12) if len(archive) else np.ones(
                len(self.reference)
            )  # fmt: skip
            self._heights = self._directions.heights(inside, self.reference, self._unit)
        elif len(self.reference) == 2:
            self._strips = BoxDecomposition.under(archive, self.reference)

    def expect_running(self, *, without: int | None = None) -> None:
        """Take what running trials are about to reach at their next rungs for part of the archive; the real one stays.

        So others are not judged by the same gain.

        Args:
            without: The number of a trial that stands at its rung and is judged itself.
        """
        table, points = self.table, list[Values]()
        running = table.are("running")
        if without is not None:
            running[table.row_of(without)] = False
        for place, rows in table.by_place(np.flatnonzero(running)):
            if place < 0:
                points += self.next_points(self.untried(self.describe([table.trials[row].params for row in rows])))
            elif place < len(self.rungs) - 1:
                points += self.next_points(self.started(rows, is_running=True))
        added = np.asarray(points, dtype=float).reshape(-1, len(self.reference))
        self._look_at(np.vstack([self.archive, added]))

    def next_points(self, some: CandidateBatch) -> list[Values]:
        """The median of what those of them that are likely to be feasible will have reached at their next rung."""
        forecasts = self.forecasts(some)
        medians = []
        for j in range(len(self.problem.objectives)):
            mean, _, kind = self._marginal(j, some, forecasts, np.zeros((1, 0)))
            medians.append(np.exp(mean[:, 0, 0]) if kind == "lognormal" else mean[:, 0, 0])
        likely = self._probability(some, forecasts, np.zeros((1, 0)))[:, 0, 0] >= LIKELY
        return [tuple(map(float, row)) for row in np.stack(np.broadcast_arrays(*medians), -1)[likely]]

    def widened(self, largest: float) -> bool:
        """Measure from a reference point that what was seen does reach, if the largest of all indices has vanished.

        That happens as long as nothing dominates the given reference point. Indices are to be worked out again then.
        """
        if largest > VANISHING:
            return False
        self.reference = np.maximum(self.reference, self._provisional)
        self._look_at(self._seen_archive)
        return True

    # ------------------------------------------------------------------ cohorts

    def describe(self, configurations: Sequence[Mapping[str, ParameterValue]]) -> CandidateFeatures:
        """What can be told of configurations without training them."""
        x = np.array([self.encoder.encode(params) for params in configurations])
        world_sizes = np.array([float(params.get("world_size") or 1) for params in configurations])
        return self._described(x, world_sizes, configurations)

    def describe_units(self, units: Array) -> CandidateFeatures:
        """The same of points of the unit cube [m, P], as `Encoder.decode` takes them."""
        x, world_sizes = self.encoder.encode_units(units), self.encoder.numbers_at(units, "world_size", default=1.0)
        return self._described(
            x, world_sizes, [self.encoder.decode(row) for row in units] if self.problem.known else ()
        )

    def _described(
        self, x: Array, world_sizes: Array, configurations: Sequence[Mapping[str, ParameterValue]]
    ) -> CandidateFeatures:
        known = [self.problem.known(params) for params in configurations] if self.problem.known else []
        sizes = {}
        for j in self._static if known else ():
            name = self._columns[j].metric
            if all(name in one for one in known):
                sizes[j] = np.array([self._columns[j].signed(one[name]) for one in known], dtype=float)
        hints = np.array([hint(one) for one in known]).reshape(len(x), -1) if known else np.zeros((len(x), 0))
        if self.problem.transfer is not None:
            hints = np.hstack([hints, self.problem.transfer.hints(x)])
        return CandidateFeatures(x=x, hints=hints, sizes=sizes, world_sizes=world_sizes)

    def untried(self, some: CandidateFeatures) -> CandidateBatch:
        """Configurations that nobody has started."""
        costs = self._shared.costs
        log_usd, sd = costs.log_usd_per_epoch(some)
        statics: dict[int, Marginal] = {}
        for j in self._static:
            statics[j] = (some.sizes[j], np.zeros(len(some.x)), "gaussian") if j in some.sizes else costs.size(j, some)
        return CandidateBatch(
            pool=CandidateInputs(some.x),
            rung=-1,
            log_usd=log_usd,
            log_usd_sd=sd,
            paid_usd=np.zeros(len(some.x)),
            start_epochs=np.full(len(some.x), self._start_epochs),
            done=0,
            seconds_per_usd=3600.0 / (self.problem.usd_per_slot_hour * some.world_sizes),
            statics=statics,
        )

    def started(self, rows: Rows, *, is_running: bool) -> CandidateBatch:
        """Trials that stand at the same rung.

        Args:
            rows: Of `table`; all have measurements at one rung, which is not the last.
            is_running: Whether they hold their slots, so that going on costs no start.
        """
        table, rung = self.table, int(self.table.places[rows[0]])
        stands = {}
        for j, chain in self._chains.items():
            scale = self._scales[j]
            z = scale.to_z(table.at_rungs(j)[rows])
            slope = (
                self._first_slopes(z[:, 0], table.before(j)[rows], scale)
                if rung == 0
                else (z[:, rung] - z[:, rung - 1]) / (chain.logs[rung] - chain.logs[rung - 1])
            )
            stands[j] = (z[:, rung], slope)
        usd, count = table.usd_per_epoch[rows], len(rows)
        return CandidateBatch(
            pool=CandidateInputs(table.x[rows]),
            rung=rung,
            log_usd=np.log(np.where(np.isnan(usd), 1e-12, usd)),
            log_usd_sd=np.zeros(count),
            paid_usd=table.paid_usd[rows],
            start_epochs=np.full(count, 0.0 if is_running else self._start_epochs),
            done=self.rungs[rung],
            seconds_per_usd=3600.0 / (self.problem.usd_per_slot_hour * table.world_sizes[rows]),
            statics={j: (table.at_rungs(j)[rows, rung], np.zeros(count), "gaussian") for j in self._static},
            stands=stands,
        )

    # ------------------------------------------------------------------ forecasts and prices

    def forecasts(self, some: CandidateBatch) -> dict[int, Forecast]:
        """Of every learned objective at the rungs to come."""
        if some.rung < 0:
            return {j: chain.forecast_untried(some.pool) for j, chain in self._chains.items()}
        return {j: chain.forecast_started(some.pool, some.rung, *some.stands[j]) for j, chain in self._chains.items()}

    def break_even_prices(self, some: CandidateBatch, *, with_nodes: bool) -> Array:
        """The index of each candidate [m], in hypervolume per dollar.

        Args:
            some: To be priced.
            with_nodes: Whether the worth of stopping again counts; without, the best single horizon does, which is
                quicker and nearly as good.
        """
        forecasts = self.forecasts(some)
        usd = np.exp(some.log_usd + CAUTION * some.log_usd_sd)
        ahead = np.asarray(self.rungs[some.rung + 1 :], dtype=float)
        first = usd * (some.start_epochs + ahead[0] - some.done)
        after = usd[:, None] * (ahead - ahead[0])
        if not with_nodes:
            gains = self._gain(some, forecasts, np.zeros((1, 0)))[:, 0]
            best: Array = (gains / (first[:, None] + after)).max(axis=1)
            return best
        nodes, weights = self._nodes
        return break_even(self._gain(some, forecasts, nodes), weights, first, after)

    def is_worthwhile(self, price: float) -> bool:
        """Whether as much money again as was spent would buy a noticeable part of the hypervolume at this price."""
        return self._progress.is_worthwhile(price, self.hypervolume())

    def is_doubtful(self, price: float) -> bool:
        """Whether forecasts at this price deserve doubt (`studies.search.acquisition.stagnation`)."""
        return self._progress.is_doubtful(price, self.hypervolume())

    def hypervolume(self) -> float:
        """Of the archive."""
        return pareto.hypervolume([tuple(p) for p in self.archive.tolist()], self.reference.tolist())

    def doubtful_prices(self, some: CandidateBatch) -> Array:
        """What full trainings may be worth if forecasts are less certain than they claim [m].

        EHVI at the last epoch per square root of a dollar: it asks for ends, which the index looks at last.
        """
        forecasts = {j: replace(one, variance=DOUBT * one.variance) for j, one in self.forecasts(some).items()}
        epochs = some.start_epochs + self.rungs[-1] - some.done
        usd = epochs * np.exp(some.log_usd + CAUTION * some.log_usd_sd)
        worth: Array = self._gain(some, forecasts, np.zeros((1, 0)))[:, 0, -1] / np.sqrt(usd)
        return worth

    def _gain(self, some: CandidateBatch, forecasts: dict[int, Forecast], nodes: Array) -> Array:
        """EHVI at each rung to come [m, J, H], given what the next rung tells at each node [J, up to 2].

        It is multiplied by the probability that the model comes to be and is feasible.
        """
        parts = [self._marginal(j, some, forecasts, nodes) for j in range(len(self.problem.objectives))]
        if self._directions is not None:
            gained = self._directions.improvement(self._heights, self.reference, self._unit, parts)
        elif len(parts) == 1:
            best = min([float(self.reference[0]), *self._seen_archive[:, 0].tolist()])
            gained = expected_below(np.asarray(best), *parts[0])
        else:
            gained = improvement(self._strips, parts[0], parts[1])
        horizons = len(self.rungs) - some.rung - 1
        is_sure = not self._feasibility.limits and (some.rung >= 0 or self._soundness.is_certain)
        weighed = gained if is_sure else gained * self._probability(some, forecasts, nodes)
        return np.broadcast_to(weighed, (len(some.log_usd), len(nodes), horizons))

    def _probability(self, some: CandidateBatch, forecasts: dict[int, Forecast], nodes: Array) -> Array:
        """That there is a model at each rung to come and it keeps the constraints [m, J, H], or axes of length 1."""
        found = self._feasibility.probability(lambda j: self._marginal(j, some, forecasts, nodes))
        if some.rung < 0:
            found = found * self._soundness.probability(some.pool)[:, None, None]
        return np.broadcast_to(found, np.broadcast_shapes(found.shape, (len(some.log_usd), 1, 1)))

    def _marginal(self, j: int, some: CandidateBatch, forecasts: dict[int, Forecast], nodes: Array) -> Marginal:
        """Distribution of an objective at each node and rung to come; axes along which it is constant have length 1."""
        ahead = np.asarray(self.rungs[some.rung + 1 :], dtype=float)
        if j in forecasts:
            forecast, place = forecasts[j], self._learned.index(j)
            mean, variance = forecast.mean[:, None, :], forecast.variance[:, None, :]
            if place < nodes.shape[1]:
                moved = (forecast.gain * np.sqrt(forecast.innovation)[:, None])[:, None, :]
                mean = mean + moved * nodes[:, place][None, :, None]
                variance = np.maximum(variance - moved**2, 1e-12)
            return self._scales[j].marginal(mean, variance)
        if j in some.statics:
            mean, sd, kind = some.statics[j]
            return mean[:, None, None], sd[:, None, None], kind
        epochs = some.start_epochs[:, None] + ahead - some.done
        unit = some.seconds_per_usd[:, None] if self._columns[j].metric == "wall_seconds" else 1.0
        if some.rung < 0:
            mean = some.log_usd[:, None] + np.log(epochs * unit)
            return mean[:, None, :], some.log_usd_sd[:, None, None], "lognormal"
        total = unit * (some.paid_usd[:, None] + np.exp(some.log_usd)[:, None] * epochs)
        return total[:, None, :], np.zeros((1, 1, 1)), "gaussian"
