"""A trial's state that training changes: new, or restored from a checkpoint.

Averaged weights, if any, are evaluated and exported, because they are often better than the last weights. Early
stopping ends a trial after a number of epochs without a new best validation loss (Prechelt 1998, "Early stopping - but
when?", criterion UP).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainers.checkpoints import checkpoint as checkpoints
from trainers.checkpoints.shared_checkpoint import (
    given,
    given_optimizer,
    given_weights,
    own_rows,
    take,
    take_optimizer,
    take_weights,
)
from trainers.checkpoints.stored_tensors import Piece, StoredTensor, in_memory
from trainers.contract.task import Task, grows, model_of
from trainers.data.epoch_plan import EpochLayout
from trainers.data.sample_order import StreamPlace
from trainers.data.seeds import derive, reseed
from trainers.failures import CheckpointError
from trainers.loop.gradient_noise import AdaScale, Moments
from trainers.model.init_by_module import ModuleInit
from trainers.model.learning_rate import LearningRate, scale_ema
from trainers.model.network import Network, shards_fully
from trainers.model.optimizers import Optimizer, build_optimizer, has_optimizer, own_optimizer, rate_factors
from trainers.model.precision import Precision, has_channels_last, with_channels_last
from trainers.model.sharding import has_values, units_of
from trainers.protocol import TrialSpec
from trainers.ranks.process import return_freed_tensors
from trainers.ranks.process_group import Group
from trainers.trial_settings import Settings


class Patience:
    """Counts epochs since the best validation loss. With `epochs` None, a trial never stops early."""

    def __init__(self, epochs: int | None) -> None:
        self._epochs = epochs
        self._best = math.inf
        self._waited = 0

    def runs_out(self, val_loss: float) -> bool:
        """Add an epoch's validation loss (NaN is never the best), and return whether the trial stops."""
        if val_loss < self._best:
            self._best, self._waited = val_loss, 0
        else:
            self._waited += 1
        return self._epochs is not None and self._waited >= self._epochs

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"best": self._best, "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self._best, self._waited = float(state["best"]), int(state["waited"])


class Average:
    """Exponential moving average of a model's trainable parameters, without buffers.

    After step t the decay is min(decay, (1 + t) / (10 + t)), so that the initial weights soon lose influence.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay, self._module = decay, module
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._live = [own_rows(parameter)[0] for parameter in self._parameters.values()]
        self._averaged = [parameter.clone() for parameter in self._live]

    def update(self, step: int) -> None:
        """Add the model's weights after `step` steps, from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averaged, self._live, 1.0 - decay)

    def load(self, weights: Mapping[str, Tensor | StoredTensor]) -> None:
        """Restore the average from a checkpoint's weights."""
        for (name, parameter), averaged in zip(self._parameters.items(), self._averaged, strict=True):
            take(weights[name], parameter, averaged)

    def other_weights(self) -> dict[str, Tensor | Piece]:
        """Return this rank's part of the weights outside of the model: inside `applied`, the trained weights."""
        other = {
            id(parameter): averaged
            for parameter, averaged in zip(self._parameters.values(), self._averaged, strict=True)
        }
        return given_weights(self._module) | {
            name: given(parameter, other[id(parameter)])
            for name, parameter in self._module.state_dict(keep_vars=True).items()
            if id(parameter) in other
        }

    def swap(self) -> None:
        """Exchange the averaged and the model's weights."""
        for live, averaged in zip(self._live, self._averaged, strict=True):
            kept = live.clone()
            live.copy_(averaged)
            averaged.copy_(kept)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights in the block."""
        self.swap()
        try:
            yield
        finally:
            self.swap()


@dataclass(kw_only=True, slots=True)
class TrainingState:
    """A trial's model, optimizer and progress. `latency_ms` is NaN until measured; `part` is of a checkpoint."""

    module: nn.Module
    network: Network
    precision: Precision
    optimizer: Optimizer
    average: Average | None
    adascale: AdaScale | None
    patience: Patience
    noise: Moments = field(default_factory=Moments)
    epoch: int = 0
    step: int = 0
    place: StreamPlace = field(default_factory=StreamPlace)
    latency_ms: float = math.nan
    metrics: dict[str, float] = field(default_factory=dict)
    part: Mapping[str, Any] | None = None

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights to evaluate and export: the average, if any."""
        return nullcontext() if self.average is None else self.average.applied()

    def _engine_state(self) -> dict[str, Any]:
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

    def content(self) -> dict[str, Any]:
        """Return this rank's content for a checkpoint. Call this within `evaluated_weights`."""
        return {
            "model": given_weights(self.module),
            "optimizer": given_optimizer(self.optimizer),
            "position": {"epoch": self.epoch, "step": self.step, **self.place.told()},
            "static": {"latency_ms": self.latency_ms},
            "engine": self._engine_state(),
        }

    def load(self, content: Mapping[str, Any]) -> None:
        """Restore a checkpoint's content, except the weights of an unsharded model."""
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
        position = content["position"]
        self.epoch, self.step, self.place = position["epoch"], position["step"], StreamPlace.of(position)
        self.latency_ms, self.metrics = content["static"]["latency_ms"], content["metrics"]
        self.part = content.get("part")


def build_state(
    spec: TrialSpec,
    task: Task,
    group: Group,
    *,
    settings: Settings,
    rate: LearningRate,
    layout: EpochLayout | None,
    content: Mapping[str, Any] | None,
) -> TrainingState:
    """Build a trial's model and optimizer, from a checkpoint if given. Raises CheckpointError if it does not fit."""
    if content is not None and layout is not None:
        _check_steps(content, str(spec.resume_from), layout)
    module, fill = _model(spec, task, settings, group)
    if content is not None and not shards_fully(settings, group):
        with checkpoints.fits_the_model(str(spec.resume_from)):
            module.load_state_dict(in_memory(_weights_in(content)))
    network = Network(module, settings, group, fill)
    state = TrainingState(
        module=module,
        network=network,
        precision=Precision(settings, group.device, is_sharded=network.is_sharded),
        optimizer=_optimizer(spec, task, module, settings, rate, group),
        average=_average(module, settings, rate),
        adascale=_adascale(settings) if rate.rule == "adascale" else None,
        patience=Patience(settings.early_stop_patience),
    )
    if content is not None:
        with checkpoints.fits_the_model(str(spec.resume_from)):
            state.load(content)
    return state


def _optimizer(  # noqa: PLR0917 - one caller, which has them all at hand
    spec: TrialSpec, task: Task, module: nn.Module, settings: Settings, rate: LearningRate, group: Group
) -> Optimizer:
    if grows(module):
        return torch.optim.SGD([torch.zeros(1)], lr=rate.scaled)  # a placeholder without state
    if has_optimizer(task):
        return own_optimizer(task, module, rate.scaled, spec.params, settings)
    factors = rate_factors(task, module, spec.params)
    return build_optimizer(module.parameters(), settings, rate, group, factors)


def _model(
    spec: TrialSpec, task: Task, settings: Settings, group: Group
) -> tuple[nn.Module, Callable[[list[nn.Module]], None]]:
    """Return the model, and `fill`, which sets the weights of a sharded model on the CPU or meta device."""
    if shards_fully(settings, group):  # in effect until the network is closed
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
    weights: dict[str, Any] = content.get("engine", {}).get("weights", content["model"])
    return weights


def _average(module: nn.Module, settings: Settings, rate: LearningRate) -> Average | None:
    if settings.ema is None or grows(module):
        return None
    return Average(module, scale_ema(settings.ema, rate.ratio) if settings.scale_ema else settings.ema)


def _adascale(settings: Settings) -> AdaScale:
    return AdaScale(settings.world_size * settings.accumulate, settings.batch_per_rank, settings.reference_batch)


def _check_steps(content: Mapping[str, Any], path: str, layout: EpochLayout) -> None:
    epoch, step = content["position"]["epoch"], content["position"]["step"]
    of_part = content["part"].get("steps") if "part" in content else 0
    if step - layout.steps(epoch) != of_part or not step < layout.steps(epoch + 1):
        raise CheckpointError(
            f"checkpoint {path} has {step} steps in {epoch} epochs, not {layout.steps(epoch)}. "
            "Set samples_per_epoch to its earlier value"
        )
