"""Describes a model's answers to validation samples: what is right and wrong, and which columns of the data they need.

A task's `answer_summary()` returns an object like an object of `whole_metrics` with `metric_names`, whose values may be
any plain values, or None. A task whose inputs are rows [n, columns] may also have `input_columns`: the places of each
column of the data in a row. Such a column's importance is the change of the metrics once its values are shuffled among
the rows (permutation importance: Breiman, Random Forests, 2001, section 10).
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.contract.task import Params, Task
from trainers.data.samples import Samples, TensorSamples
from trainers.loop.whole_set_metrics import WholeMetrics
from trainers.protocol import STDERR
from trainers.ranks.process_group import Group

_MOST_ROWS = 2000  # most rows to shuffle, a sample of more
_LEAST_ROWS = 500  # rows up to which copies of few rows are shuffled
_SEED = 0

Measured = Callable[..., Mapping[str, Any]]


def can_explain(task: Task) -> bool:
    """Return whether a task describes a model's answers."""
    return getattr(task, "answer_summary", lambda: None)() is not None


def described(
    task: Any, params: Params, samples: Samples, *, measured: Measured, group: Group, seconds: float
) -> dict[str, Any]:
    """Return the task's description, `samples`, and `importance`; collective, all ranks have to take part.

    `importance` has `metrics` of the rows as they are, `columns`, the metrics with each column shuffled, and
    `left_out`, the number of columns for which `seconds` were too short. `measured` returns metrics of samples.
    """
    summary = task.answer_summary()
    told = measured(samples, WholeMetrics(cast("Task", _Summarised(summary)), params, group.device))
    found = {"samples": len(samples), **{name: told[name] for name in summary.metric_names}}
    columns: Mapping[str, Sequence[int]] = getattr(task, "input_columns", {})
    if columns:
        inputs, targets = task.validation_data(params)
        found["importance"] = _importance(inputs, targets, columns, measured=measured, group=group, seconds=seconds)
    return found


def _importance(
    inputs: Tensor,
    targets: Tensor,
    columns: Mapping[str, Sequence[int]],
    *,
    measured: Measured,
    group: Group,
    seconds: float,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(_SEED)
    rows = torch.randperm(len(inputs), generator=generator)[:_MOST_ROWS].repeat(max(1, _LEAST_ROWS // len(inputs)))
    inputs, targets = inputs[rows], targets[rows]
    started = time.perf_counter()
    metrics = _plain(measured(TensorSamples(inputs, targets, group.device)))
    taken = torch.tensor([time.perf_counter() - started], dtype=torch.float64, device=group.device)
    if group.world_size > 1:
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)  # all ranks have to measure equally many columns
    most = max(1, int(seconds / taken.item()) - 2)  # the rows as they are were evaluated twice
    shuffled = {}
    for name in list(columns)[:most]:
        mixed, places = inputs.clone(), list(columns[name])
        mixed[:, places] = inputs[torch.randperm(len(inputs), generator=generator)][:, places]
        shuffled[name] = _plain(measured(TensorSamples(mixed, targets, group.device)))
    return {"metrics": metrics, "columns": shuffled, "left_out": len(columns) - len(shuffled)}


def _plain(metrics: Mapping[str, float]) -> dict[str, float]:
    finite = {name: value for name, value in metrics.items() if math.isfinite(value) and not name.endswith(STDERR)}
    return {name: float(f"{value:.6g}") for name, value in finite.items()}


class _Summarised:
    """A task whose only metrics of a whole set are a description of answers."""

    def __init__(self, summary: Any) -> None:
        self.whole_metrics = lambda _params: {"answers": summary}
