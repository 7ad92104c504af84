"""The resolved options of a trial: its parameters first, then the spec's `training` section, then the defaults.

A training function refuses, and does not ignore, a parameter that it does not follow. An option is followed by a helper
of `automl.Trial`, or where the function reads the parameter of that name. Those of the spec's section `training`, which
have one value for all trials, are told when the study is launched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from trainers.protocol import TaskError, TrialSpec
from trainers.trainer_options import TRAINER_PARAMETERS, TrainerOptions, clashes

PREPARE, AUTOCAST, STEP = "trial.prepare(model)", "trial.autocast()", "trial.step(optimizer)"
BACKWARD, OPTIMIZER = "trial.backward(loss)", "trial.optimizer(parameters)"
_HELPERS: Mapping[str, str] = {
    "shard": PREPARE,
    "shard_offload": PREPARE,
    "shard_precision": PREPARE,
    "sync_batch_norm": PREPARE,
    "precision": AUTOCAST,
    "loss_scale": BACKWARD,
    "loss_scale_growth_steps": BACKWARD,
    "clip_norm": STEP,
    "accumulate": STEP,
    "momentum": OPTIMIZER,
    "weight_decay": OPTIMIZER,
    "beta1": OPTIMIZER,
    "beta2": OPTIMIZER,
    "fused": OPTIMIZER,
    "scale_weight_decay": OPTIMIZER,
}
"""The helper that follows each option."""
_ALWAYS_FOLLOWED = frozenset(
    {
        "learning_rate", "batch_per_rank", "world_size", "optimizer", "reference_batch", "lr_scaling", "tf32",
        "cudnn_benchmark", "find_unused_parameters", "checkpoint_async",
    }
)  # fmt: skip
"""Options that act before the function is called, or that helpers pass on whatever they are."""


class ReadParams(dict[str, Any]):
    """A trial's parameters by name, which note what was read of them."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter, or `default` where there is none."""
        self.read.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a parameter and return it."""
        self.read.add(name)
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return a parameter, or set it to `default` where there is none."""
        self.read.add(name)
        return super().setdefault(name, default)

    def popitem(self) -> tuple[str, Any]:
        """Remove a parameter and return it with its name."""
        self._read_all()
        return super().popitem()

    def __iter__(self) -> Iterator[str]:
        self._read_all()
        return super().__iter__()

    def keys(self) -> Any:
        """Return the names."""
        self._read_all()
        return super().keys()

    def values(self) -> Any:
        """Return the values."""
        self._read_all()
        return super().values()

    def items(self) -> Any:
        """Return names and values."""
        self._read_all()
        return super().items()

    def copy(self) -> dict[str, Any]:
        """Return a plain copy."""
        self._read_all()
        return super().copy()

    def __or__(self, other: Any) -> Any:
        self._read_all()
        return super().__or__(other)

    def __ror__(self, other: Any) -> Any:
        self._read_all()
        return super().__ror__(other)

    def _read_all(self) -> None:
        self.read.update(super().keys())


def check_followed(spec: TrialSpec, precision: str, followed: set[str]) -> None:
    """Refuse parameters that a training function leaves unheeded, since a search over them would compare noise.

    Args:
        precision: Number format that the trial's `precision` means on its device.

    Raises:
        TaskError: A parameter that is an option of the trainer has another value than the option's default, and
            nothing follows it.
    """
    for name, value in spec.params.items():
        helper = _HELPERS.get(name)
        if _is_followed_anyway(name, value) or name in followed or helper in followed:
            continue
        if name == "precision" and precision == "fp32":
            continue
        call = f"call {helper}, " if helper is not None else ""
        allowed = f"{call}read it from trial.params, or take it out of the spec"
        raise TaskError(f"{name}: found {value!r}, which the training function does not follow; {allowed}")


def unheeded(training: Mapping[str, Any]) -> dict[str, str | None]:
    """Return which options of the section `training` no training function follows by itself.

    Returns:
        The helper that follows each, None where none does.
    """
    return {name: _HELPERS.get(name) for name, value in training.items() if not _is_followed_anyway(name, value)}


def _is_followed_anyway(name: str, value: Any) -> bool:
    """Whether a parameter or option needs nobody: one of the user's own, at its default, or passed on in any case."""
    option = TRAINER_PARAMETERS.get(name)
    return option is None or value == option.default or name in _ALWAYS_FOLLOWED


_DEFAULT_EPOCHS = 20
_MOST_DATA_PROCESSES = 8
"""More processes of `data_workers: auto` would each hold batches in memory, and seldom read faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(TrainerOptions):
    """Every trainer option, and the number of epochs."""

    epochs: int = _DEFAULT_EPOCHS

    @property
    def effective_batch(self) -> int:
        """Samples per optimizer step over all ranks."""
        return self.batch_per_rank * self.world_size * self.accumulate

    def writes_in_background(self, device: str) -> bool:
        """Return whether checkpoints are written while training goes on.

        Args:
            device: Kind of device, "cpu" or "cuda". On a CPU the thread that writes would take the core that trains.
                With `shard_offload` the host's memory holds all of the state, and hardly a copy of it.
        """
        if not isinstance(self.checkpoint_async, str):
            return self.checkpoint_async
        return device == "cuda" and not self.shard_offload

    def data_processes(self, cpus_beside_device: int) -> int:
        """Return the number of processes that read a Dataset.

        Args:
            cpus_beside_device: Number of CPUs that the device leaves to this rank, the rank's own included; 0 where the
                CPUs are the device, since processes that read would take them from the ranks.
        """
        if not isinstance(self.data_workers, str):
            return self.data_workers
        return min(max(0, cpus_beside_device - 1), _MOST_DATA_PROCESSES)


def settings_of(spec: TrialSpec) -> Settings:
    """Return the settings of a trial; `world_size` is the number of ranks that it really has."""
    given: dict[str, Any] = {**spec.training, **spec.params}
    for name, parameter in TRAINER_PARAMETERS.items():
        problem = parameter.problem(given[name]) if name in given else None
        if problem is not None:
            raise TaskError(f"{name}: {problem}")
    epochs = given.get("epochs", _DEFAULT_EPOCHS)
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise TaskError(f"epochs: found {epochs!r}, allowed: a whole number of at least 1")
    names = {option.name for option in fields(Settings)}
    given_options = {name: value for name, value in given.items() if name in names}
    settings = Settings(**{**given_options, "world_size": spec.world_size})
    clash = clashes({name: getattr(settings, name) for name in TRAINER_PARAMETERS}, spec.device)
    if clash is not None:
        raise TaskError(clash)
    return settings
