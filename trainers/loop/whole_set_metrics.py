"""Metrics that are not means over samples, such as F1 and AUROC, computed from all ranks' samples.

A task's `whole_metrics(params)` returns objects with `update(outputs, targets)`, `compute()` and `merge_state(other)`,
as in torchmetrics; ranks' objects are merged in rank order. An object with `metric_names` computes a mapping with some
of these metrics, and with their standard errors as `NAME_stderr`. An object that computes a number may have
`standard_error()`, which returns a number or None.

torchmetrics' `merge_state` merges only pairs, sometimes inexactly. Here each state is reduced over all ranks at once,
as when torchmetrics synchronizes processes.
"""

import copy
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.contract.task import Params, Task, refuse_our_metrics
from trainers.data.nested_tensors import to_device
from trainers.protocol import STDERR, TaskError
from trainers.ranks.process_group import Group, gathered

States = Mapping[str, Mapping[str, Any]]
"""Values of metric states by path of the metric within an object, and by name."""
_CPU = torch.device("cpu")


def is_merged_here(metric: object) -> bool:
    """Return whether an object consists of torchmetrics metrics without their own `merge_state`."""
    base = _base()
    if base is None or not isinstance(metric, nn.Module):
        return False
    own = getattr(base, "merge_state", None)  # missing in torchmetrics 1.4
    parts: list[Any] = [part for part in metric.modules() if isinstance(part, base)]
    return bool(parts) and all(getattr(type(part), "merge_state", None) is own for part in parts)


def keep_to_one_process(metric: Any) -> None:
    """Prevent an object and its parts from exchanging states with other processes in `compute`."""
    for part in metric.modules() if isinstance(metric, nn.Module) else [metric]:
        if hasattr(part, "sync_on_compute"):
            part.sync_on_compute = part._to_sync = False  # noqa: SLF001 - `compute` reads it
        if getattr(part, "_groups_checked", None) is False:
            # A collection would decide from one rank's first batch which metrics share a state.
            part._enable_compute_groups = False  # noqa: SLF001


def states_of(metric: nn.Module) -> States:
    """Return the states of an object's metrics, on the CPU."""
    items: Any = getattr(metric, "items", None)
    if callable(items):
        list(items())  # a collection copies shared states when its metrics are read
    return {path: to_device(dict(part.metric_state), _CPU) for path, part in _parts(metric)}


def take_states(name: str, metric: nn.Module, states: Sequence[States], device: torch.device) -> None:
    """Give `metric` the merged `states` of all ranks with samples, in rank order."""
    for path, part in _parts(metric):
        for state, reduction in part._reductions.items():  # noqa: SLF001 - not public
            of_ranks = [one[path][state] for one in states]
            try:
                reduced = _reduced(of_ranks, reduction)
            except (RuntimeError, TypeError, ValueError) as error:
                raise TaskError(
                    f"whole_metrics: {name!r} cannot join {state!r}: {' '.join(str(error).split())}"
                ) from error
            setattr(part, state, to_device(reduced, device))
        part._computed = None  # noqa: SLF001 - a wrapper may have already computed


def _reduced(of_ranks: Sequence[Any], reduction: Callable[[Any], Any] | None) -> Any:
    kind = getattr(reduction, "__name__", "")
    if all(isinstance(one, (list, tuple)) for one in of_ranks):
        joined = [value for one in of_ranks for value in one]
        return joined if reduction is None or kind == "dim_zero_cat" or not joined else reduction(joined)
    if kind == "dim_zero_cat":
        return torch.cat([one if one.dim() else one.unsqueeze(0) for one in of_ranks])
    if kind == "dim_zero_mean":
        if all(torch.equal(one, of_ranks[0]) for one in of_ranks):
            return of_ranks[0]
        raise ValueError(
            "dist_reduce_fx='mean' is not the mean of all samples if ranks have different numbers of samples. Use two "
            "states with 'sum', one for the sum of the values and one for their number"
        )
    stacked = torch.stack(list(of_ranks))
    return stacked if reduction is None else reduction(stacked)


def _parts(metric: nn.Module) -> Iterator[tuple[str, Any]]:
    base = _base()
    assert base is not None, "only torchmetrics' objects have states"  # noqa: S101
    yield from ((path, part) for path, part in metric.named_modules() if isinstance(part, base))


def _base() -> type[Any] | None:
    """Return torchmetrics' base class of metrics; None unless imported."""
    module = sys.modules.get("torchmetrics.metric")
    return None if module is None else module.Metric


_NEEDED = ("update", "compute", "merge_state")


class WholeMetrics:
    """A task's whole-set metrics in one evaluation, on one rank; may be empty."""

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
        """Metrics that the task's objects declare."""
        return tuple(one for metric in self._metrics.values() for one in getattr(metric, "metric_names", ()))

    def refuse(self, names: Iterable[str]) -> None:
        """Raise TaskError for names that the task's `metrics` also returns."""
        for name in names:
            if name in self.names or any(name == own or name.startswith(f"{own}.") for own in self._metrics):
                raise TaskError(f"whole_metrics: metrics() also returns {name!r}. Choose another name")

    def update(self, outputs: Any, targets: Any, samples: int) -> None:
        """Add a batch to all metrics."""
        for one in self._metrics.values():
            one.update(outputs, targets)
        self._samples += samples

    def values(self, group: Group) -> dict[str, float]:
        """Return each metric over all ranks' samples. A collective.

        Numbers of a mapping are called `name.key`, or `key` if the object has `metric_names`.
        Raises TaskError if a metric cannot be merged, or is not a number.
        """
        if not self._metrics:
            return {}
        if group.world_size == 1:
            return self._computed()
        # Gathered on the CPU: a tensor from another rank's GPU would stay on that GPU.
        own = {name: states_of(one) if is_merged_here(one) else _on(one, "cpu") for name, one in self._metrics.items()}
        everybody = gathered((self._samples, own), group)
        # A rank without samples has never called `update`, which some objects need before they can be merged.
        seen = [rank for rank, (samples, _) in enumerate(everybody) if samples] or [0]
        return self._of_one_rank([everybody[rank][1] for rank in seen], seen[0], group)

    def _of_one_rank(self, gathered: Sequence[Mapping[str, Any]], rank: int, group: Group) -> dict[str, float]:
        """Merge and compute the metrics on the first rank with samples, and send the result to all ranks."""
        answer: list[Any] = [None]
        failure: Exception | None = None
        if group.rank == rank:
            try:
                if len(gathered) > 1:
                    self._merge(gathered, group.device)
                answer = [self._computed()]
            except Exception as error:  # noqa: BLE001 - raised below, after the broadcast
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
    """Return a reset copy, because a task may return the same object each time."""
    needed = _NEEDED[:2] if is_merged_here(metric) else _NEEDED
    missing = [method for method in needed if not callable(getattr(metric, method, None))]
    if missing:
        raise TaskError(
            f"whole_metrics: {name!r} lacks {', '.join(missing)}. Return an object with {', '.join(_NEEDED)}"
        )
    metric = copy.deepcopy(metric)
    if callable(getattr(metric, "reset", None)):
        metric.reset()
    keep_to_one_process(metric)  # torchmetrics would reduce the merged states over ranks again
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
    """Return a metric's numbers by name. Ignores other parts of a mapping."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a missing class would warn in every epoch and on every rank
        value = metric.compute()
    if isinstance(value, Mapping) and hasattr(metric, "metric_names"):
        return dict(value)  # may be empty, if the samples lack a class
    if isinstance(value, Mapping):
        found = {f"{name}.{key}": _number(part) for key, part in value.items()}
        numbers = {key: number for key, number in found.items() if number is not None}
    else:
        number = _number(value)
        numbers = {} if number is None else {name: number}
        error = metric.standard_error() if numbers and hasattr(metric, "standard_error") else None
        numbers |= {} if error is None else {f"{name}{STDERR}": error}
    if not numbers:
        raise TaskError(
            f"whole_metrics: {name!r} computes a {type(value).__name__}, allowed: a number, or a mapping with numbers"
        )
    return numbers


def _number(value: object) -> float | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.item())
    return float(value) if isinstance(value, int | float) else None
