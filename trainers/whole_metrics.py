"""Metrics that are no means over samples, such as F1 and AUROC: collected over a whole part of the data, on all ranks.

A task's `whole_metrics(params)` gives objects with `update(outputs, targets)`, `compute()` and `merge_state(other)`, as
those of torchmetrics are. Each rank updates its own with its share of the samples; then they are brought together, and
merged in the order of the ranks, so that the result is that of one object that has seen all samples.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.ddp import Group
from trainers.protocol import TaskError
from trainers.task import Params, Task, refuse_our_metrics

_NEEDED = ("update", "compute", "merge_state")


class WholeMetrics:
    """The objects of one evaluation on one rank; none where the task has none.

    Args:
        task: The task.
        params: The trial's parameters.
        device: Device of the outputs.

    Raises:
        TaskError: The task gives something else.
    """

    def __init__(self, task: Task, params: Params, device: torch.device) -> None:
        make = cast("Callable[[Params], object] | None", getattr(task, "whole_metrics", None))
        made = {} if make is None else make(params)
        if not isinstance(made, Mapping):
            raise TaskError(f"whole_metrics: found a {type(made).__name__}, allowed: a mapping of names to objects")
        refuse_our_metrics(task, made)
        self._metrics: dict[str, Any] = {name: _fresh(name, one, device) for name, one in sorted(made.items())}
        self._samples = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics, sorted."""
        return tuple(self._metrics)

    def refuse(self, names: Iterable[str]) -> None:
        """Refuse metrics that `metrics` gives as well.

        Raises:
            TaskError: There is one.
        """
        for name in names:
            if name in self._metrics:
                raise TaskError(f"whole_metrics: found {name!r}, allowed: any other name, since metrics gives it, too")

    def update(self, outputs: Any, targets: Any, samples: int) -> None:
        """Take a batch in.

        Args:
            outputs: The model's outputs.
            targets: Their targets.
            samples: Number of samples in the batch.
        """
        for one in self._metrics.values():
            one.update(outputs, targets)
        self._samples += samples

    def values(self, group: Group) -> dict[str, float]:
        """Return each metric over the samples of all ranks; a collective, unless the task has none.

        Raises:
            TaskError: A metric cannot be merged, or is no number.
        """
        if not self._metrics:
            return {}
        everybody: list[Any] = [(self._samples, self._metrics)]
        if group.world_size > 1:  # by way of the CPU: a tensor of another rank's GPU would stay there
            own = (self._samples, {name: _on(metric, "cpu") for name, metric in self._metrics.items()})
            everybody = [None] * group.world_size
            dist.all_gather_object(everybody, own)
        # A rank without samples has never called `update`, which some objects need before they can be merged.
        seen = [metrics for samples, metrics in everybody if samples] or [everybody[0][1]]
        return {name: _number(name, _merged(name, [metrics[name] for metrics in seen])) for name in self._metrics}


def _fresh(name: str, metric: Any, device: torch.device) -> Any:
    """Return a metric that has seen nothing, also where a task gives the same object each time."""
    missing = [needed for needed in _NEEDED if not callable(getattr(metric, needed, None))]
    if missing:
        raise TaskError(
            f"whole_metrics: {name!r} lacks {', '.join(missing)}; allowed: an object with {', '.join(_NEEDED)}"
        )
    metric = copy.deepcopy(metric)
    if callable(getattr(metric, "reset", None)):
        metric.reset()
    if hasattr(metric, "sync_on_compute"):
        metric.sync_on_compute = False  # torchmetrics would add up over ranks once more what is merged here
    return _on(metric, device)


def _on(metric: Any, device: torch.device | str) -> Any:
    return metric.to(device) if callable(getattr(metric, "to", None)) else metric


def _merged(name: str, metrics: list[Any]) -> Any:
    first, *others = metrics
    try:
        for other in others:
            first.merge_state(other)
    except RuntimeError as error:
        raise TaskError(f"whole_metrics: {name!r} cannot be merged: {' '.join(str(error).split())}") from error
    return first


def _number(name: str, metric: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of data in which a class is missing, in every epoch and on every rank
        value = metric.compute()
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.item())
    if isinstance(value, int | float):
        return float(value)
    raise TaskError(f"whole_metrics: {name!r} computes a {type(value).__name__}, allowed: one number")
