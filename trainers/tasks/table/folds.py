"""Cross-validation within a trial: each row is evaluated by a model that has not seen it. Shapes: n rows, k folds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.protocol import TaskError
from trainers.tasks.shared.split_task import Rows
from trainers.tasks.table.columns import Encoding, Matrix

SMALL = 2000  # number of rows below which `folds: auto` takes folds
FOLDS = 5
_MOST = 20
_SEED = 0


def count_folds(given: object, *, rows: int, has_validation: bool, is_ranked: bool) -> int:
    """Return the number of folds for the option `folds`; 1 is a separate validation part."""
    if given == "auto":
        return FOLDS if rows < SMALL and rows >= 2 * FOLDS and not has_validation and not is_ranked else 1
    most = min(_MOST, rows)
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= most:
        raise TaskError(f"task_options.folds: found {given!r}, allowed: auto, or a whole number from 1 to {most}")
    if given > 1 and (has_validation or is_ranked):
        beside = "a validation file" if has_validation else "query, whose rows belong together"
        raise TaskError(f"task_options.folds: found {given} beside {beside}, allowed: 1 or auto")
    return given


def with_folds(
    parts: Mapping[str, tuple[Matrix, Any]], classes: Rows | None, folds: int
) -> dict[str, tuple[Matrix, Any]]:
    """Return the parts with each row's fold as the last column of training and validation, which are the same rows.

    `classes` of the training rows [n], or None, are stratified.
    """
    inputs, targets = parts["train"]
    order = np.random.default_rng(_SEED).permutation(len(inputs))
    if classes is not None:
        order = order[np.argsort(classes[order], kind="stable")]
    column = np.empty((len(inputs), 1), dtype=np.float32)
    column[order, 0] = np.arange(len(inputs)) % folds
    both = (np.hstack([inputs, column]), targets)
    return {**parts, "train": both, "validation": both}


def trained_levels(inputs: Matrix, encoding: Encoding, folds: int) -> NDArray[np.bool_]:
    """Return a mask of the levels of all categories in the training rows of each fold's model, [k, levels].

    `inputs` are training rows of `with_folds`, [n, columns].
    """
    fold = inputs[:, -1].astype(np.int64) if folds > 1 else np.zeros(len(inputs), dtype=np.int64)
    trained = [np.zeros((folds, 0), dtype=bool)]
    for place, category in enumerate(encoding.categories, start=encoding.dense):
        cells = inputs[:, place].astype(np.int64) * folds + fold
        counts = np.bincount(cells, minlength=category.size * folds).reshape(category.size, folds)
        others = counts.sum(axis=1, keepdims=True) - (counts if folds > 1 else 0)
        trained.append((others > 0).T)
    return np.hstack(trained)


def folds_note(folds: int) -> str:
    """Return the effect of folds on a trial, in words."""
    what = "each row is judged by the model that has not seen it, and answers are the mean of all models"
    cure = "--set task_options.folds=1 takes a validation part instead"
    return f"folds: a trial trains {folds} models and costs {folds} times as much; {what} ({cure})"
