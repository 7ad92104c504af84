"""How a trial is trained, resolved: its parameters first, then the spec's `training`, then the table's defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from trainers.parameters import TRAINER_PARAMETERS, clashes
from trainers.protocol import TaskError, TrialSpec

_DEFAULT_EPOCHS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the loop needs of `trainers.parameters`, where each is described, and the number of epochs.

    Attributes:
        epochs: Measurements that the schedule is planned for.
        learning_rate: The one meant for `reference_batch` samples a step.
    """

    epochs: int
    learning_rate: float
    batch_per_rank: int
    optimizer: str
    momentum: float
    weight_decay: float
    beta1: float
    beta2: float
    samples_per_epoch: str | int
    reference_batch: int
    lr_scaling: str
    warmup_epochs: float
    schedule: str
    decay_every_epochs: str | float
    decay_factor: float
    precision: str
    accumulate: int
    clip_norm: float | None
    compress: str
    powersgd_rank: int
    shard: str
    bucket_mb: str | float
    find_unused_parameters: bool
    sync_batch_norm: bool
    activation_checkpointing: bool
    compile: bool
    ema: float | None
    label_smoothing: float
    early_stop_patience: int | None
    data_workers: str | int

    def effective_batch(self, world_size: int) -> int:
        """Return the samples per optimizer step over all ranks."""
        return self.batch_per_rank * world_size * self.accumulate


def settings_of(spec: TrialSpec) -> Settings:
    """Return the settings of a trial.

    Raises:
        TaskError: A value is not allowed, belongs to something that is not available yet, or clashes with another.
    """
    given: dict[str, Any] = {**spec.training, **spec.params}
    for name, parameter in TRAINER_PARAMETERS.items():
        problem = parameter.problem(given[name]) if name in given else None
        if problem is not None:
            raise TaskError(f"{name}: {problem}")
    epochs = given.get("epochs", _DEFAULT_EPOCHS)
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise TaskError(f"epochs: found {epochs!r}, allowed: a whole number of at least 1")
    defaults = {name: parameter.default for name, parameter in TRAINER_PARAMETERS.items()}
    resolved = {**defaults, **given, "epochs": epochs}
    clash = clashes(resolved, spec.device)
    if clash is not None:
        raise TaskError(clash)
    return Settings(**{field.name: resolved[field.name] for field in fields(Settings)})
