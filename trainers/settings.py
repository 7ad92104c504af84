"""The resolved options of a trial: its parameters first, then the spec's `training` section, then the defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from trainers.protocol import TaskError, TrialSpec
from trainers.trainer_options import TRAINER_PARAMETERS, TrainerOptions, clashes

_DEFAULT_EPOCHS = 20
_MOST_DATA_PROCESSES = 8
"""More processes of `data_workers: auto` would each hold batches in memory, and seldom read faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(TrainerOptions):
    """Every trainer option, and the number of epochs.

    Attributes:
        epochs: Number of measurements that the learning-rate schedule is planned for.
    """

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
    """Return the settings of a trial; `world_size` is the number of ranks that it really has.

    Raises:
        TaskError: A value is not allowed, or clashes with another one or with the device.
    """
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
