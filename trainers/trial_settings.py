"""Options of a trial: from its parameters, else from the spec's `training` section, else defaults.

A training function must use each searched parameter: call a helper of `automl.Trial` that applies it, or read its
value. An ignored key of the section `training` is only reported, at launch, because it is equal in all trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

from trainers.protocol import TaskError, TrialSpec
from trainers.trainer_options import RATE_OPTIONS, TRAINER_PARAMETERS, TrainerOptions, clashes

_FOLLOWED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "trial.prepare(model)": (
        ("shard", "shard_offload", "shard_precision", "sync_batch_norm"), ("find_unused_parameters",)
    ),
    "trial.autocast()": (("precision",), ("accumulate",)),
    "trial.backward(loss)": (("loss_scale", "loss_scale_growth_steps"), ("accumulate",)),
    "trial.step(optimizer)": (("clip_norm", "accumulate"), ()),
    "trial.optimizer(parameters)": (
        ("momentum", "weight_decay", "beta1", "beta2", "fused", "scale_weight_decay"), ("optimizer", *RATE_OPTIONS)
    ),
    "trial.accumulate": (("accumulate",), ()),
    "trial.learning_rate": ((), RATE_OPTIONS),
    "trial.batch_per_rank": ((), ("batch_per_rank",)),
    "trial.loader(dataset)": ((), ("single_sample_batches",)),
}  # fmt: skip
"""Options that each helper of `automl.Trial` applies, and options that it only reads."""
_HELPERS = {name: helper for helper, (names, _) in reversed(_FOLLOWED.items()) for name in names}
_ALWAYS_FOLLOWED = frozenset(
    {
        "learning_rate", "batch_per_rank", "world_size", "optimizer", "reference_batch", "lr_scaling", "tf32",
        "cudnn_benchmark", "find_unused_parameters", "checkpoint_async",
    }
)  # fmt: skip
"""Options that take effect before the training function runs, or in any helper."""


def _noting(method: str, *, takes_name: bool = False) -> Any:
    """Return a method of dict that also records its key, or all keys, as read."""
    inherited = getattr(dict, method)

    def call(self: ReadParams, *arguments: Any, **named: Any) -> Any:
        self.read.update(arguments[:1] if takes_name else dict.keys(self))
        return inherited(self, *arguments, *named.values())

    return call


class ReadParams(dict[str, Any]):
    """A trial's parameters. `read` has the names that the training function has read."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.read: set[str] = set()

    __getitem__, get = _noting("__getitem__", takes_name=True), _noting("get", takes_name=True)
    pop, setdefault = _noting("pop", takes_name=True), _noting("setdefault", takes_name=True)
    __iter__, keys, values, items = map(_noting, ("__iter__", "keys", "values", "items"))
    copy, popitem, __or__, __ror__ = map(_noting, ("copy", "popitem", "__or__", "__ror__"))


class Followed:
    """Options that a training function uses, because it called a helper that applies them or read them from `params`.

    A value that the trainer refuses counts as the function's own, until it calls a helper for that option.
    """

    def __init__(self, spec: TrialSpec, params: ReadParams) -> None:
        self._spec, self._params = spec, params
        self._helpers: dict[str, None] = {}

    def call(self, helper: str) -> None:
        """Record a helper's call. Raises TaskError for values that it cannot apply, alone or with others."""
        if helper in self._helpers:
            return
        self._helpers[helper] = None
        given = {**self._spec.training, **self._spec.params}
        for name in chain(*_FOLLOWED[helper]):
            problem = TRAINER_PARAMETERS[name].problem(given[name]) if name in given else None
            if problem is not None:
                cure = "Correct the value, rename your parameter, or remove the call"
                raise TaskError(f"{name}: {problem}, because {helper} uses this option. {cure}")
        names = {name for called in self._helpers for name in chain(*_FOLLOWED[called])}
        values = {name: given.get(name, TRAINER_PARAMETERS[name].default) for name in names}
        if (clash := clashes(values, self._spec.device)) is not None:
            raise TaskError(clash)

    def check(self, precision: str) -> None:
        """Raise TaskError if the function ignores a searched option. `precision` is the resolved format."""
        followed = {name for helper in self._helpers for name in _FOLLOWED[helper][0]} | self._params.read
        for name, value in self._spec.params.items():
            if _is_followed_anyway(name, value) or name in followed or (name == "precision" and precision == "fp32"):
                continue
            call = f"call {_HELPERS[name]}, " if name in _HELPERS else ""
            allowed = f"{call}read it from trial.params, or remove it from the spec"
            raise TaskError(f"{name} is {value!r}, but the training function ignores it: {allowed}")


def unheeded(training: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the keys of the section `training` that only the training function can apply, with their helpers."""
    return {name: _HELPERS.get(name) for name, value in training.items() if not _is_followed_anyway(name, value)}


def _is_followed_anyway(name: str, value: Any) -> bool:
    """Return whether an option holds for a training function that does not read it."""
    option = TRAINER_PARAMETERS.get(name)
    if option is None or value == option.default:
        return True
    return name in _ALWAYS_FOLLOWED and option.problem(value) is None


_DEFAULT_EPOCHS = 20
_MOST_DATA_PROCESSES = 8
"""Limit for `data_workers: auto`. More processes hold more batches in memory, and seldom read faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(TrainerOptions):
    """All trainer options, and the number of epochs."""

    epochs: int = _DEFAULT_EPOCHS

    @property
    def effective_batch(self) -> int:
        """Samples per optimizer step on all ranks."""
        return self.batch_per_rank * self.world_size * self.accumulate

    def writes_in_background(self, device: str) -> bool:
        """Return whether a thread writes checkpoints. On a CPU, the thread would take the core that trains."""
        if not isinstance(self.checkpoint_async, str):
            return self.checkpoint_async
        return device == "cuda" and not self.shard_offload

    def data_processes(self, cpus_beside_device: int) -> int:
        """Return the number of processes that read a Dataset. `cpus_beside_device` is 0 for training on a CPU."""
        if not isinstance(self.data_workers, str):
            return self.data_workers
        return min(max(0, cpus_beside_device - 1), _MOST_DATA_PROCESSES)


def settings_of(spec: TrialSpec, *, has_own_loop: bool = False) -> Settings:
    """Return a trial's settings, with its actual `world_size`. Raises TaskError for wrong values.

    A training function or command (`has_own_loop`) may use an option's name for another parameter; the settings then
    keep the default.
    """
    given: dict[str, Any] = {**spec.training, **spec.params}
    for name, parameter in TRAINER_PARAMETERS.items():
        problem = parameter.problem(given[name]) if name in given else None
        if problem is not None and not (has_own_loop and name in spec.params):
            raise TaskError(f"{name}: {problem}")
        if problem is not None:
            del given[name]
    epochs = given.get("epochs", _DEFAULT_EPOCHS)
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise TaskError(f"epochs: found {epochs!r}, allowed: a whole number of at least 1")
    names = {option.name for option in fields(Settings)}
    given_options = {name: value for name, value in given.items() if name in names}
    settings = Settings(**{**given_options, "world_size": spec.world_size})
    clash = clashes({name: getattr(settings, name) for name in TRAINER_PARAMETERS}, spec.device)
    if clash is not None and not has_own_loop:
        raise TaskError(clash)
    return settings
