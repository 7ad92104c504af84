"""Default objectives of a generated spec: one metric of the model's quality, and dollars."""

from __future__ import annotations

import re
from collections.abc import Sequence

from automl.launching.probing import TaskFacts
from studies.records import Direction
from trainers.protocol import OUR_METRICS

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


def quality_of(facts: TaskFacts) -> str:
    """Return the metric of a task to optimise: of a training function one that it reports, validation first."""
    reported = [name for name in facts.reported if name not in OUR_METRICS]
    of_validation = sorted(reported, key=lambda name: not name.startswith("val"))
    return quality_metric(facts.metrics or of_validation or ("val_error",))


def likely_direction(metric: str) -> Direction:
    """Return which values of a metric are better, as far as its name says so."""
    return "maximize" if _LARGER_IS_BETTER.search(metric) else "minimize"
