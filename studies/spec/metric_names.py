"""Metrics by their names: the metric to optimise, and the direction in which each is better."""

import re
from collections.abc import Sequence

from studies.records.records import Direction

_PREFERRED = ("val_error", "val_ndcg", "val_rmse", "val_mse")
_LARGER_IS_BETTER = re.compile(
    r"(?:acc|accuracy|ap|auc|auprc|auroc|bleu|correlation|dice|f1|iou|jaccard|kappa|likelihood|map|mcc|miou|mrr|ndcg"
    r"|precision|psnr|r2|recall|returns?|rewards?|rouge|score|ssim|success|top)\d*"  # acc1, map50, top5
)
_SMALLER_IS_BETTER = re.compile(
    r"brier|bytes|cer|cost|deviance|divergence|entropy|err|errors?|fid|latency|logloss|loss|losses|lpips|mae|mape|mse"
    r"|nll|parameters|perplexity|ppl|regret|rmse|rmsle|seconds|smape|usd|wer"
)
_TURNS = frozenset({"neg", "negative"})
_SCORE = "score"


def quality_metric(metrics: Sequence[str]) -> str:
    """Return the metric to optimise: the first error, else the first metric, else `val_loss`."""
    return next((one for one in (*_PREFERRED, *metrics) if one in metrics), "val_loss")


def likely_direction(metric: str) -> Direction:
    """Return the better direction of a metric, as its name shows it; minimize if it shows none."""
    said = _directions_by_name(metric)
    return said[-1] if said else "minimize"


def direction_is_guess(metric: str) -> bool:
    """Return True if the name of a metric shows no direction, or both."""
    said = _directions_by_name(metric)
    return not said or (said[-1] == "maximize" and "minimize" in said)


def _directions_by_name(metric: str) -> list[Direction]:
    """Return the directions of the words of a metric's name, in order; the last word decides."""
    # A `dice_loss` and a `top5_error` are minimised, a `cost_sensitive_accuracy` is maximised. "score" follows
    # the other words. "neg" stays open: `neg_mean_squared_error` is maximised, `negative_log_likelihood` is minimised.
    words = re.split(r"[^a-z0-9]+", metric.lower())
    if not _TURNS.isdisjoint(words):
        return []
    said = [(word, direction) for word in words if (direction := _direction_of(word)) is not None]
    return [direction for word, direction in said if word != _SCORE] or [direction for _, direction in said]


def _direction_of(word: str) -> Direction | None:
    if _SMALLER_IS_BETTER.fullmatch(word):
        return "minimize"
    return "maximize" if _LARGER_IS_BETTER.fullmatch(word) else None
