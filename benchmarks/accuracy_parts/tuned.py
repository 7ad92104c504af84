"""Boosted trees that Optuna tunes for as long as ours searches: LightGBM, and histogram boosting of scikit-learn.

Below 2,000 rows by five folds, whose five models answer together, as ours does; else by a validation part, after which
the best parameters are trained on all rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pandas as pd
from lightgbm import LGBMClassifier, LGBMRegressor, early_stopping
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split

from accuracy_parts.data_sets import TARGET, DataSet

FEW_ROWS = 2000
FOLDS = 5
VALIDATION_SHARE = 0.15
MOST_TREES = 2000
PATIENCE = 50

Fit = Callable[[dict[str, Any], pd.DataFrame, "tuple[pd.DataFrame, pd.DataFrame] | None"], Any]


def lightgbm(data_set: DataSet, seconds: float, seed: int, threads: int) -> np.ndarray:
    """Answers of LightGBM, tuned by Optuna for some seconds."""
    kind = LGBMRegressor if data_set.is_regression else LGBMClassifier

    def suggest(trial: optuna.Trial) -> dict[str, Any]:
        return {
            "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
            "num_leaves": trial.suggest_int("num_leaves", 4, 256, log=True),
            "min_child_samples": trial.suggest_int("min_child_samples", 2, 100, log=True),
            "subsample": trial.suggest_float("subsample", 0.5, 1.0),
            "colsample_bytree": trial.suggest_float("colsample_bytree", 0.3, 1.0),
            "reg_lambda": trial.suggest_float("reg_lambda", 1e-3, 20.0, log=True),
        }

    def fit(params: dict[str, Any], train: pd.DataFrame, held: tuple[pd.DataFrame, pd.DataFrame] | None) -> Any:
        chosen = {"n_estimators": MOST_TREES} | params
        model = kind(**chosen, subsample_freq=1, n_jobs=threads, random_state=seed, verbosity=-1)
        x, y = _parts(train)
        if held is None:
            return model.fit(x, y)
        metric = "l2" if data_set.is_regression else None
        stop = early_stopping(PATIENCE, verbose=False)
        return model.fit(x, y, eval_set=[held], eval_metric=metric, callbacks=[stop])

    defaults = {"learning_rate": 0.1, "num_leaves": 31, "min_child_samples": 20, "subsample": 1.0,
                "colsample_bytree": 1.0, "reg_lambda": 1e-3}  # fmt: skip
    return _tuned(
        data_set, suggest, fit, defaults, seconds, seed, rounds=lambda model: {"n_estimators": model.best_iteration_}
    )


def histogram_boosting(data_set: DataSet, seconds: float, seed: int, threads: int) -> np.ndarray:  # noqa: ARG001 - OpenMP's
    """Answers of scikit-learn's histogram boosting, tuned by Optuna for some seconds."""
    kind = HistGradientBoostingRegressor if data_set.is_regression else HistGradientBoostingClassifier

    def suggest(trial: optuna.Trial) -> dict[str, Any]:
        return {
            "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
            "max_leaf_nodes": trial.suggest_int("max_leaf_nodes", 4, 256, log=True),
            "min_samples_leaf": trial.suggest_int("min_samples_leaf", 2, 100, log=True),
            "l2_regularization": trial.suggest_float("l2_regularization", 1e-3, 20.0, log=True),
            "max_features": trial.suggest_float("max_features", 0.3, 1.0),
        }

    def fit(params: dict[str, Any], train: pd.DataFrame, held: tuple[pd.DataFrame, pd.DataFrame] | None) -> Any:
        model = kind(
            **({"max_iter": MOST_TREES} | params), early_stopping=held is not None, n_iter_no_change=PATIENCE,
            categorical_features="from_dtype", random_state=seed,
        )  # fmt: skip
        x, y = _parts(train)
        return model.fit(x, y) if held is None else model.fit(x, y, X_val=held[0], y_val=held[1])

    defaults = {"learning_rate": 0.1, "max_leaf_nodes": 31, "min_samples_leaf": 20, "l2_regularization": 1e-3,
                "max_features": 1.0}  # fmt: skip
    return _tuned(data_set, suggest, fit, defaults, seconds, seed, rounds=lambda model: {"max_iter": model.n_iter_})


def _tuned(  # noqa: PLR0917 - one caller for each library
    data_set: DataSet,
    suggest: Callable[[optuna.Trial], dict[str, Any]],
    fit: Fit,
    defaults: dict[str, Any],
    seconds: float,
    seed: int,
    *,
    rounds: Callable[[Any], dict[str, Any]],
) -> np.ndarray:
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    train, test = data_set.frames()
    splits = _splits(data_set, train, seed)
    best: tuple[float, list[Any], dict[str, Any]] | None = None

    def objective(trial: optuna.Trial) -> float:
        nonlocal best
        params, wrong, models = suggest(trial), 0.0, []
        for rows, held in splits:
            x, y = _parts(train.iloc[held])
            model = fit(params, train.iloc[rows], (x, y))
            models.append(model)
            wrong += _loss(data_set, model.predict(x), y) * len(held)
        loss = wrong / sum(len(held) for _, held in splits)
        if best is None or loss < best[0]:
            best = (loss, models, params)
        return loss

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial(defaults)
    study.optimize(objective, timeout=seconds)
    assert best is not None
    _, models, params = best
    if len(splits) == 1:
        models = [fit(params | rounds(models[0]), train, None)]
    return _together(data_set, models, test.drop(columns=TARGET))


def _splits(data_set: DataSet, train: pd.DataFrame, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    classes = None if data_set.is_regression else train[TARGET]
    if len(train) >= FEW_ROWS:
        rows, held = train_test_split(
            np.arange(len(train)), test_size=VALIDATION_SHARE, random_state=seed, stratify=classes
        )
        return [(rows, held)]
    folds = KFold if data_set.is_regression else StratifiedKFold
    return list(folds(FOLDS, shuffle=True, random_state=seed).split(train, classes))


def _parts(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    return rows.drop(columns=TARGET), rows[TARGET]


def _loss(data_set: DataSet, answers: np.ndarray, truth: pd.Series) -> float:
    if data_set.is_regression:
        return float(np.mean((answers - truth.to_numpy()) ** 2))
    return float(np.mean(answers != truth.to_numpy()))


def _together(data_set: DataSet, models: list[Any], rows: pd.DataFrame) -> np.ndarray:
    """What models answer together: the mean of numbers, or the class of the largest mean probability."""
    if data_set.is_regression:
        return np.asarray(np.mean([model.predict(rows) for model in models], axis=0))
    mean = np.mean([model.predict_proba(rows) for model in models], axis=0)
    return np.asarray(models[0].classes_[mean.argmax(axis=1)])
