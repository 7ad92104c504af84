"""Thresholds of two classes and intervals of numbers, learned on the validation part."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_TUNED = {"val_f1": "val_f1", "val_balanced_error": "val_balanced_error", "val_auprc": "val_f1"}
"""Metric that the threshold of two classes optimises, by objective; AUPRC judges the precision and recall of F1."""
SHARE = 0.9  # share of true values that intervals are to contain
_MOST_BINS, _ROWS_OF_A_BIN, _FEW_BINS, _FEWEST_ROWS = 20, 100, 3, 30


def tuned_metric(objectives: Iterable[str]) -> str | None:
    """Return the metric that a threshold is chosen by, or None for objectives that do not depend on decisions."""
    return next((_TUNED[one] for one in objectives if one in _TUNED), None)


def threshold_of(scores: Values, is_positive: NDArray[np.bool_], metric: str) -> dict[str, Any] | None:
    """Return the least score of positive answers with the best macro F1 or balanced error, beside the usual 0.5.

    Args:
        scores: Probabilities of the positive class, [n].
        is_positive: Rows of that class, [n]. None is returned if all rows have the same class.
    """
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    if not positives or not negatives:
        return None
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.flatnonzero(np.append(ranked[1:] < ranked[:-1], True))  # equal scores get the same answer
    hits = np.append(0, np.cumsum(is_positive[order])[ends]).astype(np.float64)
    alarms = np.append(0, ends + 1) - hits
    quality = _quality(hits, alarms, positives, negatives, metric)
    cuts = np.concatenate([[1.0 + 1e-9], (ranked[ends[:-1]] + ranked[ends[:-1] + 1]) / 2, [0.0]])
    best = np.flatnonzero(quality >= quality.max() - 1e-12)
    place = best[np.abs(cuts[best] - 0.5).argmin()]
    usual = int((ranked[ends] >= 0.5).sum())
    signs = -1 if metric == "val_balanced_error" else 1
    return {
        "at_least": float(cuts[place]), "metric": metric,
        "value": float(signs * quality[place]), "value_at_half": float(signs * quality[usual]),
    }  # fmt: skip


def _quality(hits: Values, alarms: Values, positives: int, negatives: int, metric: str) -> Values:
    """Return macro F1, or the negative balanced error, for numbers of true and false positive answers."""
    misses, silences = positives - hits, negatives - alarms
    if metric == "val_balanced_error":
        return -(misses / positives + alarms / negatives) / 2
    of_positive = 2 * hits / (2 * hits + alarms + misses)
    return (of_positive + 2 * silences / (2 * silences + alarms + misses)) / 2


def intervals_of(values: Values, truth: Values) -> dict[str, Any] | None:
    """Return distances of the ends of 90 % intervals from a predicted value, by that value; None for under 30 rows.

    Split conformal prediction (Lei et al. 2018, arXiv 1604.04173), where each bin of predicted values has its own
    quantiles of the errors, as in Mondrian conformal prediction: the interval is wide where errors are large.

    Returns:
        `at`, the median of each bin, ascending, and for each `low` (at most 0) and `high` (at least 0).
    """
    bins = min(_MOST_BINS, max(len(values) // _ROWS_OF_A_BIN, min(_FEW_BINS, len(values) // _FEWEST_ROWS)))
    if bins == 0 or not np.isfinite(values).all():
        return None
    found: dict[float, tuple[float, float]] = {}
    for rows in np.array_split(np.argsort(values, kind="stable"), bins):
        errors = np.sort((truth - values)[rows])
        rank = min(len(rows), math.ceil((len(rows) + 1) * (1 + SHARE) / 2))
        ends = min(0.0, float(errors[-rank])), max(0.0, float(errors[rank - 1]))
        found.setdefault(float(np.median(values[rows])), ends)
    low, high = zip(*found.values(), strict=True)
    return {"share": SHARE, "at": list(found), "low": list(low), "high": list(high)}
