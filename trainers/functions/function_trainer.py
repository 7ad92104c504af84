"""Runs a training function as a trial, on one rank, up to the epochs that the search allows."""

import atexit
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer

from trainers.checkpoints.checkpoint_writer import CheckpointWriter, Pending, Write
from trainers.contract.training_function import TrainingFunction
from trainers.contract.user_code import code_files
from trainers.data.seeds import derive, reseed
from trainers.failures import classified
from trainers.functions.own_loop import Course, OwnLoop
from trainers.functions.state_to_save import KeptState
from trainers.functions.trial import Trial, TrialOver
from trainers.loop.step_counter import StepCounter
from trainers.model.optimizers import scheduled_rate
from trainers.model.precision import set_fast_math
from trainers.protocol import TEST_PREFIX, Measurement, TaskError, TrialSpec
from trainers.ranks.out_of_step import Arrivals, Place, Verdict
from trainers.ranks.process import PeakMemory, Remains, use_device
from trainers.ranks.process_group import Group, copy_buffers_from_rank_0, destroy_group

_CURES = {
    "signal only works in main thread": "signal.signal: a training function cannot set signal handlers, because trials "
    "run in a thread, and Python allows handlers only in the main thread. Set them outside of the function",
    "initialize the default process group twice": "init_process_group: the ranks of a trial are already in a group. "
    "Remove the call",
    "environment variable .* expected, but not set": "init_process_group: the study forms the group if a trial has "
    "several ranks; one rank needs no group. Remove the call, and use trial.rank and trial.world_size",
    "Default process group has not been init|Process group cannot be None": "no process group: a trial of one rank has "
    "no group, and the study ends the group of several. Use trial.rank and trial.mean; remove destroy_process_group",
}
"""Advice for typical errors of scripts turned into training functions, by parts of the error's message."""


class FunctionTrainer:
    """Runs a training function on one rank."""

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
            self._checkpoints = CheckpointWriter(
                spec, settings, group, self._counter.tick, memory=self._memory, is_shared=self._trial.is_sharded
            )
            self._is_whole = self._goes_on = False
            self._rates = dict[str, float]()
            name = f"{spec.study}/{spec.trial}/{spec.attempt}"
            self._arrivals = Arrivals(name, group, self._counter)
            self._left: Callable[[], object] | None = None
            self._last: Callable[[], object] | None = None

    def run(self, course: Course) -> None:
        """Call the training function until it returns or the trial ends. Raises TrainingError if it raises."""
        with classified():
            use_device(self._group.device, self._group.world_size, self._spec.cpus_per_rank)
            set_fast_math(self._settings, self._group.device)
            reseed(derive("weights", self._spec.seed))
            trial = self._trial
            trial.loop = lambda state: self._epochs(state, course)
            if trial.asking.is_allowed and self._group.rank == 0:
                trial.asking.tell = course.asked
            self._counter.begin("first step")
            with self._arrivals, closing_records(self._spec.python_path):
                try:
                    try:
                        self._function(trial)
                    except SystemExit as error:  # sys.exit() at the end of a script is a return
                        if error.code:
                            raise TaskError(_exit_in_words(error)) from error
                    if self._group.world_size > 1:
                        dist.get_rank()  # raises if the function has destroyed the group
                    self._end()
                except TrialOver:
                    return
                except (ValueError, RuntimeError, AssertionError) as error:
                    cure = next((cure for said, cure in _CURES.items() if re.search(said, str(error))), None)
                    if cure is None:
                        raise
                    raise TaskError(cure) from error

    def _end(self) -> None:
        if self._left is not None:
            self._left()
        elif not self._is_whole:
            raise TaskError("the training function returned without a loop over trial.epochs(...)" + self._on_rank())
        elif self._last is not None:
            self._last()

    def _on_rank(self) -> str:
        return f", on rank {self._group.rank}" if self._group.world_size > 1 else ""

    def close(self) -> Remains | None:
        """Release the trial after its last checkpoint. Returns a check for models left in memory, if there were any."""
        self._counter.begin("checkpoint")
        self._checkpoints.close()
        self._counter.done()
        self._trial.close()
        if not self._trial.modules:
            return None
        return Remains([parameter for model in self._trial.modules for parameter in model.parameters()])

    def _epochs(self, state: Mapping[str, Any], course: Course) -> Iterator[int]:
        kept = KeptState(state)
        optimizers = [one for one in state.values() if isinstance(one, Optimizer)]
        self._own.follow(optimizers)
        for one in optimizers[:1]:
            with suppress(AttributeError):  # a wrapper that has not called Optimizer.__init__
                one.register_step_post_hook(self._note_rate)
        self._trial.scaled_rate = self._own.learning_rate
        epoch, metrics = self._resumed(kept)
        self._trial.epoch = epoch
        files, resuming = code_files(self._spec.python_path), self._resuming(kept)
        has_test = self._trial.has_test and bool(kept)  # only a saved model can be tested
        course.begin(
            self._own.facts(epoch, files, self._model_parameters(), kept.models, resuming, has_test_part=has_test)
        )
        if epoch in self._spec.test_at:  # the trial resumed only to be tested
            started = time.perf_counter()
            metrics |= self._tested(metrics)
            seconds = time.perf_counter() - started
            course.measured(
                Pending(news=Measurement(epoch=epoch, metrics=metrics, wall_seconds=seconds, complete=True))
            )
            raise TrialOver
        return self._loop(epoch, kept, course)

    def _resuming(self, kept: KeptState) -> str:
        """Return a sentence about state that is lost when the trial resumes, or an empty text."""
        missing = kept.missing(self._trial.modules) if self._spec.checkpoint_folder is not None else ""
        if not missing:
            return ""
        if kept:
            done = "resumes without some state" if self._spec.resume_from else "would not resume with the same bits"
            return f"{done}: {missing}"
        done = "started over" if self._spec.attempt > 1 else "would start over each time it resumes"
        return f"{done}: {missing}; epochs that are trained again are charged as lost"

    def _loop(self, epoch: int, kept: KeptState, course: Course) -> Iterator[int]:
        last = self._settings.epochs
        while epoch < last:
            until = course.until(epoch)
            if until is None:
                raise TrialOver
            epoch += 1
            started = time.perf_counter()
            reseed(derive("epoch", self._spec.seed, epoch, self._group.rank))
            self._trial.begin_epoch(epoch)
            self._arrivals.begin(epoch)
            self._counter.begin_epoch(epoch, 0.0)
            end = partial(self._end_epoch, epoch, started, kept, course)
            self._left = partial(end, Place.LEFT)
            self._goes_on = epoch < min(until, last)
            yield epoch
            self._left, self._trial.is_within_epoch = None, False
            if epoch == last:  # code after the loop belongs to the trial, because it still uses the slots
                self._last = end
            elif end():
                raise TrialOver
        self._is_whole = True

    def _end_epoch(self, epoch: int, started: float, kept: KeptState, course: Course, place: Place = Place.END) -> bool:
        complete, has_reported = place is Place.LEFT, bool(self._trial.reported)
        place = Place.RETURNED if epoch == self._settings.epochs else place
        own = Verdict(course.seconds_left() is not None, self._checkpoints.is_due(), complete, has_reported)
        ends, is_due, complete, has_reported = self._arrivals.arrive(epoch, place, own, self._trial.asking.digest())
        if not has_reported:
            raise TaskError(_without_report(epoch, left=complete))
        self._trial.end_epoch()
        for model in self._trial.modules:
            copy_buffers_from_rank_0(model, self._group)
        saves = ends or complete or is_due or epoch in self._spec.milestones
        metrics = self._metrics()
        if self._spec.is_tested_at(epoch, is_last=complete or epoch == self._settings.epochs):
            metrics |= self._tested(metrics)
        goes_on = self._goes_on and not (ends or complete)
        path, write = self._write(epoch, kept, metrics, goes_on=goes_on) if saves and kept else (None, None)
        measurement = Measurement(
            epoch=epoch,
            metrics=metrics,
            checkpoint=path,
            wall_seconds=time.perf_counter() - started,
            ended=ends,
            complete=complete,
            optimizer=self._optimizer_figures(),
        )
        course.measured(Pending(news=measurement, write=write))
        self._counter.done()
        return ends

    def _tested(self, reported: Mapping[str, float]) -> dict[str, float]:
        self._counter.begin("test data")
        found = self._trial.tested()
        if unknown := found.keys() - reported.keys():
            raise TaskError(
                f"trial.test: its function returned {min(unknown)!r}, which no epoch reports. Use names of trial.report"
            )
        return {TEST_PREFIX + name: value for name, value in found.items()}

    def _metrics(self) -> dict[str, float]:
        own: dict[str, float] = {"peak_memory_bytes": self._memory.peak_bytes()}
        if self._trial.modules:
            own["model_parameters"] = float(self._model_parameters())
        return own | self._trial.reported

    def _optimizer_figures(self) -> dict[str, float]:
        """Return the first optimizer's learning rate in its last step, and the gradient norm if steps clip it."""
        norm = self._trial.steps.gradient_norm()
        return self._rates if norm is None else self._rates | {"gradient_norm": norm}

    def _note_rate(self, optimizer: Optimizer, *_: object) -> None:
        with suppress(KeyError, TypeError):  # some optimizers choose their rates themselves
            self._rates = {"learning_rate": scheduled_rate(optimizer.param_groups)}  # schedules may change it later

    def _model_parameters(self) -> int:
        return sum(parameter.numel() for model in self._trial.modules for parameter in model.parameters())

    def _write(
        self, epoch: int, kept: KeptState, metrics: Mapping[str, float], *, goes_on: bool
    ) -> tuple[str | None, Write | None]:
        if self._spec.checkpoint_folder is None:
            return None, None
        self._counter.begin("checkpoint")
        scale = self._trial.steps.precision.state_dict()
        parts = {"function": kept.content(), "how_to_load": kept.how_to_load()}  # on all ranks: each may have rows
        parts |= {"engine": {"precision": scale}} if scale else {}
        content = self._checkpoints.content(epoch, metrics, **parts)
        path, write = self._checkpoints.write(lambda: content, epoch, goes_on=goes_on)
        self._counter.done()
        return path, write

    def _resumed(self, kept: KeptState) -> tuple[int, dict[str, float]]:
        path = self._spec.resume_from
        if path is None:
            return 0, {}
        with self._memory.without_counting():
            content = self._checkpoints.read(path, together=self._trial.is_sharded)
            kept.restore(content.get("function"), path)
            self._trial.steps.precision.load_state_dict(content.get("engine", {}).get("precision", {}))
            epoch, metrics = int(content["position"]["epoch"]), dict(content["metrics"])
            del content
        return epoch, metrics


def _exit_in_words(error: SystemExit) -> str:
    if any(Path(frame.filename).name == "argparse.py" for frame in traceback.extract_tb(error.__traceback__)):
        return (
            "parse_args() found the arguments of the trial's process. Take the values from trial.params, or give "
            "parse_args a list of arguments"
        )
    return f"the training function called sys.exit({error.code!r:.200}). Raise an error, or return after the loop"


def _without_report(epoch: int, *, left: bool) -> str:
    if not left:
        return f"epoch {epoch} ended without trial.report(...) on rank 0"
    return (
        f"the training function left epoch {epoch} without trial.report(...) on rank 0, and returned; "
        "call trial.report before break"
    )


_ENDS: dict[str, Callable[[Any, bool], object]] = {
    "mlflow": lambda mlflow, failed: [
        mlflow.end_run(("FINISHED", "FAILED")[failed]) for _ in iter(mlflow.active_run, None)
    ],
    # Until teardown, wandb keeps the environment it read first, with the group and trial of the earlier trial.
    "wandb": lambda wandb, failed: (wandb.finish(exit_code=int(failed)), wandb.teardown()),
    "comet_ml": lambda comet, _: comet.end(),
    "clearml": lambda clearml, failed: _end_clearml(clearml.Task.current_task(), failed=failed),
}
_NEPTUNE = "/site-packages/neptune/"  # folder of the client whose runs end by their own `atexit` calls
_WRITER = "_AsyncWriterThread"
"""Class of a TensorBoard writer's thread, which holds back its last points for up to two minutes."""


@contextmanager
def closing_records(folders: Sequence[str]) -> Iterator[None]:
    """Close writers, log handlers and clients that user code (files below `folders`) opened in the block."""
    threads, handlers, had_group = set(threading.enumerate()), _handlers(), dist.is_initialized()
    exits, register = list[Callable[[], object]](), atexit.register

    def registered(call: Callable[..., object], *arguments: Any, **named: Any) -> Callable[..., object]:
        file = sys._getframe(1).f_code.co_filename  # noqa: SLF001 - the caller's file
        if _NEPTUNE not in file and ("site-packages" in file or not file.startswith(tuple(folders))):
            return register(call, *arguments, **named)
        exits.append(partial(call, *arguments, **named))
        return call

    atexit.register = registered  # type: ignore[assignment]
    try:
        yield
    finally:
        atexit.register = register
        failed = sys.exc_info()[0] is not None
        ends = [partial(end, sys.modules[name], failed) for name, end in _ENDS.items() if name in sys.modules]
        new = (one for one in set(threading.enumerate()) - threads if type(one).__name__ == _WRITER)
        closing: list[Callable[[], object]] = [*reversed(exits), *ends, *(partial(_close_writer, one) for one in new)]
        for close in closing:
            with suppress(Exception):  # an error here must not fail a training that has ended
                close()
        for logger, handler in _handlers() - handlers:
            if not _is_of_library(logger):
                logger.removeHandler(handler)
                handler.close()
        if not had_group:
            destroy_group()


def _end_clearml(task: Any, *, failed: bool) -> None:
    if task is not None:
        (task.mark_failed if failed else task.mark_completed)()
        task.close()


def _close_writer(thread: Any) -> None:
    thread.stop()
    thread._record_writer.flush()  # noqa: SLF001 - nothing else leads to the file
    thread._record_writer.close()  # noqa: SLF001


def _handlers() -> set[tuple[logging.Logger, logging.Handler]]:
    loggers = (logging.root, *logging.root.manager.loggerDict.values())
    return {(one, handler) for one in loggers if isinstance(one, logging.Logger) for handler in one.handlers}


def _is_of_library(logger: logging.Logger) -> bool:
    """Return whether an installed library owns a logger, to which it adds handlers only once in a process."""
    module = sys.modules.get(logger.name.partition(".")[0])
    return "site-packages" in str(getattr(module, "__file__", ""))
