"""One rank of a training without a study: its trainer, and what is told and kept of it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import NamedTuple

from search_spaces.asked import Asked
from trainers.checkpoint_writer import Pending
from trainers.commands.command import Command
from trainers.data import TrialData, load_data
from trainers.ddp import Group, backend_in_use, destroy_group
from trainers.function_trainer import FunctionTrainer
from trainers.process import set_threads
from trainers.protocol import EpochPart, Measurement, TaskError, TrialFacts, TrialSpec
from trainers.rank_log import BatchLog, batch_log_path
from trainers.rank_place import RankPlace
from trainers.shared_arrays import share_arrays
from trainers.step_counter import StepCounter
from trainers.task_loading import Trainable, load_trainable
from trainers.torch_profile import Profile, Profiler
from trainers.trainer import Trainer
from trainers.training_function import TrainingFunction

END_SECONDS = 5.0
"""Rest of an epoch that a training which was asked to end still trains; Docker and SLURM kill after 10 s or more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """What one rank knows before its first step.

    Attributes:
        samples: Number of training samples that this rank sees in an epoch.
        device: Name of the device, such as "cpu" or "cuda:1".
        backend: What carries the messages of the group, gloo or nccl; "none" for a single rank.
    """

    rank: int
    samples: int
    device: str
    backend: str
    facts: TrialFacts


OnMeasurement = Callable[[Measurement], None]
OnPart = Callable[[EpochPart], None]
OnFacts = Callable[[RankFacts], None]


class Draining:
    """A request that a training on this machine ends soon, with a checkpoint; safe in signal handlers."""

    def __init__(self) -> None:
        self._event = multiprocessing.get_context("spawn").Event()

    def request(self) -> None:
        """Ask for the end."""
        self._event.set()

    def seconds_left(self) -> float | None:
        """Return the seconds within which the training has to end; None if nobody has asked for it.

        An epoch that ends within them is trained to its end.
        """
        return END_SECONDS if self._event.is_set() else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Extras:
    """What a training is given beside its spec.

    Attributes:
        trace: File for a profile of some steps of rank 0; None profiles nothing.
        rank_logs: Folder for the losses of each rank's batches, a CSV file for each rank; None writes none.
        draining: Request that may come while it trains; None if none will.
    """

    trace: str | None = None
    rank_logs: str | None = None
    draining: Draining | None = None


class Callbacks(NamedTuple):
    """What is called with each kind of news."""

    facts: OnFacts
    measurement: OnMeasurement
    part: OnPart
    profile: Callable[[Profile], None]


def train_rank(
    spec: TrialSpec, place: RankPlace, callbacks: Callbacks, extras: Extras, task: Trainable | None = None
) -> Iterator[Measurement]:
    """Train on one rank, and yield its measurements: it loads task and data, and then joins the others.

    Args:
        place: Place of this rank, which it has not joined from yet.
        task: What `spec.task` names, if it was loaded already.
    """
    with closing(place):
        task = task or load_trainable(spec.task, spec.task_options, spec.python_path)
        data = _data_of(spec, task, place)
        group = place.join()
    if isinstance(task, TrainingFunction):
        yield from _run_function(spec, task, group, callbacks, extras)
    elif not isinstance(task, Command):
        trainer = Trainer(spec, task, group=group, data=data)
        del data
        yield from _train(trainer, group, callbacks, extras)
    destroy_group()


def _data_of(spec: TrialSpec, task: Trainable, place: RankPlace) -> TrialData | None:
    """Load what the ranks need not wait for each other for; a training function loads its data itself."""
    if isinstance(task, Command):
        raise TaskError("a command trains in studies only, which give it slots and a place; run it by itself")
    if isinstance(task, TrainingFunction):
        return None
    if place.world_size > 1:
        share_arrays(task)
    set_threads(spec.cpus_per_rank)
    return load_data(spec, task, place.device, StepCounter())


def _run_function(
    spec: TrialSpec, task: TrainingFunction, group: Group, callbacks: Callbacks, extras: Extras
) -> Iterator[Measurement]:
    course = _WithoutLimits(group, callbacks, extras.draining)
    function = FunctionTrainer(spec, task, group=group)
    function.run(course)
    yield from course.measurements
    function.close()


def _train(trainer: Trainer, group: Group, callbacks: Callbacks, extras: Extras) -> Iterator[Measurement]:
    callbacks.facts(_rank_facts(group, trainer.samples_of_rank, trainer.facts))
    profiler = _profiler(trainer, group, extras.trace)
    seconds_left = (lambda: None) if extras.draining is None else extras.draining.seconds_left
    trainer.on_part = callbacks.part
    with ExitStack() as stack:
        if profiler is not None:
            stack.enter_context(profiler)
        if extras.rank_logs is not None:
            trainer.log = stack.enter_context(_batch_log(extras.rank_logs, trainer, group))
        for measurement in trainer.advance(2**31, seconds_left):
            callbacks.measurement(measurement)
            yield measurement
    if profiler is not None:
        callbacks.profile(profiler.result())
    trainer.close()


def _profiler(trainer: Trainer, group: Group, trace: str | None) -> Profiler | None:
    if trace is None or group.rank != 0:
        return None
    profiler = Profiler(trace, trainer.steps_left, group.device)
    trainer.on_step = profiler.step
    return profiler


def _batch_log(folder: str, trainer: Trainer, group: Group) -> BatchLog:
    path = batch_log_path(folder, group.rank)
    try:
        return BatchLog(path, group.device, trainer.steps_done)
    except OSError as error:
        raise TaskError(f"--rank-logs: {path} cannot be written ({error.strerror or error})") from None


def _rank_facts(group: Group, samples: int, facts: TrialFacts) -> RankFacts:
    device, backend = str(group.device), backend_in_use()
    return RankFacts(rank=group.rank, samples=samples, device=device, backend=backend, facts=facts)


class _WithoutLimits:
    """Lets a training function train to its end, and tells what it measures."""

    def __init__(self, group: Group, callbacks: Callbacks, draining: Draining | None) -> None:
        self._group, self._callbacks, self._draining = group, callbacks, draining
        self.measurements: list[Measurement] = []

    def begin(self, facts: TrialFacts, ago_seconds: float = 0.0) -> None:  # noqa: ARG002 - nobody asks for the start
        """Tell the facts."""
        self._callbacks.facts(_rank_facts(self._group, 0, facts))

    def until(self, epoch: int) -> int | None:  # noqa: ARG002 - any epoch may be trained
        """Return an epoch that no trial reaches."""
        return 2**31

    def seconds_left(self) -> float | None:
        """Return the seconds within which the trial has to end; None while it may go on."""
        return None if self._draining is None else self._draining.seconds_left()

    def asked(self, name: str, asked: Asked) -> None:
        """Tell nobody: a training by itself has all its parameters."""

    def saved(self, pending: Pending[EpochPart]) -> None:
        """Tell a part of an epoch, once its checkpoint is whole."""
        self._callbacks.part(pending.told())

    def measured(self, pending: Pending[Measurement]) -> None:
        """Tell a measurement, once its checkpoint is whole."""
        measurement = pending.told()
        self.measurements.append(measurement)
        self._callbacks.measurement(measurement)
