"""What a task proposes for a study: parameters to begin with, and baselines to compare with.

Importing this module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.protocol import Params, TaskError
from trainers.task import Task


def first_trials_of(task: Task) -> tuple[Params, ...]:
    """Return parameters with which a search of the task's own space begins, those of its baselines first.

    Raises:
        TaskError: Its `first_trials()` or `baselines()` returns something else than a list of mappings.
    """
    named = task.first_trials() if hasattr(task, "first_trials") else ()
    if not _are_mappings(named):
        allowed = "a list of mappings from names to values"
        raise TaskError(f"{type(task).__name__}.first_trials(): found {_a(named)}, allowed: {allowed}")
    tried = [one["params"] for one in baselines_of(task) if "params" in one]
    return (*tried, *(dict(one) for one in named if dict(one) not in tried))


def baselines_of(task: Task) -> tuple[dict[str, Any], ...]:
    """Return what the task's models are compared with; empty if it names nothing.

    Returns:
        For each baseline its `name`, and either the `params` of a trial, or the `metrics` that it is known to have
        without any training.

    Raises:
        TaskError: Its `baselines()` returns something else.
    """
    if not hasattr(task, "baselines"):
        return ()
    named = task.baselines()
    where = f"{type(task).__name__}.baselines()"
    if not _are_mappings(named):
        allowed = "a list of mappings, each with a name, and either params or metrics"
        raise TaskError(f"{where}: found {_a(named)}, allowed: {allowed}")
    return tuple(_checked(dict(one), f"{where}[{place}]") for place, one in enumerate(named))


def _checked(one: dict[str, Any], where: str) -> dict[str, Any]:
    name = one.get("name")
    if not isinstance(name, str) or not name.strip():
        raise TaskError(f"{where}: found the name {name!r}, allowed: a text that is not empty")
    kinds = [key for key in ("params", "metrics") if isinstance(one.get(key), Mapping) and one[key]]
    if len(kinds) != 1 or len(one) != 2:
        problem = f"found the keys {', '.join(map(repr, one))}"
        raise TaskError(f"{where}: {problem}, allowed: name, and either params or metrics, a mapping that is not empty")
    if kinds == ["params"]:
        return {"name": name, "params": dict(one["params"])}
    for metric, value in one["metrics"].items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise TaskError(f"{where}: metric {metric!r}: found {value!r}, allowed: a finite number")
    return {"name": name, "metrics": {str(metric): float(value) for metric, value in one["metrics"].items()}}


def _are_mappings(value: object) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and all(isinstance(one, Mapping) for one in value)  # type: ignore[attr-defined]


def _a(value: object) -> str:
    return f"a {type(value).__name__}"
