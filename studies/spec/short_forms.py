"""Short forms of objectives and budgets, turned into the long forms that the checks of a spec read.

    objectives: [val_error, cost_usd]            objectives: {val_accuracy: max, cost_usd: min}
    budget: 10 min                               budget: $2, 40 trials

`search_spaces.space` reads the short forms of parameters.
"""

import re
from collections.abc import Mapping
from typing import Any

from search_spaces.wording import found, nearest, shown
from studies.records.records import DIRECTIONS
from studies.spec.metric_names import direction_is_guess, likely_direction
from studies.spec.spec_errors import SpecValueError

_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
_NUMBER = r"(?P<number>\d+(?:\.\d+)?)"
_USD_SIGN = re.compile(rf"\$ ?{_NUMBER}")
_USD_WORD = re.compile(rf"{_NUMBER} ?(?:usd|dollars?)")
_TIME = re.compile(rf"{_NUMBER} ?(?P<unit>{'|'.join(_SECONDS)})s?")
_TRIALS = re.compile(r"(?P<number>\d+) ?trials?")
_BUDGET = "a mapping, or text such as '10 min', '$2' or '$2, 40 trials'"


def in_full(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec with long forms of objectives and budget; SpecValueError if a short form cannot be read."""
    full = dict(raw)
    if "objectives" in full:
        full["objectives"] = _objectives(full["objectives"])
    if isinstance(full.get("budget"), str):
        full["budget"] = budget_of(full["budget"])
    return full


def budget_of(text: str) -> dict[str, float | int | None]:
    """Return the limits usd, hours and trials from a text; None for a limit that it does not name."""
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
