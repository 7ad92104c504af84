"""The training loop of one trial, on one rank.

All ranks run a `Trainer` in step. They divide each step's global batch, and multiply losses by world_size / (samples of
the global batch), so that DDP's average over ranks is the mean over samples: k ranks with batch b train to the same
weights as 1 rank with batch k b.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from torch import nn

from search_spaces.untrusted_text import last_line
from trainers.checkpoints.checkpoint_writer import CheckpointWriter, Pending, Write
from trainers.checkpoints.locations import counting
from trainers.contract.task import Task, grows, has_test_part, training_loss
from trainers.contract.user_code import code_files, data_files
from trainers.data.epoch_plan import samples_of_rank
from trainers.data.sample_order import layout_of
from trainers.data.samples import TrialData, load_data
from trainers.data.streams import StreamSamples
from trainers.failures import classified
from trainers.functions.own_loop import Course
from trainers.loop.epoch_metrics import EpochEnd, EpochResult, can_explain
from trainers.loop.epoch_parts import EpochSums, Meetings, Order, part_content
from trainers.loop.epoch_training import EpochGrowth, EpochTraining
from trainers.loop.evaluation import has_weights
from trainers.loop.gradient_noise import GradientWatch
from trainers.loop.step_counter import StepCounter
from trainers.loop.training_state import build_state
from trainers.model.learning_rate import planned_learning_rate
from trainers.model.optimizers import own_schedule, scheduled_rate
from trainers.model.precision import set_fast_math
from trainers.protocol import DivergedError, EpochPart, Measurement, TaskError, TrialFacts, TrialSpec
from trainers.ranks.process import Remains, set_threads, use_device
from trainers.ranks.process_group import Group, copy_buffers_from_rank_0
from trainers.trial_settings import settings_of

log = logging.getLogger(__name__)

SecondsLeft = Callable[[], float | None]
"""Returns the seconds left to end a trial: infinite to finish the epoch, None while it may continue."""


def _no_end() -> None:
    return None


PartSaved = Callable[[Pending[EpochPart]], None]


class Trainer:
    """Trains one configuration, epoch by epoch.

    Attributes:
        training: The training part of an epoch; `training.on_step` and `training.log` get each step and batch.
        on_part: Called after a checkpoint within an epoch.
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
        """Build model and optimizer, or restore them from `spec.resume_from`. Every error is a TrainingError.

        Several ranks need the default process group. `data` comes from `load_data`; None loads it here.
        """
        with classified():
            if group.world_size != spec.world_size:
                raise TaskError(f"the process group has {group.world_size} ranks, but the trial has {spec.world_size}")
            set_threads(spec.cpus_per_rank)
            settings = settings_of(spec)
            set_fast_math(settings, group.device)
            self._spec, self._task, self._group, self._settings = spec, task, group, settings
            self._counter = counter = counter or StepCounter()
            loss = training_loss(task, settings.label_smoothing)
            data = data or load_data(spec, task, group.device, counter)
            layout = layout_of(data.train, settings)
            self._samples = 0 if isinstance(data.train, StreamSamples) else len(data.train)
            self._layout, self._rate = layout, planned_learning_rate(settings, layout, own_schedule(task, spec.params))
            counter.begin("model")
            resuming = nullcontext() if spec.resume_from is None else data.memory.without_counting()
            with counting(counter.tick), resuming:
                self._checkpoints = CheckpointWriter(
                    spec, settings, group, counter.tick,
                    memory=data.memory, is_shared=group.world_size > 1 and settings.shard != "none",
                )  # fmt: skip
                path = spec.resume_from
                self._state = build_state(
                    spec, task, group, settings=settings, rate=self._rate, layout=layout,
                    content=None if path is None else self._checkpoints.read(path, together=True),
                )  # fmt: skip
            counter.done()
            self._watch = self._gradient_watch()
            if grows(self._state.module):
                self.training: EpochTraining | EpochGrowth = EpochGrowth(
                    spec=spec, settings=settings, task=task, layout=layout, samples=data.train, state=self._state,
                    model=self._state.module, group=group, counter=counter,
                )  # fmt: skip
            else:
                self.training = EpochTraining(
                    spec=spec, settings=settings, task=task, loss=loss, layout=layout, rate=self._rate,
                    samples=data.train, state=self._state, watch=self._watch, memory=data.memory, group=group,
                    counter=counter,
                )  # fmt: skip
            self._epoch_end = EpochEnd(
                spec=spec, task=task, settings=settings, validation=data.validation, state=self._state,
                watch=self._watch, memory=data.memory, group=group, counter=counter,
            )  # fmt: skip
            # PowerSGD's error correction is not saved in checkpoints, and is reset in each epoch.
            has_parts = spec.checkpoint_folder is not None and settings.compress != "powersgd"
            self._meetings = Meetings(group) if has_parts else None
            self.on_part: Callable[[EpochPart], None] = lambda _part: None
            self.facts = self._facts()

    @property
    def module(self) -> nn.Module:
        """The model without the DDP wrapper."""
        return self._state.module

    @property
    def epoch(self) -> int:
        """Number of epochs done."""
        return self._state.epoch

    @property
    def samples_of_rank(self) -> int:
        """Number of this rank's training samples in a pass over the data."""
        facts, group = self.facts, self._group
        return samples_of_rank(facts.samples, facts.effective_batch, rank=group.rank, world_size=group.world_size)

    @property
    def steps_done(self) -> int:
        """Number of optimizer steps so far, in all attempts."""
        return self._state.step

    @property
    def steps_left(self) -> int:
        """Number of optimizer steps left; a lower bound if each epoch is a whole stream."""
        if self._layout is None:
            return self._settings.epochs - self._state.epoch
        return self._layout.steps(self._settings.epochs) - self._state.step

    def advance(self, until_epoch: int, seconds_left: SecondsLeft = _no_end) -> Iterator[Measurement]:
        """Train to the end of `until_epoch`, and yield a measurement after each epoch, once its checkpoint is complete.

        All ranks must iterate in step; their measurements differ only in `wall_seconds`. Checkpoints within an epoch go
        to `on_part`. If `seconds_left`, called on rank 0, returns a number, all ranks stop with a checkpoint, after the
        epoch or within it if it would take longer.

        Raises:
            DivergedError: The training loss is not finite; raised on all ranks after the same epoch.
            TrainingError: Any other error.
        """

        def saved(part: Pending[EpochPart]) -> None:
            self.on_part(part.told())

        for pending in self.advance_ahead(until_epoch, saved, seconds_left, ahead=False):
            yield pending.told()

    def run(self, course: Course) -> None:
        """Train as far as `course` allows, while a thread writes checkpoints. Errors of writing are raised later."""
        self._counter.begin("first step")
        course.begin(self.facts)
        if self.epoch in self._spec.test_at:  # the trial resumed only to be tested
            course.measured(Pending(news=self._scored()))
            return
        while (until := course.until(self.epoch)) is not None:
            for pending in self.advance_ahead(until, course.saved, course.seconds_left):
                course.measured(pending)
                if pending.news.ended or pending.news.complete:
                    return
            if self.epoch < until:  # the trial has ended within an epoch
                return

    def _scored(self) -> Measurement:
        started = time.perf_counter()
        with classified(), self._state.evaluated_weights():
            use_device(self._group.device, self._group.world_size, self._spec.cpus_per_rank)
            metrics = {**self._state.metrics, **self._epoch_end.test_metrics()}
            answers = self._described() if self._spec.explain_seconds else {}
        seconds = time.perf_counter() - started
        return Measurement(epoch=self.epoch, metrics=metrics, wall_seconds=seconds, complete=True, answers=answers)

    def _described(self) -> dict[str, Any]:
        try:
            return self._epoch_end.answers(self._spec.explain_seconds)
        except (RuntimeError, ValueError, MemoryError) as error:
            log.warning("the model's predictions could not be described for the report (%s)", last_line(str(error)))
            return {}

    def advance_ahead(
        self, until_epoch: int, on_part: PartSaved, seconds_left: SecondsLeft = _no_end, *, ahead: bool = True
    ) -> Iterator[Pending[Measurement]]:
        """Train as `advance` does. With `ahead`, do not wait for the thread that writes checkpoints."""
        with classified():
            use_device(self._group.device, self._group.world_size, self._spec.cpus_per_rank)
            last = min(until_epoch, self._settings.epochs)
            for epoch in range(self.epoch + 1, last + 1):
                pending = self._run_epoch(epoch, seconds_left, on_part, ahead=ahead, is_last=epoch == last)
                if pending is None:
                    return
                yield pending
                if pending.news.ended or pending.news.complete:
                    return

    def close(self) -> Remains:
        """Release model and data after the last checkpoint. Returns a check for parameters left in memory."""
        remains = Remains(self.module.parameters())
        self._counter.begin("checkpoint")
        self._checkpoints.close()
        self._counter.done()
        self._state.network.close()
        for name in ("_state", "_watch", "_epoch_end", "training"):
            self.__dict__.pop(name, None)
        return remains

    def _run_epoch(
        self, epoch: int, seconds_left: SecondsLeft, on_part: PartSaved, *, ahead: bool, is_last: bool
    ) -> Pending[Measurement] | None:
        started = time.perf_counter()
        state = self._state
        sums = self.training.begin(epoch)
        for fraction in self.training.steps(epoch, sums, further_work=self._epoch_end.work):
            order = self._order_after_step(sums, fraction, seconds_left)
            if order is not Order.GO_ON:
                on_part(self._save_part(epoch, sums, started, ends=order is Order.END, ahead=ahead))
                started = time.perf_counter()
            if order is Order.END:
                return None
        copy_buffers_from_rank_0(self._state.module, self._group)
        with state.evaluated_weights():
            result = self._epoch_end.reduce(sums, lambda: seconds_left() is not None, self._checkpoints.is_due)
            state.epoch = epoch
            train_loss = result.averages["train_loss"]
            if not math.isfinite(train_loss):
                raise DivergedError(f"the training loss of epoch {epoch} is {train_loss}")
            state.metrics = self._epoch_end.metrics(result)
            complete = state.patience.runs_out(result.averages["val_loss"])
            if self._spec.is_tested_at(epoch, is_last=complete or epoch == self._settings.epochs):
                state.metrics |= self._epoch_end.test_metrics()
            is_kept = epoch in self._spec.milestones
            saves = result.ends or complete or result.checkpoint_is_due or is_kept
            goes_on = ahead and not (is_last or result.ends or complete)
            path, write = self._write_checkpoint(goes_on=goes_on) if saves else (None, None)
        measurement = Measurement(
            epoch=epoch,
            metrics=dict(state.metrics),
            checkpoint=path,
            wall_seconds=time.perf_counter() - started,
            ended=result.ends,
            complete=complete,
            optimizer={} if grows(self.module) else self._optimizer_figures(result),
        )
        return Pending(news=measurement, write=write)

    def _optimizer_figures(self, result: EpochResult) -> dict[str, float]:
        """Return the epoch's learning rate and gradient norm. The gradient watch ignores sample weights."""
        norm = self.training.gradient_norm()
        if norm is None and not has_weights(self._task):
            norm = result.gradient_norm
        figures = {"learning_rate": scheduled_rate(self._state.optimizer.param_groups)}
        return figures if norm is None else figures | {"gradient_norm": norm}

    def _order_after_step(self, sums: EpochSums, fraction: float, seconds_left: SecondsLeft) -> Order:
        def decide() -> Order:
            left = seconds_left()
            rest = math.inf  # the first epoch of a stream has unknown length
            if fraction > 0:
                rest = sums.seconds * (1.0 / fraction - 1.0) + self._state.metrics.get("evaluation_seconds", 0.0)
            if left is not None and rest > left:
                return Order.END
            return Order.SAVE if self._checkpoints.is_due(within_epoch=True) else Order.GO_ON

        return Order.GO_ON if self._meetings is None else self._meetings.after_step(sums, decide)

    def _save_part(self, epoch: int, sums: EpochSums, started: float, *, ends: bool, ahead: bool) -> Pending[EpochPart]:
        copy_buffers_from_rank_0(self._state.module, self._group)
        part = part_content(sums, self._watch, self._group)
        with self._state.evaluated_weights():
            path, write = self._write_checkpoint(part, goes_on=ahead and not ends)
        saved = EpochPart(
            epoch=epoch,
            fraction=self._counter.read().fraction,
            wall_seconds=time.perf_counter() - started,
            checkpoint=str(path),
            checkpoint_bytes=0,
            ended=ends,
        )
        return Pending(news=saved, write=write)

    def _write_checkpoint(
        self, part: Mapping[str, Any] | None = None, *, goes_on: bool = False
    ) -> tuple[str | None, Write | None]:
        state = self._state
        of_epoch = (state.epoch, None) if part is None else (state.epoch + 1, state.step)
        self._counter.begin("checkpoint")
        path, write = self._checkpoints.write(partial(self._content, part), *of_epoch, goes_on=goes_on)
        self._counter.done()
        return path, write

    def _content(self, part: Mapping[str, Any] | None = None) -> dict[str, Any]:
        state, of_part = self._state, {} if part is None else {"part": dict(part)}
        rate = asdict(replace(self._rate, own=None))
        return self._checkpoints.content(state.epoch, state.metrics, scheduler=rate, **state.content(), **of_part)

    def _gradient_watch(self) -> GradientWatch | None:
        """Return a `GradientWatch` if a step adds several exact, unsharded gradients, else None."""
        settings, state, group = self._settings, self._state, self._group
        is_exact = state.precision.name != "fp16" and settings.compress != "powersgd" and not grows(state.module)
        if not is_exact or state.network.is_sharded or group.world_size * settings.accumulate == 1:
            return None
        return GradientWatch(state.module.parameters(), group, settings.accumulate, state.adascale)

    def _facts(self) -> TrialFacts:
        samples, effective_batch = self._samples, self._settings.effective_batch
        return TrialFacts(
            base_learning_rate=self._rate.base,
            scaled_learning_rate=self._rate.scaled,
            lr_scaling=self._rate.rule,
            reference_batch=self._settings.reference_batch,
            effective_batch=effective_batch,
            samples=samples,
            samples_per_rank=samples_of_rank(samples, effective_batch, rank=0, world_size=self._spec.world_size),
            model_parameters=sum(parameter.numel() for parameter in self.module.parameters()),
            start_epoch=self.epoch,
            code_files=code_files(self._spec.python_path) if ":" in self._spec.task else {},
            data_files=data_files(self._task, self._spec.task_options) if self._group.rank == 0 else {},
            has_test_part=has_test_part(self._task),
            can_explain=can_explain(self._task),
        )
