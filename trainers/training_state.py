"""All that changes while a trial trains: how it is built, written to a checkpoint, and read back from one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from torch import nn, optim

from trainers import checkpoint as checkpoints
from trainers.ddp import Group
from trainers.ema import Average
from trainers.epoch_plan import EpochLayout
from trainers.errors import CheckpointError
from trainers.fast_math import has_channels_last, with_channels_last
from trainers.gradient_noise import AdaScale, Moments, noise_of_epochs
from trainers.network import Network
from trainers.optim import Optimizer, build_optimizer, with_kernels_of
from trainers.patience import Patience
from trainers.precision import Precision
from trainers.protocol import TrialSpec
from trainers.scaling import LearningRate, scale_ema
from trainers.seeds import SCHEME, derive, reseed
from trainers.settings import Settings
from trainers.shard import load_whole_state, whole_state, whole_weights
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

    def whole_weights(self) -> dict[str, Any]:
        """Return the model's state dict with whole tensors; a collective where the weights are sharded."""
        return whole_weights(self.module) if self.network.is_sharded else self.module.state_dict()

    def whole_optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's state as an unsharded one has it; a collective where it is sharded."""
        if self.network.is_sharded:
            return whole_state(self.module, cast("optim.Optimizer", self.optimizer))
        return self.optimizer.state_dict()

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
            with self.average.applied():  # a second swap: the weights that training goes on with
                state["weights"] = {name: value.clone() for name, value in self.whole_weights().items()}
        return state

    def load(self, content: Mapping[str, Any]) -> None:
        """Take everything but the weights from the content of a checkpoint; a collective where state is sharded."""
        engine = content.get("engine", {})
        state = with_kernels_of(self.optimizer, content["optimizer"])
        if self.network.is_sharded:
            load_whole_state(self.module, cast("optim.Optimizer", self.optimizer), state)
        else:
            self.optimizer.load_state_dict(state)
        self.precision.load_state_dict(engine.get("precision", {}))
        if "noise" in engine:
            self.noise.load_state_dict(engine["noise"])
        if "patience" in engine:
            self.patience.load_state_dict(engine["patience"])
        if self.adascale is not None and "adascale" in engine:
            self.adascale.load_state_dict(engine["adascale"])
        if self.average is not None:
            self.average.load(self.module, content["model"])
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
    reseed(derive("weights", spec.seed))
    module = model_of(task, spec.params).to(group.device)
    if has_channels_last(settings, group.device):
        module = with_channels_last(module)
    if settings.sync_batch_norm and group.world_size > 1:
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    if content is not None:
        # Whole weights go into the whole model: `Network` shards it afterwards.
        with checkpoints.fits_the_model(str(spec.resume_from)):
            module.load_state_dict(content.get("engine", {}).get("weights", content["model"]))
    state = TrainingState(
        module=module,
        network=Network(module, settings, group),
        precision=Precision(settings, group.device),
        optimizer=build_optimizer(module.parameters(), settings, rate, group),
        average=_average(module, settings, rate),
        adascale=_adascale(settings) if rate.rule == "adascale" else None,
        patience=Patience(settings.early_stop_patience),
    )
    if content is not None:
        with checkpoints.fits_the_model(str(spec.resume_from)):
            state.load(content)
    return state


class CheckpointWriter:
    """Writes a trial's checkpoints: rank 0 writes while the others go on, after they have given what is sharded.

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
        self._all_ranks_give = group.world_size > 1 and settings.shard != "none"
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
        content = self.content(state, part) if self._all_ranks_give or self._group.rank == 0 else {}
        if self._group.rank == 0:
            self.written_bytes = checkpoints.write_atomically(content, path)
            self._written_at = time.monotonic()
            self._write_seconds = self._written_at - began
        return path

    def content(self, state: TrainingState, part: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what a checkpoint holds, see `trainers.checkpoint`; a collective where state is sharded."""
        return ({} if part is None else {"part": dict(part)}) | {
            "format": checkpoints.FORMAT,
            "model": state.whole_weights(),
            "optimizer": state.whole_optimizer_state(),
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
    content = checkpoints.read_checkpoint(path, group.device)
    checkpoints.check_belongs(content, spec, path, layout.effective_batch)
    epoch, step = content["position"]["epoch"], content["position"]["step"]
    of_part = content["part"].get("steps") if "part" in content else 0
    if step - layout.steps(epoch) != of_part or not step < layout.steps(epoch + 1):
        raise CheckpointError(
            f"checkpoint {path} has {step} steps in {epoch} epochs, not {layout.steps(epoch)}: "
            "samples_per_epoch must stay the same"
        )
    return content
