"""Baselines that ignore the inputs: the most frequent class, the mean. Shapes: n rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trainers.tasks.shared.split_task import Rows
from trainers.tasks.table.columns import Vector
from trainers.tasks.table.targets import Target


def most_frequent_class(training: Rows, validation: Rows) -> dict[str, Any]:
    """Return the baseline that always predicts the most frequent training class.

    Its `val_loss` comes from predicting the training shares, and is left out if a validation class is in no training
    row.
    """
    counts = np.bincount(training, minlength=int(validation.max()) + 1)
    right = float((validation == counts.argmax()).mean())
    shares = counts[validation] / counts.sum()
    loss = {"val_loss": float(-np.log(shares).mean())} if shares.all() else {}
    return {
        "name": "always the most frequent class",
        "metrics": {"val_error": 1 - right, "val_accuracy": right, **loss},
    }


def mean_of_targets(validation: Vector, *, deviation: float, variance: float) -> dict[str, Any]:
    """Return the baseline that always predicts the mean of the training part."""
    errors = validation.astype(np.float64)
    squared = float((errors**2).mean())
    metrics = {
        "val_rmse": math.sqrt(squared) * deviation,
        "val_mse": squared * deviation**2,
        "val_mae": float(np.abs(errors).mean()) * deviation,
        "val_r2": 1 - squared * deviation**2 / variance,
        "val_loss": squared,
    }
    return {"name": "always the mean", "metrics": metrics}


def mean_of_table(validation: Any, target: Target, *, is_ranked: bool) -> dict[str, Any]:
    """Return the baseline of the mean for a table's standardised validation targets, [n] or ranked (first column)."""
    numbers = validation[:, 0] if is_ranked else validation
    found = mean_of_targets(numbers, deviation=target.deviation, variance=target.variance)
    if is_ranked:
        from trainers.tasks.table.ranking import ndcg_without_order

        found["metrics"] |= ndcg_without_order(validation)
    return found
