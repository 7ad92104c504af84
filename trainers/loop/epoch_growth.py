"""The training part of an epoch for a model that is grown: rank 0 grows it, the others receive it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from trainers.contract.task import Task
from trainers.data.epoch_plan import EpochLayout
from trainers.data.samples import Samples
from trainers.data.seeds import derive, reseed
from trainers.data.streams import StreamSamples
from trainers.local.batch_log import BatchLog
from trainers.loop.epoch_parts import EpochSums
from trainers.loop.evaluation import per_sample
from trainers.loop.step_counter import StepCounter
from trainers.loop.training_state import TrainingState
from trainers.model.grown_model import GrownModel
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process_group import Group, copy_from_rank_0
from trainers.trial_settings import Settings


def _nothing() -> None:
    return


class EpochGrowth:
    """Grows a model by an epoch, in place of `trainers.loop.epoch_training.EpochTraining`.

    It is not saved within an epoch, and ranks do not share the work: other ranks only wait.

    Args:
        layout: Division of passes into epochs, to count steps.

    Attributes:
        log: Never called: there are no batches.
    """

    def __init__(
        self,
        *,
        spec: TrialSpec,
        settings: Settings,
        task: Task,
        layout: EpochLayout | None,
        samples: Samples | StreamSamples,
        state: TrainingState,
        model: GrownModel,
        group: Group,
        counter: StepCounter,
    ) -> None:
        if layout is None or isinstance(samples, StreamSamples):
            raise TaskError(
                "train_data: found a stream with a model that is not trained by gradient steps, allowed: data with a "
                "length, since it grows from all samples at once"
            )
        self._spec, self._settings, self._task, self._layout, self._model = spec, settings, task, layout, model
        self._samples, self._state, self._group, self._counter = samples, state, group, counter
        self.on_step: Callable[[], None] = _nothing
        self.log: BatchLog | None = None

    def begin(self, epoch: int) -> EpochSums:
        """Seed the epoch's random generators."""
        reseed(derive("epoch", self._spec.seed, epoch, self._group.rank))
        return EpochSums.of_nothing(self._group.device)

    def steps(self, epoch: int, sums: EpochSums, *, further_work: float) -> Iterator[float]:
        """Grow the model by an epoch, with `further_work` after it in forward passes of a sample; yields nothing."""
        started = time.perf_counter()
        work = float(len(self._samples))
        self._counter.begin_epoch(epoch, work + further_work, 0.0)
        if self._group.rank == 0:
            self._grow(epoch, sums)
        if self._group.world_size > 1:
            self._counter.begin("training", len(self._samples))
            for tensor in self._state.module.state_dict().values():
                copy_from_rank_0(tensor)
        self._state.step = self._layout.steps(epoch)
        self._counter.done(work)
        sums.seconds += time.perf_counter() - started
        self.on_step()
        yield from ()

    def gradient_norm(self) -> None:
        """Return None: there are no gradients."""
        return

    def _grow(self, epoch: int, sums: EpochSums) -> None:
        everything = torch.arange(len(self._samples))
        self._counter.begin("training", len(everything))
        inputs, targets = next(iter(self._samples.batches([everything])))
        self._state.module.cpu()  # where it grows
        with torch.no_grad():
            outputs = self._model.grow_epoch(
                inputs.cpu(),
                targets.cpu(),
                epoch=epoch,
                epochs=self._settings.epochs,
                seed=derive("epoch", self._spec.seed, epoch, 0),
                threads=max(1, self._spec.cpus_per_rank),
                tick=self._counter.tick,
            )
            losses = per_sample(self._task.loss(outputs, targets.cpu()), len(everything), "loss")
        self._state.module.to(self._group.device)
        sums.losses += losses.double().sum().to(self._group.device)
        sums.weight += len(everything)
        sums.samples += len(everything)
        sums.steps += self._layout.steps(epoch) - self._layout.steps(epoch - 1)
