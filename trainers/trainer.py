"""One trial, on one rank: the whole training loop.

All ranks of a gang run a `Trainer` each, in step. In every optimizer step they share the same global batch, and each
weighs its loss by world_size / (samples of the global batch), so that the average which DDP takes over ranks is the
mean over samples: k ranks x batch b train to the same weights as 1 rank x batch k b.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainers import checkpoint as checkpoints
from trainers.data import Pass, load_samples, plan_epoch, samples_of_rank, share
from trainers.ddp import Group
from trainers.errors import CheckpointError, classified
from trainers.evaluate import evaluation_sums, latency_ms, per_sample
from trainers.optim import build_optimizer
from trainers.process import calm_scheduler, set_threads
from trainers.protocol import DivergedError, Measurement, TaskError, TrialFacts, TrialSpec
from trainers.scaling import LearningRate, resolve_rule, scale
from trainers.seeds import SCHEME, derive, permutation, reseed
from trainers.settings import Settings, settings_of
from trainers.task import Task


def _never() -> bool:
    return False


class _Reduced(NamedTuple):
    averages: dict[str, float]
    ends: bool
    is_due: bool


class Trainer:
    """Trains one configuration, epoch by epoch, as far as it is told.

    Attributes:
        facts: What is known before the first step.
        epoch: Epochs done.
        module: The model itself, without the DDP wrapper.
    """

    def __init__(self, spec: TrialSpec, task: Task, *, group: Group) -> None:
        """Build data, model and optimizer, or read them back from `spec.resume_from`.

        Args:
            spec: What to train.
            task: The object that `spec.task` names, from `trainers.task.load_task`.
            group: This rank's place. For more than one rank the default process group must be formed.

        Raises:
            TrainingError: One of its family, whatever goes wrong.
        """
        with classified():
            if group.world_size != spec.world_size:
                raise TaskError(f"the group's world_size {group.world_size} != the trial's {spec.world_size}")
            set_threads(spec.cpus_per_rank)
            self._spec, self._task, self._group = spec, task, group
            self._settings = settings_of(spec)
            self._train_samples = load_samples(task, "train", spec.params, group.device)
            self._validation_samples = load_samples(task, "validation", spec.params, group.device)
            reseed(derive("weights", spec.seed))
            self.module: nn.Module = task.model(spec.params).to(group.device)
            self._rate = _learning_rate(self._settings, len(self._train_samples), spec.world_size)
            self._optimizer = build_optimizer(self.module.parameters(), self._settings, self._rate)
            self.epoch, self._step, self._latency_ms = 0, 0, math.nan
            self._metrics: dict[str, float] = {}
            if spec.resume_from is not None:
                self._resume(spec.resume_from)
            self._network = _distributed(self.module, group)
            self._saved_at = time.monotonic()
            self.facts = self._facts()

    @property
    def samples_of_rank(self) -> int:
        """Training samples that this rank sees in an epoch."""
        facts, group = self.facts, self._group
        return samples_of_rank(facts.samples, facts.effective_batch, rank=group.rank, world_size=group.world_size)

    def advance(self, until_epoch: int, should_end: Callable[[], bool] = _never) -> Iterator[Measurement]:
        """Train on to the end of `until_epoch` and yield a measurement after each epoch.

        All ranks have to iterate in step and get the same measurements, but for `wall_seconds`, which is each rank's.

        Args:
            until_epoch: Last epoch of this stretch; the trial's last if that comes earlier.
            should_end: Asked on rank 0 at each epoch's end; True ends all ranks there, with a checkpoint written.

        Raises:
            DivergedError: The training loss is not finite; raised on all ranks after the same epoch.
            TrainingError: Another of its family.
        """
        with classified():
            if self._group.device.type == "cuda":
                torch.cuda.set_device(self._group.device)
            elif self._group.world_size > 1:
                calm_scheduler()
            set_threads(self._spec.cpus_per_rank)
            for epoch in range(self.epoch + 1, min(until_epoch, self._settings.epochs) + 1):
                measurement = self._run_epoch(epoch, should_end)
                yield measurement
                if measurement.ended:
                    return

    def write_checkpoint(self) -> str | None:
        """Write a checkpoint of the last epoch and return its path; None without a folder. For rank 0 alone."""
        path = checkpoints.checkpoint_path(self._spec, self.epoch)
        if path is None:
            return None
        checkpoints.write_atomically(self._state(), path)
        self._saved_at = time.monotonic()
        return str(path)

    def close(self) -> None:
        """Let go of model and data; the process group can be destroyed, or used for the next trainer, after that."""
        for name in ("_network", "_optimizer", "module", "_train_samples", "_validation_samples"):
            self.__dict__.pop(name, None)

    def _run_epoch(self, epoch: int, should_end: Callable[[], bool]) -> Measurement:
        started = time.perf_counter()
        reseed(derive("epoch", self._spec.seed, epoch, self._group.rank))
        training = self._train_epoch(epoch)
        self._agree_on_buffers()
        reduced = self._evaluate_and_reduce(training, should_end)
        self.epoch = epoch
        train_loss = reduced.averages["train_loss"]
        if not math.isfinite(train_loss):
            raise DivergedError(f"the training loss of epoch {epoch} is {train_loss}")
        self._metrics = reduced.averages | {
            "model_parameters": float(self.facts.model_parameters),
            "latency_ms": self._latency_ms,
        }
        saves = reduced.ends or reduced.is_due or epoch in self._spec.milestones
        return Measurement(
            epoch=epoch,
            metrics=dict(self._metrics),
            checkpoint=self._checkpoint_at(epoch) if saves else None,
            wall_seconds=time.perf_counter() - started,
            ended=reduced.ends,
        )

    def _train_epoch(self, epoch: int) -> Tensor:
        """Train on every sample once and return this rank's (sum of losses, samples), float64 [2]."""
        order = permutation(len(self._train_samples), seed=self._spec.seed, epoch=epoch)
        plan = plan_epoch(
            order,
            batch_per_rank=self._settings.batch_per_rank,
            accumulate=self._settings.accumulate,
            rank=self._group.rank,
            world_size=self._group.world_size,
        )
        total = torch.zeros((), dtype=torch.float64, device=self._group.device)
        batches = self._train_samples.batches([one.indices for one in plan])
        for one, (inputs, targets) in zip(plan, batches, strict=True):
            total += self._forward_backward(one, inputs, targets)
            if one.ends_step:
                self._optimizer_step()
        count = sum(len(one.indices) for one in plan if not one.is_empty)
        return torch.stack([total, total.new_tensor(count)])

    def _forward_backward(self, one: Pass, inputs: Any, targets: Any) -> Tensor:
        """Add one pass's part of the step's gradient and return the sum of its losses, still on the device."""
        exchanges = one.ends_step or self._group.world_size == 1
        with nullcontext() if exchanges else cast("DistributedDataParallel", self._network).no_sync():
            losses = per_sample(self._task.loss(self._network(inputs), targets), len(one.indices), "loss")
            summed = losses.sum() * (0.0 if one.is_empty else 1.0)
            torch.autograd.backward(summed * (self._group.world_size / one.step_samples))
        return summed.detach()

    def _optimizer_step(self) -> None:
        if self._settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.module.parameters(), self._settings.clip_norm)
        rate = self._rate.at(self._step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._step += 1

    def _evaluate_and_reduce(self, training: Tensor, should_end: Callable[[], bool]) -> _Reduced:
        """Evaluate this rank's share and add up over ranks, in the epoch's one collective beside the gradients'.

        Rank 0's word on ending and saving, and its latency, travel in the same sum, to which the others add zero.
        """
        group, samples = self._group, self._validation_samples
        own = share(len(samples), group.rank, group.world_size)
        names, sums = evaluation_sums(self.module, self._task, samples, own, self._settings.batch_per_rank)
        word = self._word(should_end) if group.rank == 0 else [0.0, 0.0, 0.0]
        vector = torch.cat([training, sums, training.new_tensor([len(own), *word])])
        if group.world_size > 1:
            dist.all_reduce(vector)
        loss, trained, *summed, evaluated, ends, is_due, self._latency_ms = vector.tolist()
        averages = {name: value / evaluated for name, value in zip(names, summed, strict=True)}
        return _Reduced(averages | {"train_loss": loss / trained}, ends=ends > 0, is_due=is_due > 0)

    def _word(self, should_end: Callable[[], bool]) -> list[float]:
        if math.isnan(self._latency_ms):
            self._latency_ms = latency_ms(self.module, self._validation_samples)
        is_due = time.monotonic() - self._saved_at >= self._spec.checkpoint_every_seconds
        return [float(should_end()), float(is_due), self._latency_ms]

    def _agree_on_buffers(self) -> None:
        """Give all ranks rank 0's buffers, which the checkpoint holds; batch statistics differ between ranks."""
        if self._group.world_size > 1:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, 0)

    def _checkpoint_at(self, epoch: int) -> str | None:
        """Return the path of the checkpoint, which rank 0 writes while the others go on."""
        if self._group.rank == 0:
            return self.write_checkpoint()
        path = checkpoints.checkpoint_path(self._spec, epoch)
        return None if path is None else str(path)

    def _state(self) -> dict[str, Any]:
        return {
            "format": checkpoints.FORMAT,
            "model": self.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": asdict(self._rate),
            "rng": {"seed": self._spec.seed, "scheme": SCHEME},
            "position": {"epoch": self.epoch, "step": self._step},
            "static": {"latency_ms": self._latency_ms},
            "spec": checkpoints.essentials(self._spec),
            "metrics": self._metrics,
        }

    def _resume(self, path: str) -> None:
        content = checkpoints.read_checkpoint(path, self._group.device)
        checkpoints.check_belongs(content, self._spec, path)
        try:
            self.module.load_state_dict(content["model"])
            self._optimizer.load_state_dict(content["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(f"checkpoint {path} does not fit the model: {error}") from error
        self.epoch, self._step = content["position"]["epoch"], content["position"]["step"]
        self._latency_ms, self._metrics = content["static"]["latency_ms"], content["metrics"]

    def _facts(self) -> TrialFacts:
        samples, world_size = len(self._train_samples), self._spec.world_size
        effective_batch = self._settings.effective_batch(world_size)
        return TrialFacts(
            base_learning_rate=self._rate.base,
            scaled_learning_rate=self._rate.scaled,
            lr_scaling=self._rate.rule,
            reference_batch=self._settings.reference_batch,
            effective_batch=effective_batch,
            samples=samples,
            samples_per_rank=samples_of_rank(samples, effective_batch, rank=0, world_size=world_size),
            model_parameters=sum(parameter.numel() for parameter in self.module.parameters()),
            start_epoch=self.epoch,
        )


def _learning_rate(settings: Settings, samples: int, world_size: int) -> LearningRate:
    effective_batch = settings.effective_batch(world_size)
    steps_per_epoch = math.ceil(samples / effective_batch)
    ratio = effective_batch / settings.reference_batch
    rule = resolve_rule(settings.lr_scaling, settings.optimizer)
    return LearningRate(
        base=settings.learning_rate,
        scaled=scale(settings.learning_rate, ratio, rule),
        rule=rule,
        ratio=ratio,
        warmup_steps=settings.warmup_epochs * steps_per_epoch,
        total_steps=settings.epochs * steps_per_epoch,
        schedule=settings.schedule,
    )


def _distributed(module: nn.Module, group: Group) -> nn.Module:
    if group.world_size == 1:
        return module
    device_ids = [group.device] if group.device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=device_ids, gradient_as_bucket_view=True)
