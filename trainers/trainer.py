"""One trial, on one rank: the whole training loop.

All ranks of a gang run a `Trainer` each, in step. In every optimizer step they share the same global batch, and each
weighs its loss by world_size / (samples of the global batch), so that the average which DDP takes over ranks is the
mean over samples: k ranks x batch b train to the same weights as 1 rank x batch k b.

    TrainingState     model, optimizer and whatever else changes, in and out of checkpoints
    EpochEnd          evaluation, and the all-reduce that tells all ranks the same figures
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.code_files import code_files
from trainers.data import MicroBatch, SingleSamples, TrialData, epoch_layout, load_data, plan_epoch, samples_of_rank
from trainers.ddp import Group
from trainers.epoch_end import EpochEnd, TrainedEpoch
from trainers.errors import classified
from trainers.evaluate import per_sample
from trainers.fast_math import set_fast_math
from trainers.gradient_noise import GradientWatch
from trainers.nested import without_samples
from trainers.process import Remains, set_threads, use_batch_scheduling
from trainers.protocol import DivergedError, Measurement, TaskError, TrialFacts, TrialSpec
from trainers.scaling import planned_learning_rate
from trainers.seeds import derive, permutation, reseed
from trainers.settings import settings_of
from trainers.step_counter import TRAIN_WORK, StepCounter
from trainers.task import Task, training_loss
from trainers.training_state import CheckpointWriter, build_state


def _never() -> bool:
    return False


def _nothing() -> None:
    return


class Trainer:
    """Trains one configuration, epoch by epoch, as far as it is told.

    Attributes:
        facts: What is known before the first step.
        on_step: Called after each optimizer step.
    """

    def __init__(
        self,
        spec: TrialSpec,
        task: Task,
        *,
        group: Group,
        data: TrialData | None = None,
        counter: StepCounter | None = None,
    ) -> None:
        """Build model and optimizer, or read them back from `spec.resume_from`.

        Args:
            spec: The trial.
            task: The object that `spec.task` names, from `trainers.task.load_task`.
            group: This rank's place in the gang. For more than one rank the default process group must be formed.
            data: What `load_data` loaded for this trial and device; None loads it here.
            counter: Counts what this rank does, for threads that watch it; None makes one that nobody reads.

        Raises:
            TrainingError: Whatever goes wrong, as one of its subclasses.
        """
        with classified():
            if group.world_size != spec.world_size:
                raise TaskError(f"the group's world_size {group.world_size} != the trial's {spec.world_size}")
            set_threads(spec.cpus_per_rank)
            settings = settings_of(spec)
            set_fast_math(settings, group.device)
            self._spec, self._task, self._group, self._settings = spec, task, group, settings
            self._counter = counter = counter or StepCounter()
            self._loss = training_loss(task, settings.label_smoothing)
            data = data or load_data(spec, task, group.device, counter)
            self._train_samples = data.train
            layout = epoch_layout(len(self._train_samples), settings.effective_batch, settings.samples_per_epoch)
            self._layout, self._rate = layout, planned_learning_rate(settings, layout)
            counter.begin("model")
            self._state = build_state(spec, task, group, settings=settings, rate=self._rate, layout=layout)
            counter.done()
            self._watch = self._gradient_watch()
            self._epoch_end = EpochEnd(
                spec=spec, task=task, settings=settings, layout=layout, validation=data.validation, state=self._state,
                watch=self._watch, memory=data.memory, group=group, counter=counter,
            )  # fmt: skip
            self._checkpoints = CheckpointWriter(spec, settings, self._rate, layout.effective_batch, group)
            self.on_step: Callable[[], None] = _nothing
            self.facts = self._facts()

    @property
    def module(self) -> nn.Module:
        """The model itself, without the DDP wrapper."""
        return self._state.module

    @property
    def epoch(self) -> int:
        """Number of epochs done."""
        return self._state.epoch

    @property
    def samples_of_rank(self) -> int:
        """Number of training samples that this rank sees in an epoch."""
        facts, group = self.facts, self._group
        return samples_of_rank(facts.samples, facts.effective_batch, rank=group.rank, world_size=group.world_size)

    @property
    def steps_left(self) -> int:
        """Number of optimizer steps up to the last epoch."""
        return self._layout.steps(self._settings.epochs) - self._state.step

    def advance(self, until_epoch: int, should_end: Callable[[], bool] = _never) -> Iterator[Measurement]:
        """Train on to the end of `until_epoch` and yield a measurement after each epoch.

        All ranks have to iterate in step and get the same measurements, but for `wall_seconds`, which is each rank's.

        Args:
            until_epoch: Last epoch to train; the trial's last one if that comes earlier, as where patience runs out.
            should_end: Called on rank 0 at each epoch's end; True ends all ranks there, with a checkpoint written.

        Raises:
            DivergedError: The training loss is not finite; raised on all ranks after the same epoch.
            TrainingError: Whatever else goes wrong, as one of its subclasses.
        """
        with classified():
            if self._group.device.type == "cuda":
                torch.cuda.set_device(self._group.device)
            elif self._group.world_size > 1:
                use_batch_scheduling()
            set_threads(self._spec.cpus_per_rank)
            for epoch in range(self.epoch + 1, min(until_epoch, self._settings.epochs) + 1):
                measurement = self._run_epoch(epoch, should_end)
                yield measurement
                if measurement.ended or measurement.complete:
                    return

    def close(self) -> Remains:
        """Let go of model and data; the process group can be destroyed, or used for the next trainer, after that.

        Returns:
            Tells whether the model's parameters are still in memory; see `trainers.process.free_memory`.
        """
        remains = Remains(self.module.parameters())
        self._state.network.close()
        for name in ("_state", "_watch", "_epoch_end", "_train_samples"):
            self.__dict__.pop(name, None)
        return remains

    def _run_epoch(self, epoch: int, should_end: Callable[[], bool]) -> Measurement:
        started = time.perf_counter()
        state = self._state
        reseed(derive("epoch", self._spec.seed, epoch, self._group.rank))
        trained = self._train_epoch(epoch)
        self._copy_buffers_from_rank_0()
        with state.evaluated_weights():
            result = self._epoch_end.reduce(trained, should_end, self._checkpoints.is_due)
            state.epoch = epoch
            train_loss = result.averages["train_loss"]
            if not math.isfinite(train_loss):
                raise DivergedError(f"the training loss of epoch {epoch} is {train_loss}")
            state.metrics = self._epoch_end.metrics(result)
            complete = state.patience.runs_out(result.averages["val_loss"])
            if self._spec.test_at_end and (complete or epoch == self._settings.epochs):
                state.metrics |= self._epoch_end.test_metrics()
            is_kept = epoch in self._spec.milestones
            saves = result.ends or complete or result.checkpoint_is_due or is_kept
            path, size = self._write_checkpoint() if saves else (None, 0)
        return Measurement(
            epoch=epoch,
            metrics=dict(state.metrics),
            checkpoint=path,
            checkpoint_bytes=size,
            wall_seconds=time.perf_counter() - started,
            ended=result.ends,
            complete=complete,
        )

    def _write_checkpoint(self) -> tuple[str | None, int]:
        """Write a checkpoint; returns its path and, on rank 0, its size in bytes."""
        self._counter.begin("checkpoint")
        path = self._checkpoints.write(self._state)
        self._counter.done()
        return path, Path(path).stat().st_size if path is not None and self._group.rank == 0 else 0

    def _train_epoch(self, epoch: int) -> TrainedEpoch:
        """Train on this rank's share of the epoch's samples, of which each belongs to one rank."""
        started, waited = time.perf_counter(), 0.0
        self._state.network.begin_epoch()
        plan, watch, counter = self._plan(epoch), self._watch, self._counter
        samples = sum(len(one.indices) for one in plan if not one.is_empty)
        counter.begin_epoch(epoch, TRAIN_WORK * samples + self._epoch_end.work)
        if watch is not None:
            watch.begin_epoch()
        total = torch.zeros((), dtype=torch.float64, device=self._group.device)
        batches = self._train_samples.batches([one.indices for one in plan])
        for one in plan:
            asked = time.perf_counter()
            counter.begin("training", len(one.indices))
            inputs, targets = next(batches)
            counter.tick()
            waited += time.perf_counter() - asked
            if watch is not None and one.begins_step:
                is_full = one.step_samples == self._layout.effective_batch
                watch.begin_step(self._state.step, is_full=is_full)
            total += self._forward_backward(one, inputs, targets)
            if one.ends_step:
                if watch is not None:
                    watch.end_step()
                self._optimizer_step()
            counter.done(0 if one.is_empty else TRAIN_WORK * len(one.indices))
        if self._group.device.type == "cuda":
            torch.cuda.synchronize(self._group.device)  # else the seconds would be those of launching kernels
        return TrainedEpoch(
            losses=total,
            samples=samples,
            steps=sum(one.ends_step for one in plan),
            seconds=time.perf_counter() - started,
            data_seconds=waited,
        )

    def _plan(self, epoch: int) -> list[MicroBatch]:
        number, first = self._layout.place(epoch)
        order = permutation(len(self._train_samples), seed=self._spec.seed, epoch=number)
        return plan_epoch(
            self._layout.part(order, first),
            batch_per_rank=self._settings.batch_per_rank,
            accumulate=self._settings.accumulate,
            rank=self._group.rank,
            world_size=self._group.world_size,
            even=self._state.network.passes_together,
            singles=cast("SingleSamples", self._settings.single_sample_batches) if self._needs_pairs() else "keep",
        )

    def _needs_pairs(self) -> bool:
        """Whether no batch may have one sample only.

        Raises:
            TaskError: They all have.
        """
        if self._state.network.needs_pairs and self._settings.batch_per_rank == 1:
            raise TaskError(
                "found batch_per_rank 1, but BatchNorm1d has no variance of one sample; take batch_per_rank of at "
                "least 2, or a model without it"
            )
        return self._state.network.needs_pairs

    def _forward_backward(self, one: MicroBatch, inputs: Any, targets: Any) -> Tensor:
        """Add a micro-batch's part of the step's gradient, and return the sum of its losses, still on the device."""
        network, precision, samples = self._state.network, self._state.precision, len(one.indices)
        if one.is_empty and network.synchronises_norms:  # it takes part in the statistics with no sample
            inputs, targets, samples = without_samples(inputs), without_samples(targets), 0
        statistics = network.without_statistics() if one.is_empty else nullcontext()
        with network.passing(exchanges=one.ends_step), statistics:
            with precision.forward():
                outputs = network(inputs)
            losses = per_sample(self._loss(precision.restored(outputs), targets), samples, "loss")
            summed = losses.sum() * (0.0 if one.is_empty else 1.0)
            precision.backward(summed * (self._group.world_size / one.step_samples))
        return summed.detach()

    def _optimizer_step(self) -> None:
        state, rate = self._state, self._rate.at(self._state.step)
        if state.adascale is not None:
            rate = state.adascale.gain * self._rate.at(state.adascale.steps)
            state.adascale.steps += state.adascale.gain
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        state.precision.step(state.optimizer, state.module, self._settings.clip_norm)
        state.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        if state.average is not None:
            state.average.update(state.step)
        self.on_step()

    def _gradient_watch(self) -> GradientWatch | None:
        """Return what measures how gradients differ, where a step has several that are exact and whole."""
        settings, state, group = self._settings, self._state, self._group
        is_exact = state.precision.name != "fp16" and settings.compress != "powersgd"
        if not is_exact or state.network.is_sharded or group.world_size * settings.accumulate == 1:
            return None
        return GradientWatch(state.module.parameters(), group, settings.accumulate, state.adascale)

    def _copy_buffers_from_rank_0(self) -> None:
        """Give all ranks rank 0's buffers, which the checkpoint holds; batch statistics differ between ranks."""
        if self._group.world_size > 1:
            for buffer in self._state.module.buffers():
                dist.broadcast(buffer, 0)

    def _facts(self) -> TrialFacts:
        samples, world_size = len(self._train_samples), self._spec.world_size
        effective_batch = self._settings.effective_batch
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
            code_files=code_files(self._spec.python_path) if ":" in self._spec.task else {},
        )
