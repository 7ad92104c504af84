"""Interface of a user's task, and `BaseTask` with the defaults of a classifier. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, cast, runtime_checkable

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
    """Model, data, loss and metrics of trials; needs no base class. n is the number of samples in a batch.

    Data is a pair (inputs, targets) of tensors, first dimension samples, or a map-style Dataset of such pairs, the same
    in every process. Optional members:
    `test_data(params)`: the samples for testing; `has_test_part`: whether there are any, default True;
    `space()`: the default search space;
    `first_trials()`: mappings of good parameters, with which a search of that space begins;
    `baselines()`: models and figures to compare with, see `baselines_of`;
    `parameters`: names of parameters that the task reads, besides the trainer's options;
    `metric_names`: the names that `metrics` returns;
    `smoothed_loss(outputs, targets, smoothing)`: the training loss if `label_smoothing` is above 0;
    `weights(targets)`: weights of the samples in means, such as numbers of tokens: a mapping of "loss" and metric names
    to tensors of shape [n]; default 1;
    `optimizer(model, learning_rate, params)`, `schedule(step, steps, params)`, `rate_factors(model, params)`: see
    `trainers.model.optimizers`;
    `whole_metrics(params)`: metrics that are not means over samples, see `trainers.loop.whole_set_metrics`;
    `derived_metrics(metrics, params)`: metrics computed from others, see `trainers.loop.evaluation`;
    `answer_summary()`: describes answers to validation samples, see `trainers.loop.epoch_metrics`;
    `collate(samples)`: makes a pair (inputs, targets) from a list of samples of a Dataset or stream.
    """

    def train_data(self, params: Params, /) -> Samples:
        """Return the samples to train on."""

    def validation_data(self, params: Params, /) -> Samples:
        """Return the validation samples, over which metrics are averaged."""

    def model(self, params: Params, /) -> nn.Module:
        """Return a new model. torch's global generator is seeded before."""

    def loss(self, outputs: Any, targets: Any, /) -> Tensor:
        """Return each sample's loss, shape [n], from which the trainer computes exact sums over all ranks."""

    def metrics(self, outputs: Any, targets: Any, /) -> Mapping[str, Tensor]:
        """Return each metric's values, shape [n], by its name in reports, such as "val_error"."""


class BaseTask:
    """Base class for classifiers: cross entropy, `val_error` and `val_accuracy`; outputs [n, classes], targets [n]."""

    parameters: Sequence[str] = ()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's cross entropy in nats, shape [n]."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets, reduction="none")

    def smoothed_loss(self, outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Return each sample's cross entropy, shape [n], with `smoothing` of the target spread over all classes."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return each sample's `val_error` and `val_accuracy`, 0 or 1, shape [n]."""
        wrong = outputs.argmax(dim=-1) != targets
        return {"val_error": wrong, "val_accuracy": ~wrong}


def has_test_part(task: Task) -> bool:
    """Return whether a task has samples for testing."""
    return bool(getattr(task, "has_test_part", hasattr(task, "test_data")))


def parameters_of(task: Task) -> tuple[str, ...]:
    """Return names of parameters that a task reads, besides the trainer's options."""
    return tuple(getattr(task, "parameters", ()))


def space_of(task: Task) -> Space | None:
    """Return the task's search space, or None. Raises TaskError if `space()` returns another type."""
    if not hasattr(task, "space"):
        return None
    space = task.space()
    if isinstance(space, Space):
        return space
    allowed = "a Space of search_spaces.space" + (", as Space.from_dict makes" if isinstance(space, Mapping) else "")
    raise TaskError(f"{type(task).__name__}.space(): found {_kind_of(space)}, allowed: {allowed}")


def first_trials_of(task: Task) -> tuple[Params, ...]:
    """Return the parameters to try first in the task's space, baselines first. May raise TaskError."""
    named = task.first_trials() if hasattr(task, "first_trials") else ()
    if not _are_mappings(named):
        allowed = "a list of mappings from names to values"
        raise TaskError(f"{type(task).__name__}.first_trials(): found {_kind_of(named)}, allowed: {allowed}")
    tried = [one["params"] for one in baselines_of(task) if "params" in one]
    return (*tried, *(dict(one) for one in named if dict(one) not in tried))


def baselines_of(task: Task) -> tuple[dict[str, Any], ...]:
    """Return the task's baselines: `name`, and either `params` to train or known `metrics`. May raise TaskError."""
    if not hasattr(task, "baselines"):
        return ()
    named = task.baselines()
    where = f"{type(task).__name__}.baselines()"
    if not _are_mappings(named):
        allowed = "a list of mappings, each with a name, and either params or metrics"
        raise TaskError(f"{where}: found {_kind_of(named)}, allowed: {allowed}")
    return tuple(_checked_baseline(dict(one), f"{where}[{place}]") for place, one in enumerate(named))


def model_of(task: Task, params: Params) -> nn.Module:
    """Return a new model of a task in training mode. Raises TaskError if `model(params)` returns no torch module.

    A whole model in evaluation mode (Hugging Face's `from_pretrained`) is put into training mode. Single layers in
    evaluation mode stay frozen.
    """
    from torch import nn

    model: object = task.model(params)
    if isinstance(model, nn.Module):
        return model if any(part.training for part in model.modules()) else model.train()
    raise TaskError(f"{type(task).__name__}.model(params): found {_kind_of(model)}, allowed: a torch.nn.Module")


def refuse_our_metrics(task: Task, names: Iterable[str]) -> None:
    """Raise TaskError if a task's metric has the name of a built-in metric."""
    for name in names:
        if name in OUR_METRICS:
            raise TaskError(
                f"{type(task).__name__}.metrics: every trial has a metric {name!r} already. Rename the task's metric"
            )


def declared_metrics(task: Task) -> tuple[str, ...] | None:
    """Return a task's metric names, or None if only a call of `metrics` reveals them."""
    names = getattr(task, "metric_names", None)
    if names is not None:
        return tuple(names)
    inherited = getattr(type(task), "metrics", None) is BaseTask.metrics and not (
        hasattr(task, "whole_metrics") or hasattr(task, "derived_metrics")
    )
    return _CLASSIFIER_METRICS if inherited else None


def training_loss(task: Task, smoothing: float) -> Callable[[Any, Any], Tensor]:
    """Return the task's loss, or with `smoothing` its `smoothed_loss`. Raises TaskError if the method is missing."""
    if smoothing == 0:
        return task.loss
    smoothed = getattr(task, "smoothed_loss", None)
    kind = type(task)
    inherits = getattr(kind, "smoothed_loss", None) is BaseTask.smoothed_loss
    if smoothed is None or (inherits and getattr(kind, "loss", None) is not BaseTask.loss):
        raise TaskError(
            f"label_smoothing is {smoothing}, but {kind.__name__} has no smoothed_loss() for its loss. Set "
            "label_smoothing to 0, or give the task a method smoothed_loss(outputs, targets, smoothing)"
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


def _kind_of(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


@runtime_checkable
class GrownModel(Protocol):
    """Model not trained by gradient steps, such as decision trees. Its `state_dict` holds its whole state."""

    def grow_epoch(
        self, inputs: Tensor, targets: Tensor, *, epoch: int, epochs: int, seed: int, threads: int,
        tick: Callable[[], None],
    ) -> Tensor:  # fmt: skip
        """Train epoch `epoch` (from 1) on the CPU. Equal arguments and state must give bitwise equal results.

        Call `tick` at least every few seconds, because a silent rank counts as hanging.
        """


def grows(module: nn.Module) -> TypeGuard[GrownModel]:
    """Return whether a model has `grow_epoch`."""
    return isinstance(module, GrownModel)
