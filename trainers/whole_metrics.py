"""Metrics that are no means over samples, such as F1 and AUROC: collected over a whole part of the data, on all ranks.

A task's `whole_metrics(params)` gives objects with `update(outputs, targets)`, `compute()` and `merge_state(other)`, as
those of torchmetrics are. Each rank updates its own with its share of the samples; then they are brought together, and
merged in the order of the ranks, so that the result is that of one object that has seen all samples. What torchmetrics
refuses to merge is merged in `trainers.metric_states`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.ddp import Group
from trainers.metric_states import is_merged_here, keep_to_one_process, states_of, take_states
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
            if any(name == own or name.startswith(f"{own}.") for own in self._metrics):
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

        Where `compute()` gives a mapping, each number in it is a metric: `name.key`.

        Raises:
            TaskError: A metric cannot be merged, or is no number.
        """
        if not self._metrics:
            return {}
        if group.world_size == 1:
            return self._computed()
        # By way of the CPU: a tensor of another rank's GPU would stay there.
        own = {name: states_of(one) if is_merged_here(one) else _on(one, "cpu") for name, one in self._metrics.items()}
        everybody: list[Any] = [None] * group.world_size
        dist.all_gather_object(everybody, (self._samples, own))
        # A rank without samples has never called `update`, which some objects need before they can be merged.
        seen = [rank for rank, (samples, _) in enumerate(everybody) if samples] or [0]
        return self._of_one_rank([everybody[rank][1] for rank in seen], seen[0], group)

    def _of_one_rank(self, gathered: Sequence[Mapping[str, Any]], rank: int, group: Group) -> dict[str, float]:
        """Merge and compute on one rank, the first that has samples, and tell the others."""
        answer: list[Any] = [None]
        failure: Exception | None = None
        if group.rank == rank:
            try:
                if len(gathered) > 1:
                    self._merge(gathered, group.device)
                answer = [self._computed()]
            except Exception as error:  # noqa: BLE001 - raised below, once the others know
                answer, failure = [f"{error}"], error
        dist.broadcast_object_list(answer, src=rank)
        if failure is not None:
            raise failure
        if isinstance(answer[0], str):
            raise TaskError(answer[0])
        return cast("dict[str, float]", answer[0])

    def _merge(self, gathered: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        for name, metric in self._metrics.items():
            of_ranks = [one[name] for one in gathered]
            if is_merged_here(metric):
                take_states(name, metric, of_ranks, device)
            else:
                self._metrics[name] = _merged(name, of_ranks)

    def _computed(self) -> dict[str, float]:
        return {key: value for name, metric in self._metrics.items() for key, value in _numbers(name, metric).items()}


def _fresh(name: str, metric: Any, device: torch.device) -> Any:
    """Return a metric that has seen nothing, also where a task gives the same object each time."""
    needed = _NEEDED[:2] if is_merged_here(metric) else _NEEDED
    missing = [method for method in needed if not callable(getattr(metric, method, None))]
    if missing:
        raise TaskError(
            f"whole_metrics: {name!r} lacks {', '.join(missing)}; allowed: an object with {', '.join(_NEEDED)}"
        )
    metric = copy.deepcopy(metric)
    if callable(getattr(metric, "reset", None)):
        metric.reset()
    keep_to_one_process(metric)  # torchmetrics would add up over ranks once more what is merged here
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


def _numbers(name: str, metric: Any) -> dict[str, float]:
    """Return what a metric computes, by name; parts of a mapping that are no numbers are left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of data in which a class is missing, in every epoch and on every rank
        value = metric.compute()
    if isinstance(value, Mapping):
        found = {f"{name}.{key}": _number(part) for key, part in value.items()}
        numbers = {key: number for key, number in found.items() if number is not None}
    else:
        number = _number(value)
        numbers = {} if number is None else {name: number}
    if not numbers:
        raise TaskError(
            f"whole_metrics: {name!r} computes a {type(value).__name__}, allowed: one number, or a mapping with some"
        )
    return numbers


def _number(value: object) -> float | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.item())
    return float(value) if isinstance(value, int | float) else None
