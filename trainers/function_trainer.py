"""Runs a training function as a trial: as far as it is granted, with checkpoints, up to its end.

RankProcess ── grants, drains ──► Course ◄── waits, tells ── FunctionTrainer ── runs ──► the user's function
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainers import checkpoint as checkpoints
from trainers.background_writes import FileWriter, Pending, Write
from trainers.code_files import code_files
from trainers.ddp import Group
from trainers.errors import CheckpointError, classified
from trainers.fast_math import set_fast_math
from trainers.nested import map_tensors
from trainers.own_loop import Course, OwnLoop
from trainers.process import PeakMemory, Remains, set_threads, use_batch_scheduling
from trainers.protocol import Measurement, TaskError, TrialSpec
from trainers.seeds import derive, reseed
from trainers.state_copy import StateCopies
from trainers.step_counter import StepCounter
from trainers.training_function import TrainingFunction
from trainers.trial import Trial, TrialOver


class FunctionTrainer:
    """Runs a training function on one rank.

    Args:
        spec: The trial.
        function: The user's function.
        group: This rank's place in the gang.
        counter: Counts what this rank does, for threads that watch it.
    """

    def __init__(
        self, spec: TrialSpec, function: TrainingFunction, *, group: Group, counter: StepCounter | None = None
    ) -> None:
        with classified():
            self._spec, self._function, self._group = spec, function, group
            self._counter = counter or StepCounter()
            self._own = OwnLoop(spec, "a training function")
            self._settings = settings = self._own.settings
            self._memory = PeakMemory(group.device)
            self._trial = Trial(spec, settings, group, learning_rate=self._own.learning_rate, counter=self._counter)
            self._files = FileWriter(self._counter.tick)
            self._in_background = settings.writes_in_background(group.device.type)
            self._written_at = time.monotonic()
            self._is_whole = self._goes_on = False
            self._left: Callable[[], object] | None = None
            self._last: Callable[[], object] | None = None

    def run(self, course: Course) -> None:
        """Call the function; returns once it has returned, or the trial is over.

        Raises:
            TrainingError: The function raised, or did not keep to the form of a training function.
        """
        with classified():
            if self._group.device.type == "cuda":
                torch.cuda.set_device(self._group.device)
            elif self._group.world_size > 1:
                use_batch_scheduling()
            set_threads(self._spec.cpus_per_rank)
            set_fast_math(self._settings, self._group.device)
            reseed(derive("weights", self._spec.seed))
            trial = self._trial
            trial.loop = lambda state: self._epochs(state, course)
            self._counter.begin("first step")
            try:
                self._function(trial)
            except TrialOver:
                return
            if self._left is not None and self._agreed(bool(trial.reported()))[0]:
                self._left()
            elif not self._is_whole:
                raise TaskError(self._why_not_whole())
            elif self._last is not None:
                self._last()

    def _why_not_whole(self) -> str:
        if self._trial.loop is not None:
            return "the training function returned without a loop over trial.epochs(...)"
        return (
            f"the training function left epoch {self._trial.epoch} without trial.report(...) on rank 0, and returned; "
            "report before break"
        )

    def close(self) -> Remains:
        """Let go of the trial, once its last checkpoint is whole or could not be written.

        Returns:
            Tells whether its models' parameters are still in memory.
        """
        self._counter.begin("checkpoint")
        self._files.close()
        self._counter.done()
        return Remains([parameter for model in self._trial.modules for parameter in model.parameters()])

    def _epochs(self, state: Mapping[str, Any], course: Course) -> Iterator[int]:
        """Take back what a checkpoint holds, at once, and return the loop over the epochs that are left."""
        keeper = _Keeper(state)
        epoch = self._trial.epoch = self._resumed(keeper)
        course.begin(self._own.facts(epoch, code_files(self._spec.python_path), self._model_parameters()))
        return self._loop(epoch, keeper, course)

    def _loop(self, epoch: int, keeper: _Keeper, course: Course) -> Iterator[int]:
        last = self._settings.epochs
        while epoch < last:
            until = course.until(epoch)
            if until is None:
                raise TrialOver
            epoch += 1
            started = time.perf_counter()
            reseed(derive("epoch", self._spec.seed, epoch, self._group.rank))
            self._trial.begin_epoch(epoch)
            self._counter.begin_epoch(epoch, 0.0)
            end = partial(self._end_epoch, epoch, started, keeper, course)
            self._left = partial(end, complete=True)
            self._goes_on = epoch < min(until, last)
            yield epoch
            self._left, self._trial.is_within_epoch = None, False
            if epoch == last:  # what the function does after its loop is still the trial's: others wait for the slots
                self._last = end
            elif end():
                raise TrialOver
        self._is_whole = True

    def _end_epoch(
        self, epoch: int, started: float, keeper: _Keeper, course: Course, *, complete: bool = False
    ) -> bool:
        """Tell an epoch's measurement; returns whether the trial has to end with it."""
        self._copy_buffers_from_rank_0()
        self._trial.is_within_epoch = False
        ends, is_due = self._agreed(course.seconds_left() is not None, self._is_due())
        saves = ends or complete or is_due or epoch in self._spec.milestones
        metrics = self._metrics(epoch)
        in_background = self._in_background and self._goes_on and not (ends or complete)
        path, write = self._write(epoch, keeper, metrics, in_background=in_background) if saves else (None, None)
        measurement = Measurement(
            epoch=epoch,
            metrics=metrics,
            checkpoint=path,
            wall_seconds=time.perf_counter() - started,
            ended=ends,
            complete=complete,
        )
        course.measured(Pending(news=measurement, write=write))
        self._counter.done()
        return ends

    def _agreed(self, *of_rank_0: bool) -> tuple[bool, ...]:
        """Return what rank 0 says; all ranks have to ask."""
        if self._group.world_size == 1:
            return of_rank_0
        said = torch.tensor(of_rank_0, dtype=torch.uint8, device=self._group.device)
        dist.broadcast(said, 0)
        return tuple(map(bool, said.tolist()))

    def _copy_buffers_from_rank_0(self) -> None:
        """Give all ranks rank 0's buffers, which the checkpoint holds; batch statistics differ between ranks."""
        if self._group.world_size > 1:
            for model in self._trial.modules:
                for buffer in model.buffers():
                    dist.broadcast(buffer, 0)

    def _is_due(self) -> bool:
        if self._files.has_failed:  # the next one raises why
            return True
        return not self._files.is_busy and time.monotonic() - self._written_at >= self._spec.checkpoint_every_seconds

    def _metrics(self, epoch: int) -> dict[str, float]:
        reported = self._trial.reported()
        if not reported and self._group.rank == 0:
            raise TaskError(f"epoch {epoch} ended without trial.report(...) on rank 0")
        own: dict[str, float] = {"peak_memory_bytes": self._memory.peak_bytes()}
        if self._trial.modules:
            own["model_parameters"] = float(self._model_parameters())
        return own | reported

    def _model_parameters(self) -> int:
        return sum(parameter.numel() for model in self._trial.modules for parameter in model.parameters())

    def _write(
        self, epoch: int, keeper: _Keeper, metrics: Mapping[str, float], *, in_background: bool
    ) -> tuple[str | None, Write | None]:
        """Write a checkpoint of what was handed over; returns its path and, on rank 0, the file."""
        path = checkpoints.checkpoint_path(self._spec, epoch)
        if path is None or not keeper:
            return None, None
        self._written_at = time.monotonic()
        self._counter.begin("checkpoint")
        content = self._content(epoch, keeper, metrics)  # on all ranks: some have to give what they hold
        write = None
        if self._group.rank == 0:
            save = partial(checkpoints.write_atomically, path=path)
            write = self._files.write(lambda: content, save, in_background=in_background)
        self._counter.done()
        return path, write

    def _content(self, epoch: int, keeper: _Keeper, metrics: Mapping[str, float]) -> dict[str, Any]:
        content = self._own.content(epoch, metrics, function=keeper.checked_content())
        content["static"]["peak_memory_bytes"] = self._memory.peak_bytes()
        return content

    def _resumed(self, keeper: _Keeper) -> int:
        """Return the number of epochs that are done, after taking back what a checkpoint holds."""
        path = self._spec.resume_from
        if path is None:
            return 0
        with self._memory.without_counting():
            content = checkpoints.read_checkpoint(path)
            self._own.check_belongs(content, path)
            keeper.restore(content.get("function"), path)
            epoch, peak_bytes = content["position"]["epoch"], content["static"].get("peak_memory_bytes", 0.0)
            del content
        self._memory.include(peak_bytes)
        return int(epoch)


class _Keeper:
    """What a training function has handed over for its checkpoints.

    Args:
        state: Objects with `state_dict` and `load_state_dict`, or pairs of functions, by name.

    Raises:
        TaskError: Something is neither.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = {name: _unwrapped(name, one) for name, one in state.items()}
        self._is_checked = False

    def __bool__(self) -> bool:
        """Whether anything was handed over."""
        return bool(self._state)

    def content(self) -> dict[str, Any]:
        """Return what is to be saved."""
        return {name: one[0]() if isinstance(one, tuple) else one.state_dict() for name, one in self._state.items()}

    def restore(self, saved: object, path: str) -> None:
        """Take back what was saved.

        Raises:
            CheckpointError: The file holds something else than was handed over.
        """
        if not isinstance(saved, dict) or saved.keys() != self._state.keys():
            names = sorted(saved) if isinstance(saved, dict) else "no state"
            raise CheckpointError(f"checkpoint {path} holds {names}, but trial.epochs was given {sorted(self._state)}")
        for name, one in self._state.items():
            # Optimizers keep the tensors that they are given, and with one of the file's the whole file stays mapped.
            own = StateCopies().of({name: saved[name]})[name]
            if isinstance(one, tuple):  # the user's own function, whose errors are the user's
                one[1](own)
                continue
            with checkpoints.fits_the_model(path):
                one.load_state_dict(own)

    def checked_content(self) -> dict[str, Any]:
        """Return what is to be saved, after trying once whether it can be read back.

        Only plain values and tensors are read, since nothing in a file is to be executed.

        Raises:
            TaskError: There is something else in it.
        """
        content = self.content()
        if not self._is_checked:
            self._is_checked = True
            file = io.BytesIO()
            try:
                torch.save(map_tensors(lambda tensor: torch.empty(0, dtype=tensor.dtype), content), file)
                file.seek(0)
                torch.load(file, weights_only=True)
            except Exception as error:
                said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise TaskError(f"trial.epochs: a checkpoint cannot hold what was handed over: {said}") from error
        return content


def _unwrapped(name: str, one: Any) -> Any:
    """Return an object whose state does not depend on the number of ranks.

    Raises:
        TaskError: It has no state.
    """
    if isinstance(one, DistributedDataParallel):
        return one.module
    is_pair = isinstance(one, tuple) and len(one) == 2 and all(map(callable, one))
    has_state = callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))
    if is_pair or has_state or isinstance(one, nn.Module):
        return one
    raise TaskError(
        f"trial.epochs: found {name} of type {type(one).__name__}, allowed: an object with state_dict and "
        "load_state_dict, or a pair of functions (save, load)"
    )
