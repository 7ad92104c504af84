"""Which parameters an objective depends on: permutation importance of a random forest fitted to the trials."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from studies.extrapolation import extrapolated_metric
from studies.records import CUMULATIVE_METRICS, Objective, StudyRecord, TrialRecord
from studies.reference_point import last_epoch
from trainers.protocol import ParameterValue

FEWEST_TRIALS = 8
"""With fewer usable trials importance would be noise, and none is given."""


def importance(study: StudyRecord, objective: Objective) -> dict[str, float]:
    """Share of each parameter in the permutation importance for an objective, largest first; the shares sum to 1.

    All trials with a finite last value count, pruned ones too (cumulative objectives extrapolated to the last epoch).
    The number of epochs of a trial is a feature of the forest as well, and is left out of the shares: the effect of an
    early stop is not attributed to a parameter. An inactive parameter gets the median of its active values.

    Args:
        study: The study as committed.
        objective: Objective of the study.

    Returns:
        Empty when fewer than 8 trials are usable, when nothing varies, or when the forest explains nothing.
    """
    usable = [(trial, value) for trial in study.started if (value := _value(study, trial, objective)) is not None]
    names = list(dict.fromkeys(name for trial, _ in usable for name in trial.params))
    columns = {name: _encoded([trial.params.get(name) for trial, _ in usable]) for name in names}
    columns = {name: column for name, column in columns.items() if np.ptp(column) > 0} if usable else {}
    targets = _ranks([value for _, value in usable])
    if len(usable) < FEWEST_TRIALS or not columns or np.ptp(targets) == 0:
        return {}
    depth = np.array([float(len(trial.epochs)) for trial, _ in usable])
    gains = _permutation_gains(np.column_stack([*columns.values(), depth]), targets)[: len(columns)]
    total = float(gains.sum())
    if total <= 0:
        return {}
    shares = {name: float(gain) / total for name, gain in zip(columns, gains, strict=True)}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _permutation_gains(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Loss of R² when a column is shuffled, at least 0. Seeded, so that a report is the same each time."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    forest = RandomForestRegressor(n_estimators=64, min_samples_leaf=2, random_state=0).fit(features, targets)
    lost = permutation_importance(forest, features, targets, n_repeats=5, random_state=0)
    gains: np.ndarray = np.maximum(np.asarray(lost["importances_mean"], dtype=float), 0.0)
    return gains


def _value(study: StudyRecord, trial: TrialRecord, objective: Objective) -> float | None:
    """The trial's last value of an objective, extrapolated if it is cumulative; None if there is no finite one."""
    if not trial.epochs:
        return None
    last = trial.epochs[-1]
    value = float(last.metrics.get(objective.metric, math.nan))
    if math.isfinite(value) and objective.metric in CUMULATIVE_METRICS:
        value = extrapolated_metric(trial, last, objective.metric, last_epoch(study.spec))
    return value if math.isfinite(value) else None


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks, equal for equal values: without them the forest would explain one diverging value only."""
    distinct = sorted(set(values))
    rank_of = {value: rank for rank, value in enumerate(distinct)}
    return np.array([float(rank_of[value]) for value in values])


def _encoded(values: Sequence[ParameterValue]) -> np.ndarray:
    """A parameter as numbers: values or indices of categories, and the median of the active ones where inactive."""
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values if v is not None)
    categories = {text: float(i) for i, text in enumerate(sorted({repr(v) for v in values if v is not None}))}
    numbers = [math.nan if v is None else float(v) if numeric else categories[repr(v)] for v in values]
    column = np.array(numbers)
    active = np.sort(column[~np.isnan(column)])
    return np.where(np.isnan(column), active[len(active) // 2] if len(active) else 0.0, column)
