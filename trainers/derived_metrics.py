"""Metrics that a task works out of others, such as perplexity out of the loss.

A task's `derived_metrics(metrics, params)` is given the metrics of an epoch, means over all ranks' samples and times
among them, and returns further ones by name. It is called on every rank with the same numbers, and for the test part
with what is measured there: what it cannot derive from that it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from trainers.protocol import TaskError
from trainers.task import Params, Task, refuse_our_metrics


def with_derived(task: Task, metrics: Mapping[str, float], params: Params) -> dict[str, float]:
    """Return metrics with those that the task derives from them.

    Raises:
        TaskError: The task gives no numbers, or one under a name that is taken.
    """
    derive = cast("Callable[..., object] | None", getattr(task, "derived_metrics", None))
    derived = {} if derive is None else derive(dict(metrics), params)
    if not isinstance(derived, Mapping) or not all(isinstance(value, int | float) for value in derived.values()):
        raise TaskError(f"derived_metrics: found {derived!r:.200}, allowed: a mapping of names to numbers")
    refuse_our_metrics(task, derived)
    for name in derived:
        if name in metrics:
            raise TaskError(f"derived_metrics: found {name!r}, allowed: any other name, since it is measured already")
    return {**metrics, **{name: float(value) for name, value in derived.items()}}
