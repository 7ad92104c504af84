"""All that changes while a trial trains: how it is built, written to a checkpoint, and read back from one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from trainers import checkpoint as checkpoints
from trainers.ddp import Group
from trainers.ema import Average
from trainers.epoch_plan import EpochLayout
from trainers.errors import CheckpointError
from trainers.fast_math import has_channels_last, with_channels_last
from trainers.gradient_noise import AdaScale, Moments, noise_of_epochs
from trainers.model_blocks import units_of
from trainers.module_init import ModuleInit
from trainers.network import Network, shards_fully
from trainers.optim import Optimizer, build_optimizer
from trainers.patience import Patience
from trainers.precision import Precision
from trainers.process import return_freed_tensors
from trainers.protocol import TrialSpec
from trainers.scaling import LearningRate, scale_ema
from trainers.seeds import SCHEME, derive, reseed
from trainers.settings import Settings
from trainers.shard import has_values
from trainers.shared_checkpoint import open_together, write_shared
from trainers.stored_state import given_optimizer, given_weights, take_optimizer, take_weights
from trainers.stored_tensors import in_memory
from trainers.task import Task, model_of

_RESTS = 20
"""How many times as long as a checkpoint took the trial trains before the next one within an epoch."""


@dataclass(kw_only=True, slots=True)
class TrainingState:
    """The model of a trial, what trains it, and how far it has come.

    Attributes:
        module: The model itself, without the DDP wrapper.
        network: The model as ranks train it together.
        precision: Number format of the forward and backward pass, with its loss scale.
        optimizer: The optimizer with its moments.
        average: Exponential moving average of the weights; None without `ema`.
        adascale: AdaScale's gain; None under another learning-rate rule.
        patience: Early stopping.
        noise: Averages behind the gradient noise scale.
        epoch: Number of epochs done.
        step: Number of optimizer steps done.
        latency_ms: Latency of one sample in milliseconds; NaN before it is measured.
        metrics: Metrics of the last epoch.
        part: What a checkpoint within the next epoch says of that one, see `trainers.epoch_parts`; None without one.
    """

    module: nn.Module
    network: Network
    precision: Precision
    optimizer: Optimizer
    average: Average | None
    adascale: AdaScale | None
    patience: Patience
    noise: Moments = field(default_factory=noise_of_epochs)
    epoch: int = 0
    step: int = 0
    latency_ms: float = math.nan
    metrics: dict[str, float] = field(default_factory=dict)
    part: Mapping[str, Any] | None = None

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights that are evaluated and delivered: the averaged ones."""
        return nullcontext() if self.average is None else self.average.applied()

    def engine_state(self) -> dict[str, Any]:
        """Return the `engine` part of a checkpoint; called where the model has the averaged weights."""
        state: dict[str, Any] = {
            "precision": self.precision.state_dict(),
            "noise": self.noise.state_dict(),
            "patience": self.patience.state_dict(),
        }
        if self.adascale is not None:
            state["adascale"] = self.adascale.state_dict()
        if self.average is not None:
            state["weights"] = self.average.other_weights()
        return state

    def load(self, content: Mapping[str, Any]) -> None:
        """Take everything from the content of a checkpoint but the weights of a model that is not sharded."""
        engine = content.get("engine", {})
        if self.network.is_sharded:
            take_weights(self.module, _weights_in(content))
        take_optimizer(self.optimizer, content["optimizer"])
        self.precision.load_state_dict(engine.get("precision", {}))
        if "noise" in engine:
            self.noise.load_state_dict(engine["noise"])
        if "patience" in engine:
            self.patience.load_state_dict(engine["patience"])
        if self.adascale is not None and "adascale" in engine:
            self.adascale.load_state_dict(engine["adascale"])
        if self.average is not None:
            self.average.load(content["model"])
        self.epoch, self.step = content["position"]["epoch"], content["position"]["step"]
        self.latency_ms, self.metrics = content["static"]["latency_ms"], content["metrics"]
        self.part = content.get("part")


def build_state(
    spec: TrialSpec, task: Task, group: Group, *, settings: Settings, rate: LearningRate, layout: EpochLayout
) -> TrainingState:
    """Build a trial's model and what trains it, or read them back from `spec.resume_from`.

    Raises:
        CheckpointError: The checkpoint cannot be read, belongs to another trial, or does not fit the model.
    """
    content = None if spec.resume_from is None else _content_to_resume(spec.resume_from, spec, layout, group)
    module, fill = _model(spec, task, settings, group)
    if content is not None and not shards_fully(settings, group):
        with checkpoints.fits_the_model(str(spec.resume_from)):
            module.load_state_dict(in_memory(_weights_in(content)))
    network = Network(module, settings, group, fill)
    state = TrainingState(
        module=module,
        network=network,
        precision=Precision(settings, group.device, is_sharded=network.is_sharded),
        optimizer=build_optimizer(module.parameters(), settings, rate, group),
        average=_average(module, settings, rate),
        adascale=_adascale(settings) if rate.rule == "adascale" else None,
        patience=Patience(settings.early_stop_patience),
    )
    if content is not None:
        with checkpoints.fits_the_model(str(spec.resume_from)):
            state.load(content)
    return state


def _model(
    spec: TrialSpec, task: Task, settings: Settings, group: Group
) -> tuple[nn.Module, Callable[[list[nn.Module]], None]]:
    """Return the model, and what gives parts of it their values if it is going to be fully sharded.

    That model stays on the CPU, or without memory, until it is sharded; any other is on the device.
    """
    if shards_fully(settings, group):  # until the network is closed
        return_freed_tensors(at_once=settings.shard_offload or group.device.type == "cpu")
    by_module = ModuleInit(task, spec.params, spec.seed) if settings.init_by_module else None
    if by_module is None:
        reseed(derive("weights", spec.seed))
    module = model_of(task, spec.params) if by_module is None else by_module.module
    fill = has_values if by_module is None else by_module.fill
    if not shards_fully(settings, group):
        for unit in units_of(module):
            fill(unit)
        module = module.to(group.device)
        if has_channels_last(settings, group.device):
            module = with_channels_last(module)
    if settings.sync_batch_norm and group.world_size > 1:
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    return module, fill


def _weights_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights with which a training goes on from a checkpoint."""
    weights: dict[str, Any] = content.get("engine", {}).get("weights", content["model"])
    return weights


class CheckpointWriter:
    """Writes a trial's checkpoints: rank 0 alone, or where state is shared out each rank its share.

    Args:
        spec: The trial.
        settings: The trial's options.
        rate: The learning rate of every step.
        effective_batch: Samples per optimizer step.
        group: This rank's place in the gang.

    Attributes:
        written_bytes: Size of the latest checkpoint in bytes, on the rank that wrote it; 0 before.
    """

    def __init__(
        self, spec: TrialSpec, settings: Settings, rate: LearningRate, effective_batch: int, group: Group
    ) -> None:
        self._spec, self._rate, self._effective_batch, self._group = spec, rate, effective_batch, group
        self._is_shared = group.world_size > 1 and settings.shard != "none"
        self._written_at, self._write_seconds = time.monotonic(), 0.0
        self.written_bytes = 0

    def is_due(self, *, within_epoch: bool = False) -> bool:
        """Return whether `checkpoint_every_seconds` have passed since the last checkpoint.

        Within an epoch writing takes no more than a twentieth of the time.
        """
        least_rest = _RESTS * self._write_seconds if within_epoch else 0.0
        return time.monotonic() - self._written_at >= max(self._spec.checkpoint_every_seconds, least_rest)

    def write(self, state: TrainingState, part: Mapping[str, Any] | None = None) -> str | None:
        """Write a checkpoint, and return its path; None for a trial that writes none.

        The model has the averaged weights, if there are any.

        Args:
            state: State of the trial after an epoch, or within the next one.
            part: What is kept of the next epoch; None after an epoch.

        Raises:
            CheckpointError: Something in the state cannot be saved.
            StorageError: The disk or the folder does not allow it.
        """
        of_epoch = (state.epoch, None) if part is None else (state.epoch + 1, state.step)
        path = checkpoints.checkpoint_path(self._spec, *of_epoch)
        if path is None:
            return None
        began = time.monotonic()
        if self._is_shared:
            self.written_bytes = write_shared(self.content(state, part), path, self._group)
        elif self._group.rank == 0:
            self.written_bytes = checkpoints.write_atomically(self.content(state, part), path)
        if self._group.rank == 0:
            self._written_at = time.monotonic()
            self._write_seconds = self._written_at - began
        return path

    def content(self, state: TrainingState, part: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what this rank gives to a checkpoint, see `trainers.checkpoint`."""
        return ({} if part is None else {"part": dict(part)}) | {
            "format": checkpoints.FORMAT,
            "model": given_weights(state.module),
            "optimizer": given_optimizer(state.optimizer),
            "scheduler": asdict(self._rate),
            "rng": {"seed": self._spec.seed, "scheme": SCHEME},
            "position": {"epoch": state.epoch, "step": state.step},
            "static": {"latency_ms": state.latency_ms, "effective_batch": self._effective_batch},
            "spec": checkpoints.essentials(self._spec),
            "metrics": state.metrics,
            "engine": state.engine_state(),
        }


def _average(module: nn.Module, settings: Settings, rate: LearningRate) -> Average | None:
    if settings.ema is None:
        return None
    return Average(module, scale_ema(settings.ema, rate.ratio) if settings.scale_ema else settings.ema)


def _adascale(settings: Settings) -> AdaScale:
    return AdaScale(settings.world_size * settings.accumulate, settings.batch_per_rank, settings.reference_batch)


def _content_to_resume(path: str, spec: TrialSpec, layout: EpochLayout, group: Group) -> dict[str, Any]:
    """Read the checkpoint to resume from, and check that it is of this trial."""
    content = open_together(path, group)
    checkpoints.check_belongs(content, spec, path, layout.effective_batch)
    epoch, step = content["position"]["epoch"], content["position"]["step"]
    of_part = content["part"].get("steps") if "part" in content else 0
    if step - layout.steps(epoch) != of_part or not step < layout.steps(epoch + 1):
        raise CheckpointError(
            f"checkpoint {path} has {step} steps in {epoch} epochs, not {layout.steps(epoch)}: "
            "samples_per_epoch must stay the same"
        )
    return content
