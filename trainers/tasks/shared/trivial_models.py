"""Baselines that ignore the inputs: the most frequent class, or the mean. Shapes: n rows."""

import math
from typing import Any

import numpy as np

from trainers.tasks.shared.split_task import SplitTask
from trainers.tasks.table.columns import Vector
from trainers.tasks.table.targets import Target


def most_frequent_class(task: SplitTask) -> dict[str, Any]:
    """Return the baseline that predicts the classes' shares. It has no losses if a validation class is not trained."""
    training, validation = task.targets("train"), task.targets("validation")
    classes = len(task.classes)
    counts, occurs = np.bincount(training, minlength=classes), np.bincount(validation, minlength=classes) > 0
    guess, known = int(counts.argmax()), int(occurs.sum())
    right, shares = float((validation == guess).mean()), counts[validation] / counts.sum()
    metrics = {
        "val_error": 1 - right,
        "val_accuracy": right,
        "val_f1": 2 * right / (1 + right) / (known + (not occurs[guess])),
        "val_balanced_error": 1 - occurs[guess] / known,
    }
    if shares.all():
        weights = None if task.class_weights is None else np.asarray(task.class_weights)[validation]
        metrics["val_loss"] = float(np.average(-np.log(shares), weights=weights))
        metrics["val_log_loss"] = float(-np.log(shares).mean())
    if known > 1 and "val_auroc" in task.metric_names:
        of_positive = float((validation == task.positive).mean())
        metrics |= {"val_auroc": 0.5, "val_auprc": of_positive if classes == 2 else 1 / known}
    return {"name": "always the most frequent class", "metrics": metrics}


def mean_of_targets(validation: Vector, *, deviation: float, variance: float) -> dict[str, Any]:
    """Return the baseline that always predicts the mean of the training targets."""
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
    """Return the baseline that predicts the mean, for standardised targets: [n], or [n, 3] for ranked rows."""
    numbers = validation[:, 0] if is_ranked else validation
    found = mean_of_targets(numbers, deviation=target.deviation, variance=target.variance)
    if is_ranked:
        from trainers.tasks.table.ranking import ndcg_without_order

        found["metrics"] |= ndcg_without_order(validation)
    return found
