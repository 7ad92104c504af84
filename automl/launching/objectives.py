"""Default objectives of a generated spec: one metric of the model's quality, and dollars."""

from __future__ import annotations

import re
from collections.abc import Sequence

from studies.records import Direction

_PREFERRED = ("val_error", "val_ndcg", "val_mse")
_LARGER_IS_BETTER = re.compile(
    r"(?:^|_)(?:acc|accuracy|auc|auroc|auprc|bleu|dice|f1|iou|map|ndcg|precision|r2|recall|score)(?:_|$)"
)


def quality_metric(metrics: Sequence[str]) -> str:
    """Return the metric to optimise among those that a task measures: an error if there is one, else the first.

    Args:
        metrics: Names of the task's metrics; without any it is `val_loss`, which every trial measures.
    """
    return next((one for one in (*_PREFERRED, *metrics) if one in metrics), "val_loss")


def likely_direction(metric: str) -> Direction:
    """Return which values of a metric are better, as far as its name says so."""
    return "maximize" if _LARGER_IS_BETTER.search(metric) else "minimize"
