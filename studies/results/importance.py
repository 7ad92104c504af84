"""Main effects of the parameters on an objective (functional ANOVA), by a forest fitted to the trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from studies.records.records import CUMULATIVE_METRICS, Objective, StudyRecord, TrialRecord
from studies.records.suggested_parameters import known_space
from studies.results.extrapolation import extrapolated_metric
from studies.results.pareto import last_epoch
from trainers.protocol import ParameterValue

FEWEST_TRIALS = 8
"""Fewest usable trials: with fewer trials, importance would be noise."""
MOST_TRIALS = 1000
"""Most trials that the forest is fitted to (an even sample): more would delay a report by seconds."""
_TREES = 40
_BACKGROUND = 128
"""Number of configurations over which a main effect is averaged."""
_GRID = 16
"""Number of values of a parameter at which its main effect is computed."""
_SURFACE = 24
"""Number of values of each of the two parameters of a surface."""
_LEAST_SHARE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Surface:
    """An objective over two numeric parameters, averaged over all others."""

    xs: tuple[float, ...]  # values of the first parameter, ascending
    ys: tuple[float, ...]  # values of the second parameter, ascending
    values: tuple[tuple[float, ...], ...]  # expected objective; a row for each of `ys`, a column for each of `xs`


def importance(study: StudyRecord, objective: Objective) -> dict[str, float]:
    """Return each parameter's share of the variance that single parameters explain, largest first; they sum to 1.

    Empty with fewer than 8 usable trials, without variance, or if the forest explains nothing. See `effects`.
    """
    found = effects(study, objective)
    return dict(found.shares) if found else {}


def effects(study: StudyRecord, objective: Objective) -> Effects | None:
    """Return an objective's dependence on the parameters; None if unknown.

    Ended and waiting trials count with their last values (cumulative objectives extrapolated). Epochs are no feature:
    a pruner stops trials because of their parameters, so controlling for epochs would hide effects. Inactive
    parameters get the median of their active values.
    """
    usable = [(trial, value) for trial in study.started if (value := _value(study, trial, objective)) is not None]
    usable = usable[:: -(-len(usable) // MOST_TRIALS)] if usable else []
    names = list(dict.fromkeys(name for trial, _ in usable for name in trial.params))
    columns = {name: _column(study, name, [trial.params.get(name, _ABSENT) for trial, _ in usable]) for name in names}
    columns = {name: column for name, column in columns.items() if np.ptp(column.values) > 0} if usable else {}
    values = sorted({value for _, value in usable})
    if len(usable) < FEWEST_TRIALS or not columns or len(values) < 2:
        return None
    found = Effects(columns, [value for _, value in usable], values)
    return found if found.shares else None


class _Absent:
    """Value of a parameter that a trial lacks; None cannot mark it, since None is a valid choice."""


_ABSENT = _Absent()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    values: np.ndarray
    levels: np.ndarray
    is_numeric: bool
    is_log: bool


class Effects:
    """A forest over the parameters' ranges, with effects of single parameters and pairs.

    A main effect is the expected rank given one parameter, with the others drawn uniformly from the trials' ranges
    (Hutter, Hoos, Leyton-Brown 2014). Ranks, because one diverging trial would dominate the values.
    """

    def __init__(self, columns: Mapping[str, _Column], targets: Sequence[float], distinct: Sequence[float]) -> None:
        self._columns = columns
        self._names = list(columns)
        self._distinct = np.array(distinct)
        ranks = np.searchsorted(self._distinct, targets).astype(float)
        self._forest = _fitted(np.column_stack([one.values for one in columns.values()]), ranks)
        self._background = self._drawn()
        self.shares = self._shares()

    def numeric(self) -> list[str]:
        """Return the numeric parameters, most important first."""
        return [name for name in self.shares if self._columns[name].is_numeric]

    def surface(self, first: str, second: str) -> Surface:
        """Return the objective over two numeric parameters."""
        xs, ys = (self._even(name, _SURFACE) for name in (first, second))
        places = [self._names.index(name) for name in (first, second)]
        grid = np.array([(x, y) for y in ys for x in xs])
        expected = self._expected(places, grid, self._background[: _BACKGROUND // 2])
        values = np.interp(expected, np.arange(len(self._distinct)), self._distinct).reshape(len(ys), len(xs))
        return Surface(
            xs=self._plain(first, xs),
            ys=self._plain(second, ys),
            values=tuple(tuple(float(value) for value in row) for row in values),
        )

    def _shares(self) -> dict[str, float]:
        variances = {
            name: float(np.var(self._expected([place], self._columns[name].levels[:, None], self._background)))
            for place, name in enumerate(self._names)
        }
        total = sum(variances.values())
        if total <= _LEAST_SHARE:
            return {}
        shares = {name: variance / total for name, variance in variances.items()}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def _expected(self, places: Sequence[int], settings: np.ndarray, background: np.ndarray) -> np.ndarray:
        """Return the expected rank at each setting of some columns, averaged over the background's other columns."""
        rows = np.tile(background, (len(settings), 1))
        rows[:, list(places)] = np.repeat(settings, len(background), axis=0)
        predicted: np.ndarray = self._forest.predict(rows).reshape(len(settings), len(background)).mean(axis=1)
        return predicted

    def _drawn(self) -> np.ndarray:
        """Return random configurations; seeded, so that repeated reports agree."""
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
    """Return a fitted forest; seeded, so that repeated reports agree."""
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(n_estimators=_TREES, min_samples_leaf=2, random_state=0).fit(features, targets)


def _value(study: StudyRecord, trial: TrialRecord, objective: Objective) -> float | None:
    """Return the objective's value for a trial; None if there is no finite value."""
    if not trial.epochs or trial.state == "running":
        return None
    last = trial.epochs[-1]
    value = float(last.metrics.get(objective.metric, math.nan))
    if math.isfinite(value) and objective.metric in CUMULATIVE_METRICS:
        value = extrapolated_metric(trial, last, objective.metric, last_epoch(study.spec))
    return value if math.isfinite(value) else None


def _column(study: StudyRecord, name: str, values: Sequence[ParameterValue | _Absent]) -> _Column:
    """Return a parameter's column; trials without the parameter get the median of its active values."""
    declared = known_space(study).get(name)
    given = [v for v in values if not isinstance(v, _Absent)]
    is_choice = isinstance(declared, Mapping) and declared.get("type") == "categorical"
    numeric = not is_choice and all(isinstance(v, int | float) and not isinstance(v, bool) for v in given)
    choices = {text: float(i) for i, text in enumerate(sorted({repr(v) for v in given}))}
    numbers = [
        math.nan if isinstance(v, _Absent) else float(v) if numeric else choices[repr(v)]  # type: ignore[arg-type]
        for v in values
    ]
    wants_log = isinstance(declared, Mapping) and bool(declared.get("log"))
    is_log = numeric and wants_log and all(number > 0 for number in numbers if not math.isnan(number))
    column = np.log(numbers) if is_log else np.array(numbers)
    active = np.sort(column[~np.isnan(column)])
    column = np.where(np.isnan(column), active[len(active) // 2] if len(active) else 0.0, column)
    distinct = np.unique(column)
    levels = np.linspace(distinct[0], distinct[-1], _GRID) if numeric and len(distinct) > _GRID else distinct
    return _Column(values=column, levels=levels, is_numeric=numeric, is_log=is_log)
