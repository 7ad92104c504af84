"""One model for the whole search: what untried, paused and running configurations will reach, and what that will cost.

It holds a chain per learned objective, a regression for prices before the first epoch, and the archive, and gives each
configuration its break-even price: the price of a dollar, in hypervolume, at which going on with it, stopping again
where that pays, just breaks even. The larger, the better.

    sum_j w_j max_{h >= r+1} (EHVI_h(node j) - lambda C_h)_+ = lambda Delta      solved for lambda

with Delta the dollars to the next rung, C_h those from there to rung h, and j the Gauss-Hermite nodes of what the next
rung will tell: an index after Gittins, as in Xie et al. 2024 (arXiv 2406.20062).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from search_spaces.space import Space
from studies import pareto
from studies.records import CUMULATIVE_METRICS, Objective
from studies.search.cokriging import Chain, Crossings, Fits, Forecast, Pool, Scale, decision_rungs
from studies.search.earlier import Level, Transfer
from studies.search.encoding import Encoder
from studies.search.gaussian_process import Array
from studies.search.improvement import Directions, Kind, Strips, expected_below, improvement
from studies.search.milestone_book import MilestoneBook
from studies.search.regression import LogRegression
from studies.search.seen import Seen, Values
from trainers.protocol import ParameterValue

STATIC_METRICS = frozenset({"model_parameters", "latency_ms", "peak_memory_bytes"})
START_EPOCHS = 0.3
"""What a start or a thaw costs, in epochs, until it was measured."""
CAUTION = 0.7
"""Deviations of its logarithm by which an unknown price is taken too high."""
NODES = 5
EXAMPLES = 256
BISECTIONS = 28
Known = Callable[[Mapping[str, ParameterValue]], Mapping[str, float]]
Marginal = tuple[Array, Array, Kind]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What is searched.

    Attributes:
        epochs: Of a full training.
        milestones: Epochs whose model is a deliverable.
        reference: Of the hypervolume, turned to be minimised; None works one out from what was seen.
        known: What can be told of a configuration without training it, by metric.
        statics: Objectives that do not change while a trial trains.
        examples: Configurations drawn at random, which show how far prices and sizes reach; some of the space if empty.
        transfer: Earlier studies.
    """

    space: Space
    objectives: tuple[Objective, ...]
    epochs: int
    milestones: tuple[int, ...]
    usd_per_slot_hour: float
    reference: Values | None = None
    known: Known | None = None
    statics: frozenset[str] = STATIC_METRICS
    examples: Sequence[Mapping[str, ParameterValue]] = ()
    transfer: Transfer | None = None

    def rungs(self) -> tuple[int, ...]:
        """Epochs between which forecasts go, ascending, with the last."""
        return decision_rungs(self.epochs)


@dataclass(frozen=True, slots=True)
class Described:
    """What can be told of configurations without training them.

    Attributes:
        x: Their points [m, D].
        hints: Logarithms of what is known, for regressions [m, K].
        sizes: By objective, its value where it is known [m].
        world_sizes: Ranks [m].
    """

    x: Array
    hints: Array
    sizes: Mapping[int, Array]
    world_sizes: Array

    def rows(self, chosen: NDArray[np.intp]) -> Described:
        """Some of them."""
        sizes = {j: values[chosen] for j, values in self.sizes.items()}
        return Described(self.x[chosen], self.hints[chosen], sizes, self.world_sizes[chosen])


@dataclass(frozen=True, slots=True)
class Candidates:
    """Configurations that stand at the same rung, or that nobody has tried.

    Attributes:
        pool: Their points.
        rung: Index of the rung where they stand; -1 before the first.
        log_usd: Mean of the logarithm of dollars per epoch [m],
        log_usd_sd: and its deviation, 0 once it was measured [m].
        paid_usd: Dollars so far [m].
        start_epochs: What it costs to go on, in epochs [m].
        done: Epochs so far.
        seconds_per_usd: Of wall time [m].
        statics: By objective, mean, deviation and kind [m] each.
        stands: By learned objective, z and slope at the rung [m] each.
    """

    pool: Pool
    rung: int
    log_usd: Array
    log_usd_sd: Array
    paid_usd: Array
    start_epochs: Array
    done: int
    seconds_per_usd: Array
    statics: Mapping[int, Marginal]
    stands: Mapping[int, tuple[Array, Array]] = field(default_factory=dict)

    def rows(self, chosen: NDArray[np.intp]) -> Candidates:
        """Some of them."""
        return Candidates(
            pool=Pool(self.pool.x[chosen]),
            rung=self.rung,
            log_usd=self.log_usd[chosen],
            log_usd_sd=self.log_usd_sd[chosen],
            paid_usd=self.paid_usd[chosen],
            start_epochs=self.start_epochs[chosen],
            done=self.done,
            seconds_per_usd=self.seconds_per_usd[chosen],
            statics={j: (mean[chosen], sd[chosen], kind) for j, (mean, sd, kind) in self.statics.items()},
            stands={j: (z[chosen], d[chosen]) for j, (z, d) in self.stands.items()},
        )


class SearchModel:
    """Learns from all trials, and prices configurations. For one thread; a twin serves another.

    Args:
        problem: What is searched.
        fits: Hyperparameters of the curves' processes, to be shared with a twin.
    """

    def __init__(self, problem: Problem, fits: dict[int, Fits] | None = None) -> None:
        self.problem = problem
        self.encoder = Encoder(problem.space)
        self.rungs = problem.rungs()
        names = [objective.metric for objective in problem.objectives]
        self._cumulative = [j for j, name in enumerate(names) if name in CUMULATIVE_METRICS]
        self._static = [j for j, name in enumerate(names) if name in problem.statics]
        self._learned = [j for j in range(len(names)) if j not in (*self._cumulative, *self._static)]
        self._fits = {j: Fits() for j in self._learned} if fits is None else fits
        self._chains = {
            j: Chain(self.rungs, self.encoder.width, self._fits[j], Level(problem.transfer, j)) for j in self._learned
        }
        self._scales: dict[int, Scale] = {j: Scale("gaussian") for j in self._learned}
        self._prices = LogRegression()
        self._sizes = {j: LogRegression() for j in self._static}
        self._nodes = _grid(len(self._learned))
        self._directions = Directions(len(names)) if len(names) > 2 else None
        self._examples = self.describe(problem.examples or self._drawn())
        self._points: dict[int, Array] = {}
        self._hints: dict[int, Array] = {}
        self._start_epochs = START_EPOCHS
        self._book = MilestoneBook(
            problem.milestones, epochs=problem.epochs, objectives=len(names), cumulative=self._cumulative
        )
        self._rows: dict[tuple[int, int], tuple[Seen, list[float], float]] = {}
        self.trials: Sequence[Seen] = ()
        self.archive: Array = np.zeros((0, len(names)))
        self.reference: Array = np.zeros(len(names))
        self._own_reference = self._provisional = self.reference

    def twin(self) -> SearchModel:
        """A model of the same problem for another thread: what either fits, both use."""
        return SearchModel(self.problem, self._fits)

    # ------------------------------------------------------------------ learning

    def learn(self, trials: Sequence[Seen], *, refit: bool) -> None:
        """Take in everything that is known.

        Args:
            trials: All that were started. A trial that is the same object as before has not changed.
            refit: Whether hyperparameters may be fitted anew, which takes a while.
        """
        if len(trials) == len(self.trials) > 0 and all(a is b for a, b in zip(trials, self.trials, strict=True)):
            self.reference = self._own_reference
            self._look_at(self.archive)
            return
        self.trials = list(trials)
        for trial in trials:
            self._book.add(trial)
        self.archive = self._book.archive
        self._learn_prices(trials, refit=refit)
        self._learn_sizes(trials, refit=refit)
        given = self.problem.reference
        self._provisional = np.maximum(self._book.reference(), self._reach())
        self.reference = self._own_reference = self._provisional if given is None else np.asarray(given, dtype=float)
        self._learn_curves(trials, refit=refit)
        self._look_at(self.archive)

    def _reach(self) -> Array:
        """How far prices and sizes of random configurations are expected to reach: a few trials do not show that.

        A reference point within that would hide large or dear configurations that nobody has tried from the search.
        """
        far = np.full(len(self.problem.objectives), -np.inf)
        some = self.untried(self._examples)
        for j in self._static:
            mean, _, kind = some.statics[j]
            far[j] = pareto.reference_coordinate((np.exp(mean) if kind == "lognormal" else mean).tolist())
        for j in self._cumulative if any(trial.usd_per_epoch for trial in self.trials) else ():
            mean, _, _ = self._marginal(j, some, {}, np.zeros((1, 0)))
            far[j] = pareto.reference_coordinate(np.exp(mean[:, 0, -1]).tolist())
        return far

    def _drawn(self) -> list[dict[str, ParameterValue]]:
        rng = np.random.default_rng(0)
        return [self.encoder.decode(rng.random(self.encoder.parameters)) for _ in range(EXAMPLES)]

    def _learn_curves(self, trials: Sequence[Seen], *, refit: bool) -> None:
        started = [trial for trial in trials if trial.epochs >= self.rungs[0] or trial.state == "failed"]
        waiting = [t for t in trials if t.state == "running" and t.epochs < self.rungs[0]]
        x = self._x(started)
        believers = self._x(waiting)
        for j, chain in self._chains.items():
            values = np.full((len(started), len(self.rungs)), np.nan)
            before = np.full(len(started), np.nan)
            for i, trial in enumerate(started):
                values[i], before[i] = self._at_rungs(trial, j)
            scale = self._scales[j] = Scale.of(values[np.isfinite(values)], float(self.reference[j]))
            z = np.where(np.isnan(values), np.nan, scale.to_z(values))
            slopes = np.full_like(z, np.nan)
            slopes[:, 1:] = np.diff(z, axis=1) / np.diff(chain.logs)
            slopes[:, 0] = self._first_slopes(z[:, 0], before, scale)
            chain.learn(Crossings(x=x, z=z, slopes=slopes, believers=believers), refit=refit)

    def _at_rungs(self, trial: Seen, j: int) -> tuple[list[float], float]:
        """An objective at each rung, NaN where the trial has not been; infinite where it failed on the way there."""
        kept = self._rows.get((trial.number, j))
        if kept is None or kept[0] is not trial:
            kept = self._rows[trial.number, j] = (trial, *_at_rungs(trial, j, self.rungs))
        return kept[1:]

    def _first_slopes(self, z: Array, before: Array, scale: Scale) -> Array:
        """D at the first rung, from the epoch before it; 0 if there is none."""
        first = self.rungs[0]
        if first < 2:
            return np.where(np.isnan(z), np.nan, 0.0)
        length = math.log(first) - math.log(first - 1)
        rate = (z - scale.to_z(before)) / length
        return np.where(np.isnan(z), np.nan, np.where(np.isnan(before), 0.0, rate))

    def _learn_prices(self, trials: Sequence[Seen], *, refit: bool) -> None:
        paid = [trial for trial in trials if trial.usd_per_epoch and trial.epochs]
        usd = np.array([trial.usd_per_epoch for trial in paid], dtype=float)
        self._prices.learn(self._x(paid), self._hints_of(paid), usd, refit=refit)
        starts = [(t.paid_usd / t.usd_per_epoch - t.epochs) / t.starts for t in paid if t.usd_per_epoch]
        self._start_epochs = max(float(np.median(starts)), 0.0) if len(starts) >= 3 else START_EPOCHS

    def _learn_sizes(self, trials: Sequence[Seen], *, refit: bool) -> None:
        measured = [trial for trial in trials if trial.at]
        for j, regression in self._sizes.items():
            values = np.array([next(iter(trial.at.values()))[j] for trial in measured], dtype=float)
            usable = np.isfinite(values) & (values > 0)
            chosen = [trial for trial, is_usable in zip(measured, usable, strict=True) if is_usable]
            regression.learn(self._x(chosen), self._hints_of(chosen), values[usable], refit=refit)

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
            self._strips = Strips.under(archive, self.reference)

    def expect(self, points: Sequence[Values]) -> None:
        """Take points that running trials are about to reach for part of the archive; the real one stays."""
        added = np.asarray(points, dtype=float).reshape(-1, len(self.reference))
        self._look_at(np.vstack([self.archive, added]))

    def widen(self) -> None:
        """Measure from a reference point that what was seen does reach: nothing has yet dominated the given one."""
        self.reference = np.maximum(self.reference, self._provisional)
        self._look_at(self._seen_archive)

    # ------------------------------------------------------------------ candidates

    def _x(self, trials: Sequence[Seen]) -> Array:
        for trial in trials:
            if trial.number not in self._points:
                self._points[trial.number] = self.encoder.encode(trial.params)
                known = self.problem.known(trial.params) if self.problem.known else {}
                self._hints[trial.number] = self._with_earlier(self._points[trial.number][None], _hint(known)[None])[0]
        return np.array([self._points[trial.number] for trial in trials]).reshape(-1, self.encoder.width)

    def _hints_of(self, trials: Sequence[Seen]) -> Array:
        return (
            np.array([self._hints[trial.number] for trial in trials]).reshape(len(trials), -1)
            if trials
            else np.zeros((0, 0))
        )

    def describe(self, configurations: Sequence[Mapping[str, ParameterValue]]) -> Described:
        """What can be told of configurations without training them."""
        x = np.array([self.encoder.encode(params) for params in configurations])
        known = [self.problem.known(params) if self.problem.known else {} for params in configurations]
        names = {j: self.problem.objectives[j].metric for j in self._static}
        sizes = {
            j: np.array([one[name] for one in known], dtype=float)
            for j, name in names.items()
            if all(name in one for one in known)
        }
        return Described(
            x=x,
            hints=self._with_earlier(x, np.array([_hint(one) for one in known]).reshape(len(x), -1)),
            sizes=sizes,
            world_sizes=np.array([float(params.get("world_size") or 1) for params in configurations]),
        )

    def _with_earlier(self, x: Array, hints: Array) -> Array:
        transfer = self.problem.transfer
        return hints if transfer is None else np.hstack([hints, transfer.hints(x)])

    def untried(self, some: Described) -> Candidates:
        """Configurations that nobody has started."""
        log_usd, sd = self._prices.predict(some.x, some.hints)
        statics: dict[int, Marginal] = {}
        for j in self._static:
            if j in some.sizes:
                statics[j] = (some.sizes[j], np.zeros(len(some.x)), "gaussian")
            else:
                statics[j] = (*self._sizes[j].predict(some.x, some.hints), "lognormal")
        return Candidates(
            pool=Pool(some.x),
            rung=-1,
            log_usd=log_usd,
            log_usd_sd=sd,
            paid_usd=np.zeros(len(some.x)),
            start_epochs=np.full(len(some.x), self._start_epochs),
            done=0,
            seconds_per_usd=3600.0 / (self.problem.usd_per_slot_hour * some.world_sizes),
            statics=statics,
        )

    def started(self, trials: Sequence[Seen], rung: int, *, is_running: bool) -> Candidates:
        """Trials that stand at the same rung.

        Args:
            trials: With a measurement there.
            rung: Its index; not the last.
            is_running: Whether they hold their slots, so that going on costs no start.
        """
        stands = {}
        for j, chain in self._chains.items():
            rows = [self._at_rungs(trial, j) for trial in trials]
            scale = self._scales[j]
            z = scale.to_z(np.array([row[0] for row in rows]))
            before = np.array([row[1] for row in rows])
            slope = (
                self._first_slopes(z[:, 0], before, scale)
                if rung == 0
                else (z[:, rung] - z[:, rung - 1]) / (chain.logs[rung] - chain.logs[rung - 1])
            )
            stands[j] = (z[:, rung], slope)
        usd = np.array([trial.usd_per_epoch or 1e-12 for trial in trials])
        last = [trial.at[self.rungs[rung]] for trial in trials]
        return Candidates(
            pool=Pool(self._x(trials)),
            rung=rung,
            log_usd=np.log(usd),
            log_usd_sd=np.zeros(len(trials)),
            paid_usd=np.array([trial.paid_usd for trial in trials]),
            start_epochs=np.full(len(trials), 0.0 if is_running else self._start_epochs),
            done=self.rungs[rung],
            seconds_per_usd=3600.0
            / (self.problem.usd_per_slot_hour * np.array([float(trial.world_size) for trial in trials])),
            statics={
                j: (np.array([v[j] for v in last], dtype=float), np.zeros(len(last)), "gaussian") for j in self._static
            },
            stands=stands,
        )

    def rung_of(self, trial: Seen) -> int:
        """Index of the last rung that a trial has reached; -1 before the first."""
        return max((k for k, rung in enumerate(self.rungs) if rung in trial.at), default=-1)

    # ------------------------------------------------------------------ forecasts and prices

    def forecasts(self, some: Candidates) -> dict[int, Forecast]:
        """Of every learned objective at the rungs to come."""
        if some.rung < 0:
            return {j: chain.forecast_untried(some.pool) for j, chain in self._chains.items()}
        return {j: chain.forecast_started(some.pool, some.rung, *some.stands[j]) for j, chain in self._chains.items()}

    def next_points(self, some: Candidates) -> list[Values]:
        """The median of what they will have reached at their next rung."""
        forecasts = self.forecasts(some)
        columns = []
        for j in range(len(self.problem.objectives)):
            mean, _, kind = self._marginal(j, some, forecasts, np.zeros((1, 0)))
            columns.append(np.exp(mean[:, 0, 0]) if kind == "lognormal" else mean[:, 0, 0])
        return [tuple(map(float, row)) for row in np.stack(columns, -1)]

    def break_even_prices(self, some: Candidates, *, with_nodes: bool) -> Array:
        """The index of each candidate [m], in hypervolume per dollar.

        Args:
            some: Candidates.
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
        return solve(self._gain(some, forecasts, nodes), weights, first, after)

    def _gain(self, some: Candidates, forecasts: dict[int, Forecast], nodes: Array) -> Array:
        """EHVI at each rung to come [m, J, H], given what the next rung tells at each node [J, up to 2]."""
        parts = [self._marginal(j, some, forecasts, nodes) for j in range(len(self.problem.objectives))]
        if self._directions is not None:
            gained = self._directions.improvement(self._heights, self.reference, self._unit, parts)
        elif len(parts) == 1:
            best = min([float(self.reference[0]), *self._seen_archive[:, 0].tolist()])
            gained = expected_below(np.asarray(best), *parts[0])
        else:
            gained = improvement(self._strips, parts[0], parts[1])
        horizons = len(self.rungs) - some.rung - 1
        return np.broadcast_to(gained, (len(some.log_usd), len(nodes), horizons))

    def _marginal(self, j: int, some: Candidates, forecasts: dict[int, Forecast], nodes: Array) -> Marginal:
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
        unit = some.seconds_per_usd[:, None] if self.problem.objectives[j].metric == "wall_seconds" else 1.0
        if some.rung < 0:
            mean = some.log_usd[:, None] + np.log(epochs * unit)
            return mean[:, None, :], some.log_usd_sd[:, None, None], "lognormal"
        total = unit * (some.paid_usd[:, None] + np.exp(some.log_usd)[:, None] * epochs)
        return total[:, None, :], np.zeros((1, 1, 1)), "gaussian"


def _at_rungs(trial: Seen, j: int, rungs: Sequence[int]) -> tuple[list[float], float]:
    found = [trial.at[rung][j] if rung in trial.at else math.nan for rung in rungs]
    if trial.state == "failed":
        reached = sum(not math.isnan(value) for value in found)
        if reached < len(found):
            found[reached] = math.inf
    before = rungs[0] - 1
    return found, trial.at[before][j] if before in trial.at else math.nan


def _hint(known: Mapping[str, float]) -> Array:
    return np.array([math.log(value) for _, value in sorted(known.items()) if value > 0])


def _grid(learned: int) -> tuple[Array, Array]:
    """Standard normal nodes for the next innovation of up to two learned objectives [J, up to 2], and their weights."""
    places, weights = np.polynomial.hermite_e.hermegauss(NODES)
    count = min(learned, 2)
    grid = np.array(list(itertools.product(places, repeat=count))).reshape(-1, count)
    products = [math.prod(one) for one in itertools.product(weights / weights.sum(), repeat=count)]
    return grid, np.array(products)


def solve(gains: Array, weights: Array, first: Array, after: Array) -> Array:
    """The price of a dollar at which going on just breaks even.

    Args:
        gains: EHVI at each node and horizon [m, J, H].
        weights: Of the nodes [J], summing to 1.
        first: Dollars to the next rung [m].
        after: Dollars from there to each horizon [m, H].

    Returns:
        The root in lambda of sum_j w_j max_h (gains - lambda after)_+ = lambda first [m].
    """
    low, high = np.zeros(len(gains)), gains.max(axis=(1, 2)) / first
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        worth = np.maximum((gains - (middle[:, None] * after)[:, None, :]).max(axis=2), 0.0) @ weights
        pays = worth >= middle * first
        low, high = np.where(pays, middle, low), np.where(pays, high, middle)
    price: Array = 0.5 * (low + high)
    return price
