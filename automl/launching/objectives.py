"""Default objectives of a generated spec: one metric of the model's quality, and dollars."""

from __future__ import annotations

import re
from collections.abc import Sequence

from automl.launching.probing import TaskFacts
from studies.records import Direction
from trainers.protocol import OUR_METRICS

_PREFERRED = ("val_error", "val_ndcg", "val_mse")
_LARGER_IS_BETTER = re.compile(
    r"(?:acc|accuracy|ap|auc|auprc|auroc|bleu|correlation|dice|f1|iou|jaccard|kappa|likelihood|map|mcc|miou|mrr|ndcg"
    r"|precision|psnr|r2|recall|returns?|rewards?|rouge|score|ssim|success|top)\d*"  # acc1, map50, top5
)
_SMALLER_IS_BETTER = re.compile(
    r"brier|bytes|cer|cost|deviance|divergence|entropy|err|errors?|fid|latency|logloss|loss|losses|lpips|mae|mape|mse"
    r"|nll|parameters|perplexity|ppl|regret|rmse|rmsle|seconds|smape|usd|wer"
)
_TURNS = frozenset({"neg", "negative"})


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
    return _direction_by_name(metric) or "minimize"


def direction_is_guess(metric: str) -> bool:
    """Return whether the name of a metric does not say which values are better."""
    return _direction_by_name(metric) is None


def _direction_by_name(metric: str) -> Direction | None:
    """The direction that a metric's name has a word for; None without one.

    A word for smaller values comes first: a `dice_loss` and a `top5_error` are minimised. A negative is left open:
    `neg_mean_squared_error` is maximised, `negative_log_likelihood` is minimised.
    """
    words = re.split(r"[^a-z0-9]+", metric.lower())
    if not _TURNS.isdisjoint(words):
        return None
    if any(map(_SMALLER_IS_BETTER.fullmatch, words)):
        return "minimize"
    return "maximize" if any(map(_LARGER_IS_BETTER.fullmatch, words)) else None
