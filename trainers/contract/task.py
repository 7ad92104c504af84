"""What a user writes to have a model searched: a `Task`. Importing this module does not import torch.

A class needs no base class; `BaseTask` saves a few lines for classifiers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

from search_spaces.space import Space
from trainers.protocol import OUR_METRICS, TaskError
from trainers.protocol import Params as Params  # noqa: PLC0414 - tasks import it from here

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    Samples: TypeAlias = "tuple[Tensor, Tensor] | Dataset[Any]"

_CLASSIFIER_METRICS = ("val_error", "val_accuracy")


@runtime_checkable
class Task(Protocol):
    """A model family, its data and how it is judged; n is the number of samples in a batch.

    Data is a pair (inputs, targets) of tensors, first dimension samples, or a map-style Dataset of such pairs. It has
    to be the same in every process. May also have `test_data(params)`, `space()` (the default search space),
    `first_trials()` (parameters known to be good, each a mapping, with which a search of that space begins),
    `baselines()` (what its models are compared with: see `baselines_of`),
    `parameters` (names that it takes besides the trainer's own), `metric_names` (what `metrics` returns),
    `smoothed_loss(outputs, targets, smoothing)` (its loss in training where `label_smoothing` is above 0) and
    `weights(targets)`: how much each sample counts in the means of the loss and of metrics, as a mapping of "loss" and
    names of metrics to tensors of shape [n], for example numbers of tokens; what it does not name counts samples once;
    and `optimizer(model, learning_rate, params)`, `schedule(step, steps, params)` and `rate_factors(model, params)`:
    see `trainers.model.optimizers`;
    and `whole_metrics(params)`, objects for metrics that are no means over samples: see
    `trainers.loop.collected_metrics`; and
    `derived_metrics(metrics, params)`, metrics worked out of others: see `trainers.loop.evaluation`; and
    `collate(samples)`, which makes a list of a Dataset's or stream's samples a pair (inputs, targets).
    """

    def train_data(self, params: Params, /) -> Samples:
        """Return the samples to train on."""

    def validation_data(self, params: Params, /) -> Samples:
        """Return the samples that metrics are averaged over."""

    def model(self, params: Params, /) -> nn.Module:
        """Return a fresh model; its initial weights come from torch's global generator, which is seeded before."""

    def loss(self, outputs: Any, targets: Any, /) -> Tensor:
        """Return the loss of each sample, shape [n]: exact sums over ranks need them one by one."""

    def metrics(self, outputs: Any, targets: Any, /) -> Mapping[str, Tensor]:
        """Return each metric of each sample, shape [n]; the names are used literally, for example "val_error"."""


class BaseTask:
    """Defaults of a classifier: cross entropy, `val_error` and `val_accuracy`; outputs [n, classes], targets [n]."""

    parameters: Sequence[str] = ()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's cross entropy in nats, shape [n]."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets, reduction="none")

    def smoothed_loss(self, outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Return each sample's cross entropy with `smoothing` of its target spread over all classes, shape [n]."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return for each sample whether it was classified wrongly, and rightly; shape [n] each."""
        wrong = outputs.argmax(dim=-1) != targets
        return {"val_error": wrong, "val_accuracy": ~wrong}


def parameters_of(task: Task) -> tuple[str, ...]:
    """Return the names of the parameters that a task takes besides the trainer's own."""
    return tuple(getattr(task, "parameters", ()))


def space_of(task: Task) -> Space | None:
    """Return the task's own search space, None if it has none.

    Raises:
        TaskError: Its `space()` returns something else.
    """
    if not hasattr(task, "space"):
        return None
    space = task.space()
    if isinstance(space, Space):
        return space
    allowed = "a Space of search_spaces.space" + (", as Space.from_dict makes" if isinstance(space, Mapping) else "")
    raise TaskError(f"{type(task).__name__}.space(): found {_a(space)}, allowed: {allowed}")


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
    return tuple(_checked_baseline(dict(one), f"{where}[{place}]") for place, one in enumerate(named))


def model_of(task: Task, params: Params) -> nn.Module:
    """Return a fresh model of a task, to be trained.

    One that is in evaluation mode as a whole, as `from_pretrained` of Hugging Face returns it, is put into training
    mode; single layers that are in evaluation mode stay in it, since the task has frozen them.

    Raises:
        TaskError: Its `model(params)` returns something else.
    """
    from torch import nn

    model: object = task.model(params)
    if isinstance(model, nn.Module):
        return model if any(part.training for part in model.modules()) else model.train()
    raise TaskError(f"{type(task).__name__}.model(params): found {_a(model)}, allowed: a torch.nn.Module")


def refuse_our_metrics(task: Task, names: Iterable[str]) -> None:
    """Refuse metrics of a task that are called like one that every trial has.

    Raises:
        TaskError: One of them is.
    """
    for name in names:
        if name in OUR_METRICS:
            raise TaskError(
                f"{type(task).__name__}.metrics: found {name!r}, allowed: any other name, since this one is measured "
                "in every trial"
            )


def declared_metrics(task: Task) -> tuple[str, ...] | None:
    """Return the names that the task's `metrics` gives, as far as they are known without calling it."""
    names = getattr(task, "metric_names", None)
    if names is not None:
        return tuple(names)
    inherited = getattr(type(task), "metrics", None) is BaseTask.metrics and not (
        hasattr(task, "whole_metrics") or hasattr(task, "derived_metrics")
    )
    return _CLASSIFIER_METRICS if inherited else None


def training_loss(task: Task, smoothing: float) -> Callable[[Any, Any], Tensor]:
    """Return the loss to train with: the task's own, or with `smoothing` above 0 its `smoothed_loss`.

    Raises:
        TaskError: The task has none, or has a loss of its own and only inherits the classifier's.
    """
    if smoothing == 0:
        return task.loss
    smoothed = getattr(task, "smoothed_loss", None)
    kind = type(task)
    inherits = getattr(kind, "smoothed_loss", None) is BaseTask.smoothed_loss
    if smoothed is None or (inherits and getattr(kind, "loss", None) is not BaseTask.loss):
        raise TaskError(
            f"found label_smoothing {smoothing}, but {kind.__name__} says not how to smooth its loss; take "
            "label_smoothing 0, or give the task a method smoothed_loss(outputs, targets, smoothing)"
        )
    return lambda outputs, targets: cast("Tensor", smoothed(outputs, targets, smoothing))


def _checked_baseline(one: dict[str, Any], where: str) -> dict[str, Any]:
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
    return "None" if value is None else f"a {type(value).__name__}"
