"""Importance of parameters for an objective (functional ANOVA), from a random forest fitted to the trials."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from studies.records.records import Objective, StudyRecord, TrialRecord, known_space
from studies.results.extrapolation import extrapolated_metric
from studies.results.pareto import last_epoch
from trainers.protocol import CUMULATIVE_METRICS

FEWEST_TRIALS = 10  # fewest usable trials: with fewer trials, importance would be noise
MOST_TRIALS = 1000  # most trials that the forest is fitted to (an even sample): more would delay a report by seconds
_TREES = 40
_PARTS = 8  # number of parts of the forest, whose shares span the band of a share
_BACKGROUND = 128  # number of configurations over which a main effect is averaged
_GRID = 16  # number of values of a parameter at which its main effect is computed
_SURFACE = 24  # number of values of each of the two parameters of a surface
_LEAST_SHARE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Surface:
    """Expected objective for two numeric parameters, averaged over all other parameters."""

    xs: tuple[float, ...]  # values of the first parameter, ascending
    ys: tuple[float, ...]  # values of the second parameter, ascending
    values: tuple[tuple[float, ...], ...]  # expected objective; a row for each of `ys`, a column for each of `xs`


def effects(study: StudyRecord, objective: Objective) -> "Effects | None":
    """Return how an objective depends on the parameters; None with too few trials or without variation.

    Trials are compared at the last epoch. A trial that stopped earlier counts with its latest forecast, else with its
    last value (cumulative objectives extrapolated). The number of epochs is no feature: pruners stop trials because of
    their parameters, so controlling for epochs would hide effects. Inactive parameters get the median of their active
    values. The effect of a conditional parameter is its effect where active, times its share of trials.
    """
    usable = [(trial, value) for trial in study.started if (value := _value(study, trial, objective)) is not None]
    usable = usable[:: -(-len(usable) // MOST_TRIALS)] if usable else []
    names = list(dict.fromkeys(name for trial, _ in usable for name in trial.params))
    columns = {name: _column(study, name, [trial.params.get(name, _ABSENT) for trial, _ in usable]) for name in names}
    columns = {name: column for name, column in columns.items() if np.ptp(column.values) > 0} if usable else {}
    values = sorted({value for _, value in usable})
    if len(usable) < FEWEST_TRIALS or not columns or len(values) < 2:
        return None
    found = Effects(columns, [value for _, value in usable], values, known_space(study))
    return found if found.shares else None


_ABSENT: Any = object()  # marks a missing parameter, since None is a valid choice


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    values: np.ndarray
    levels: np.ndarray
    is_numeric: bool
    is_log: bool
    codes: Mapping[str, float]  # numbers of the choices by their repr; empty for numbers
    active: float  # share of the trials that have the parameter


class Effects:
    """A random forest over the parameters' ranges, and the effects of single parameters and of pairs.

    A main effect is the expected rank for each value of one parameter, with the others drawn uniformly from the trials'
    ranges (Hutter, Hoos, Leyton-Brown 2014). Ranks are used, since one diverged trial would dominate values.
    """

    def __init__(
        self,
        columns: Mapping[str, _Column],
        targets: Sequence[float],
        distinct: Sequence[float],
        space: Mapping[str, Mapping[str, object]],
    ) -> None:
        self._columns, self._space = columns, space
        self._names = list(columns)
        self._distinct = np.array(distinct)
        ranks = np.searchsorted(self._distinct, targets).astype(float)
        self._forest = _fitted(np.column_stack([one.values for one in columns.values()]), ranks)
        self._background = self._drawn()
        self.shares, self.bands = self._shares()

    def numeric(self) -> list[str]:
        """Return the numeric parameters, most important first."""
        return [name for name in self.shares if self._columns[name].is_numeric]

    def surface(self, first: str, second: str) -> Surface:
        """Return the expected objective for two numeric parameters."""
        xs, ys = (self._even(name, _SURFACE) for name in (first, second))
        places = [self._names.index(name) for name in (first, second)]
        grid = np.array([(x, y) for y in ys for x in xs])
        background = self._background[: _BACKGROUND // 2]
        predicted: np.ndarray = self._forest.predict(self._rows(places, grid, background))
        expected: np.ndarray = predicted.reshape(len(grid), len(background)).mean(axis=1)
        values = np.interp(expected, np.arange(len(self._distinct)), self._distinct).reshape(len(ys), len(xs))
        return Surface(
            xs=self._plain(first, xs),
            ys=self._plain(second, ys),
            values=tuple(tuple(float(value) for value in row) for row in values),
        )

    def _shares(self) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
        """Return each parameter's share, largest first, and its range over parts of the forest."""
        trees = [self._forest.estimators_[place::_PARTS] for place in range(_PARTS)]
        variances = np.array([self._variances(trees, name) for name in self._names])
        whole, parts = variances[:, 0], variances[:, 1:]
        if whole.sum() <= _LEAST_SHARE:
            return {}, {}
        of_parts = parts / np.maximum(parts.sum(axis=0), _LEAST_SHARE)
        order = np.argsort(-whole, kind="stable")
        names = [self._names[place] for place in order]
        shares = dict(zip(names, (whole[order] / whole.sum()).tolist(), strict=True))
        bounds = zip(of_parts[order].min(axis=1).tolist(), of_parts[order].max(axis=1).tolist(), strict=True)
        return shares, dict(zip(names, bounds, strict=True))

    def _variances(self, parts: Sequence[Sequence[Any]], name: str) -> list[float]:
        """Return the variance of a parameter's main effect by the whole forest, then by each part."""
        column, background = self._columns[name], self._background.copy()
        for parent, code in self._branch(name).items():
            background[:, self._names.index(parent)] = code
        rows = self._rows([self._names.index(name)], column.levels[:, None], background)
        by_part = [np.mean([tree.predict(rows) for tree in part], axis=0) for part in parts]
        sizes = [len(part) for part in parts]
        effects = [np.average(by_part, axis=0, weights=sizes), *by_part]
        shape = len(column.levels), len(background)
        return [column.active * float(np.var(one.reshape(shape).mean(axis=1))) for one in effects]

    def _branch(self, name: str) -> dict[str, float]:
        """Return the varying choices of other parameters that make a conditional parameter active."""
        declared = self._space.get(name, {}).get("when")
        found: dict[str, float] = {}
        for parent, wanted in declared.items() if isinstance(declared, Mapping) else ():
            codes = self._columns[parent].codes if parent in self._columns else {}
            value = repr(wanted[0] if isinstance(wanted, list | tuple) else wanted)
            if value in codes:
                found[parent] = codes[value]
            found |= self._branch(parent)
        return found

    def _rows(self, places: Sequence[int], settings: np.ndarray, background: np.ndarray) -> np.ndarray:
        """Return `background` once for each of `settings`, which replace the columns `places`."""
        rows = np.tile(background, (len(settings), 1))
        rows[:, list(places)] = np.repeat(settings, len(background), axis=0)
        return rows

    def _drawn(self) -> np.ndarray:
        """Return random configurations; a fixed seed makes repeated reports equal."""
        rng = np.random.default_rng(0)
        drawn = [
            rng.uniform(one.levels[0], one.levels[-1], _BACKGROUND)
            if one.is_numeric
            else rng.choice(one.levels, _BACKGROUND)
            for one in self._columns.values()
        ]
        return np.column_stack(drawn)

    def _even(self, name: str, count: int) -> np.ndarray:
        column = self._columns[name]
        return np.linspace(column.levels[0], column.levels[-1], count)

    def _plain(self, name: str, values: np.ndarray) -> tuple[float, ...]:
        plain = np.exp(values) if self._columns[name].is_log else values
        return tuple(float(value) for value in plain)


def _fitted(features: np.ndarray, targets: np.ndarray) -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(n_estimators=_TREES, min_samples_leaf=2, random_state=0).fit(features, targets)


def _value(study: StudyRecord, trial: TrialRecord, objective: Objective) -> float | None:
    if not trial.epochs or trial.state == "running":
        return None
    last, end = trial.epochs[-1], last_epoch(study.spec)
    value = float(last.metrics.get(objective.metric, math.nan))
    forecast = next(
        (one.forecasts[objective.metric] for one in reversed(trial.decisions) if objective.metric in one.forecasts),
        None,
    )
    if math.isfinite(value) and objective.metric in CUMULATIVE_METRICS:
        value = extrapolated_metric(trial, last, objective.metric, end)
    elif forecast is not None and trial.state != "complete" and last.epoch < forecast.epochs[-1] == end:
        value = forecast.median(-1)
    return value if math.isfinite(value) else None


def _column(study: StudyRecord, name: str, values: Sequence[Any]) -> _Column:
    """Return a parameter's values by trial; trials without it get the median."""
    declared = known_space(study).get(name)
    given = [v for v in values if v is not _ABSENT]
    is_choice = isinstance(declared, Mapping) and declared.get("type") == "categorical"
    numeric = not is_choice and all(isinstance(v, int | float) and not isinstance(v, bool) for v in given)
    choices = {text: float(i) for i, text in enumerate(sorted({repr(v) for v in given}))}
    numbers = [math.nan if v is _ABSENT else float(v) if numeric else choices[repr(v)] for v in values]
    wants_log = isinstance(declared, Mapping) and bool(declared.get("log"))
    is_log = numeric and wants_log and all(number > 0 for number in numbers if not math.isnan(number))
    column = np.log(numbers) if is_log else np.array(numbers)
    active = np.sort(column[~np.isnan(column)])
    column = np.where(np.isnan(column), active[len(active) // 2] if len(active) else 0.0, column)
    distinct = np.unique(column)
    levels = np.linspace(distinct[0], distinct[-1], _GRID) if numeric and len(distinct) > _GRID else distinct
    return _Column(
        values=column, levels=levels, is_numeric=numeric, is_log=is_log, codes={} if numeric else choices,
        active=len(active) / len(column),
    )  # fmt: skip
