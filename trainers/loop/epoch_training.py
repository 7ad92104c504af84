"""Trains one epoch on one rank, by gradient steps or by growing a model such as boosted trees."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainers.checkpoints.checkpoint import fits_the_model
from trainers.contract.task import GrownModel, Task
from trainers.data.epoch_plan import EpochLayout, Pass, SingleSamples, work_of
from trainers.data.sample_order import Feed, OrderedFeed, StreamFeed
from trainers.data.samples import Samples
from trainers.data.seeds import derive, reseed
from trainers.data.streams import Sharing, StreamSamples
from trainers.failures import CheckpointError, UnreadablePartError
from trainers.local.batch_log import BatchLog
from trainers.loop.epoch_parts import EpochSums, restore_part
from trainers.loop.evaluation import LOSS, StepWeights, has_weights, per_sample, weights_of
from trainers.loop.gradient_noise import GradientWatch
from trainers.loop.step_counter import GradientNorms, StepCounter
from trainers.loop.training_state import TrainingState
from trainers.model.learning_rate import LearningRate
from trainers.model.optimizers import RATE_FACTOR
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process import PeakMemory
from trainers.ranks.process_group import Group, copy_from_rank_0
from trainers.trial_settings import Settings

NORM_EVERY_STEPS = 64
"""Steps between two gradient norms that are measured only for TensorBoard or MLflow."""


class EpochTraining:
    """Trains on this rank's share of an epoch's samples. `layout` is None if an epoch ends with the stream."""

    def __init__(
        self,
        *,
        spec: TrialSpec,
        settings: Settings,
        task: Task,
        loss: Callable[[Any, Any], Any],
        layout: EpochLayout | None,
        rate: LearningRate,
        samples: Samples | StreamSamples,
        state: TrainingState,
        watch: GradientWatch | None,
        memory: PeakMemory,
        group: Group,
        counter: StepCounter,
    ) -> None:
        self._spec, self._settings, self._loss, self._layout, self._rate = spec, settings, loss, layout, rate
        self._samples, self._state, self._watch, self._group, self._counter = samples, state, watch, group, counter
        self._memory = memory
        self._weights = StepWeights(task, group) if has_weights(task) else None
        self._samples_norms = settings.clip_norm is None and _has_plain_gradients(state, settings, group)
        has_norms = self._samples_norms or settings.clip_norm is not None
        self._norms = GradientNorms(group.device) if has_norms else None
        self._feed: Feed | None = None
        self._first_step = state.step
        self.on_step: Callable[[], None] = lambda: None
        self.log: BatchLog | None = None

    def begin(self, epoch: int) -> EpochSums:
        """Seed the epoch's random generators, or continue from a checkpoint within the epoch."""
        state, group, watch, seed = self._state, self._group, self._watch, self._spec.seed
        state.network.begin_epoch(derive("augmentation", seed, epoch))
        if watch is not None:
            watch.begin_epoch()
        if self._norms is not None:
            self._norms.begin_epoch()
        self._first_step = state.step
        part, state.part = state.part, None
        if part is not None:
            try:
                with fits_the_model(str(self._spec.resume_from)):
                    return restore_part(part, watch, group, seed=seed, epoch=epoch)
            except CheckpointError as error:
                raise UnreadablePartError(str(error)) from error
        reseed(derive("epoch", seed, epoch, group.rank))
        return EpochSums.of_nothing(group.device)

    def steps(self, epoch: int, sums: EpochSums, *, further_work: float) -> Iterator[float]:
        """Train to the end of the epoch. `further_work` is the later evaluation, in forward passes of a sample.

        After each step but the last, yields the fraction of steps done (0 if unknown), the same on all ranks. A last
        step that is not known to be the last yields, too.
        """
        started = time.perf_counter()
        watch, counter = self._watch, self._counter
        feed = self._feed = self._feed or self._new_feed()
        work, done = feed.begin(epoch, sums.steps)
        counter.begin_epoch(epoch, work and work + further_work, done)
        passes = feed.passes()
        while True:
            asked = time.perf_counter()
            counter.begin("training", feed.next_samples)
            found = next(passes, None)
            if found is None:
                break
            one, inputs, targets = found
            counter.begin("training", one.samples)
            counter.tick()
            sums.data_seconds += time.perf_counter() - asked
            if watch is not None and one.begins_step:
                is_full = one.step_samples == self._settings.effective_batch
                watch.begin_step(self._state.step, is_full=is_full)
            number, fraction = self._state.step + 1, None
            with self._memory.of_pass("training", one.samples):
                mean = self._forward_backward(one, inputs, targets, sums)
                if one.ends_step:
                    self._end_step(one.step_samples)
            sums.samples += 0 if one.is_empty else one.samples
            if one.ends_step:
                sums.steps += 1
                fraction = feed.trained(sums.steps)
            if mean is not None and self.log is not None:
                seconds = time.perf_counter() - asked
                self.log.add(epoch=epoch, step=number, samples=one.samples, loss=mean, seconds=seconds)
            counter.done(work_of([one]))
            if fraction is not None:
                sums.seconds += time.perf_counter() - started
                yield fraction
                started = time.perf_counter()
        if self._group.device.type == "cuda":
            torch.cuda.synchronize(self._group.device)  # without this wait, only kernel launches would be timed
        sums.seconds += time.perf_counter() - started
        if self.log is not None:
            self.log.end_epoch()

    def gradient_norm(self) -> float | None:
        """Return the root mean square of gradient norms before clipping; None if they are not measured."""
        return None if self._norms is None else self._norms.root_mean_square()

    def _new_feed(self) -> Feed:
        sharing = Sharing(
            batch_per_rank=self._settings.batch_per_rank,
            accumulate=self._settings.accumulate,
            rank=self._group.rank,
            world_size=self._group.world_size,
            even=self._state.network.passes_together,
            singles=self._singles(),
            seed=self._spec.seed,
        )
        samples, layout = self._samples, self._layout
        if isinstance(samples, StreamSamples):
            epoch_steps = None if layout is None else layout.steps_per_epoch
            return StreamFeed(samples, epoch_steps, sharing, self._state.place)
        assert layout is not None, "only a stream has no layout"  # noqa: S101
        return OrderedFeed(samples, layout, sharing)

    def _singles(self) -> SingleSamples:
        if self._settings.batch_per_rank == 1 and self._state.network.needs_pairs:
            raise TaskError(
                "batch_per_rank is 1, but BatchNorm1d cannot compute the variance of one sample. Set batch_per_rank "
                "to at least 2, or use a model without BatchNorm1d"
            )
        if self._settings.batch_per_rank == 1 or not self._state.network.has_norms:
            return "keep"
        return cast("SingleSamples", self._settings.single_sample_batches)

    def _forward_backward(self, one: Pass, inputs: Any, targets: Any, sums: EpochSums) -> Tensor | None:
        network, precision, samples = self._state.network, self._state.precision, one.samples
        statistics = network.without_statistics() if one.is_empty else nullcontext()
        with network.passing(exchanges=one.ends_step), statistics:
            with precision.forward():
                outputs = network(inputs)
            losses = per_sample(self._loss(precision.restored(outputs), targets), samples, "loss")
            if one.is_empty:
                losses = losses * 0.0
            if self._weights is None:
                summed = losses.sum()
                weight: float | Tensor = 0.0 if one.is_empty else float(samples)
            else:
                weights = self._weights.of(targets, samples)
                summed = (losses * weights).sum()
                weight = self._weights.add(weights * 0.0 if one.is_empty else weights)
            precision.backward(summed, self._group.world_size / one.step_samples)
        sums.weight += weight
        sums.losses += summed.detach()
        return None if self.log is None or one.is_empty else summed.detach() / weight

    def _end_step(self, step_samples: int) -> None:
        if self._watch is not None:
            self._watch.end_step()
        state, rate = self._state, self._rate.at(self._state.step)
        if self._weights is not None:
            self._weights.divide(state.module.parameters(), step_samples)
        if state.adascale is not None:
            rate = state.adascale.gain * self._rate.at(state.adascale.steps)
            state.adascale.steps += state.adascale.gain
        for group in state.optimizer.param_groups:
            group["lr"] = rate * group.get(RATE_FACTOR, 1.0)
        sampled = self._samples_norms and (state.step - self._first_step) % NORM_EVERY_STEPS == 0
        gradients = [one.grad for one in state.module.parameters() if one.grad is not None] if sampled else []
        norm = nn.utils.get_total_norm(gradients) if gradients else None
        clipped = state.precision.step(state.optimizer, state.module, self._settings.clip_norm)
        norm = norm if clipped is None else clipped
        if norm is not None and self._norms is not None:
            self._norms.add(norm)
        state.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        if state.average is not None:
            state.average.update(state.step)
        self.on_step()


def _has_plain_gradients(state: TrainingState, settings: Settings, group: Group) -> bool:
    """Return whether a step has the gradient of one pass: on one rank, unsharded and without fp16 scaling."""
    is_single = group.world_size * settings.accumulate == 1
    return is_single and not state.network.is_sharded and state.precision.name != "fp16"


class EpochGrowth:
    """Grows a model on rank 0, in place of gradient steps, and sends it to the other ranks."""

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
                "train_data is a stream, but a model that is not trained by gradient steps needs all samples at once. "
                "Return data of known length"
            )
        self._spec, self._settings, self._task, self._layout, self._model = spec, settings, task, layout, model
        self._samples, self._state, self._group, self._counter = samples, state, group, counter
        self.on_step: Callable[[], None] = lambda: None
        self.log: BatchLog | None = None

    def begin(self, epoch: int) -> EpochSums:
        """Seed the epoch's random generators."""
        reseed(derive("epoch", self._spec.seed, epoch, self._group.rank))
        return EpochSums.of_nothing(self._group.device)

    def steps(self, epoch: int, sums: EpochSums, *, further_work: float) -> Iterator[float]:
        """Grow the model by an epoch. `further_work` is the later evaluation, in forward passes of a sample."""
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
        """Return None: growing a model computes no gradients."""
        return

    def _grow(self, epoch: int, sums: EpochSums) -> None:
        everything = torch.arange(len(self._samples))
        self._counter.begin("training", len(everything))
        inputs, targets = next(iter(self._samples.batches([everything])))
        self._state.module.cpu()  # models grow on the CPU
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
            losses = per_sample(self._task.loss(outputs, targets.cpu()), len(everything), "loss").double()
            weights = weights_of(self._task, targets.cpu(), len(everything)).get(LOSS, torch.ones_like(losses)).double()
        self._state.module.to(self._group.device)
        sums.losses += (losses * weights).sum().to(self._group.device)
        sums.weight += weights.sum().to(self._group.device)
        sums.samples += len(everything)
        sums.steps += self._layout.steps(epoch) - self._layout.steps(epoch - 1)
