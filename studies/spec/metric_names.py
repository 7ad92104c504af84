"""Directions of metrics from their names, and short forms of objectives and budgets (`"val_error"`, `"10 min"`)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from search_spaces.messages import found, nearest, shown
from studies.records.records import DIRECTIONS, Direction
from studies.spec.spec_errors import SpecValueError

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
    """Return the metric to optimise by default."""
    return next((one for one in (*_PREFERRED, *metrics) if one in metrics), "val_loss")


def likely_direction(metric: str) -> Direction:
    """Return the better direction of a metric according to its name; "minimize" without a clue."""
    said = _directions_by_name(metric)
    return said[-1] if said else "minimize"


def direction_is_guess(metric: str) -> bool:
    """Return whether a metric's name has no clue, or contradictory clues, about its better direction."""
    said = _directions_by_name(metric)
    return not said or (said[-1] == "maximize" and "minimize" in said)


def _directions_by_name(metric: str) -> list[Direction]:
    """Return the directions of the words in a metric's name; the last counts most."""
    # `dice_loss` and `top5_error` are minimised, `cost_sensitive_accuracy` is maximised. "score" follows the other
    # words. "neg" is no clue: `neg_mean_squared_error` is maximised, `negative_log_likelihood` is minimised.
    words = re.split(r"[^a-z0-9]+", metric.lower())
    if not _TURNS.isdisjoint(words):
        return []
    said = [(word, direction) for word in words if (direction := _direction_of(word)) is not None]
    return [direction for word, direction in said if word != _SCORE] or [direction for _, direction in said]


def _direction_of(word: str) -> Direction | None:
    if _SMALLER_IS_BETTER.fullmatch(word):
        return "minimize"
    return "maximize" if _LARGER_IS_BETTER.fullmatch(word) else None


_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
_NUMBER = r"(?P<number>\d+(?:\.\d+)?)"
_USD_SIGN = re.compile(rf"\$ ?{_NUMBER}")
_USD_WORD = re.compile(rf"{_NUMBER} ?(?:usd|dollars?)")
_TIME = re.compile(rf"{_NUMBER} ?(?P<unit>{'|'.join(_SECONDS)})s?")
_TRIALS = re.compile(r"(?P<number>\d+) ?trials?")
_BUDGET = "a mapping, or text such as '10 min', '$2' or '$2, 40 trials'"


def in_long_form(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with objectives and budget in long form. Raises SpecValueError if unreadable."""
    full = dict(raw)
    if "objectives" in full:
        full["objectives"] = _objectives(full["objectives"])
    if isinstance(full.get("budget"), str):
        full["budget"] = budget_of(full["budget"])
    return full


def budget_of(text: str) -> dict[str, float | int | None]:
    """Return the limits usd, hours and trials of a text such as `10 min`; None for other limits."""
    limits: dict[str, float | int | None] = {"usd": None, "hours": None, "trials": None}
    for part in text.lower().split(","):
        name, value = _limit(part.strip())
        if name is None or limits[name] is not None or value <= 0:
            raise SpecValueError(found(text, _BUDGET), ("budget",))
        limits[name] = value
    return limits


def _limit(text: str) -> tuple[str | None, float | int]:
    if match := _USD_SIGN.fullmatch(text) or _USD_WORD.fullmatch(text):
        return "usd", float(match["number"])
    if match := _TRIALS.fullmatch(text):
        return "trials", int(match["number"])
    if match := _TIME.fullmatch(text):
        return "hours", float(match["number"]) * _SECONDS[match["unit"]] / 3600
    return None, 0


def _objectives(given: object) -> object:
    if isinstance(given, str):
        return [_named(given, 0)]
    if isinstance(given, Mapping) and "metric" not in given:
        return [_directed(name, said) for name, said in given.items()]
    if isinstance(given, list | tuple):
        return [written for index, one in enumerate(given) for written in _one(one, index)]
    return given


def _one(given: object, index: int) -> list[object]:
    if isinstance(given, str):
        return [_named(given, index)]
    if not isinstance(given, Mapping) or not given or not all(isinstance(said, str) for said in given.values()):
        return [given]
    if any(nearest(name, ("metric", "direction")) for name in given):  # the long form, perhaps misspelt
        return [given]
    return [_directed(name, said, index) for name, said in given.items()]


def _named(metric: str, index: int) -> dict[str, object]:
    if direction_is_guess(metric):
        problem = f"found {shown(metric)}, whose name does not show which direction is better, allowed: "
        raise SpecValueError(f"{problem}{{{metric}: min}} or {{{metric}: max}}", ("objectives", index))
    return {"metric": metric, "direction": likely_direction(metric)}


def _directed(metric: object, said: object, *index: int) -> dict[str, object]:
    direction = DIRECTIONS.get(said, said) if isinstance(said, str) else None
    if direction not in DIRECTIONS.values():
        raise SpecValueError(found(said, "min or max"), ("objectives", *index, str(metric)))
    return {"metric": metric, "direction": direction}
