"""One rank of a training without a study: its trainer, reports and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from search_spaces.suggestions import Asked
from trainers.checkpoints.checkpoint_writer import Pending
from trainers.commands.command import Command
from trainers.contract.task_loading import Trainable, load_trainable
from trainers.contract.training_function import TrainingFunction
from trainers.data.samples import TrialData, load_data
from trainers.data.shared_arrays import share_arrays
from trainers.functions.function_trainer import FunctionTrainer
from trainers.local.diagnostics import diagnosed
from trainers.loop.step_counter import StepCounter
from trainers.loop.trainer import Trainer
from trainers.protocol import EpochPart, Measurement, TaskError, TrialFacts, TrialSpec
from trainers.ranks.process import set_threads
from trainers.ranks.process_group import Group, backend_in_use, destroy_group
from trainers.ranks.rendezvous import RankPlace


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """Facts of one rank before its first step.

    Attributes:
        samples: Number of training samples of this rank in an epoch.
        device: Name of the device, such as "cpu" or "cuda:1".
        backend: Backend of the group, gloo or nccl; "none" for a single rank.
    """

    rank: int
    samples: int
    device: str
    backend: str
    facts: TrialFacts


OnMeasurement = Callable[[Measurement], None]
OnPart = Callable[[EpochPart], None]
OnFacts = Callable[[RankFacts], None]


class Callbacks(NamedTuple):
    """Callbacks for each kind of message."""

    facts: OnFacts
    measurement: OnMeasurement
    part: OnPart


def train_rank(
    spec: TrialSpec, place: RankPlace, callbacks: Callbacks, task: Trainable | None = None
) -> Iterator[Measurement]:
    """Load task and data, join the other ranks, train, and yield measurements; raises TrainingError."""
    with closing(place):
        task = task or load_trainable(spec.task, spec.task_options, spec.python_path)
        data = _data_of(spec, task, place)
        group = place.join()
    if isinstance(task, TrainingFunction):
        yield from _run_function(spec, task, group, callbacks)
    elif not isinstance(task, Command):
        trainer = Trainer(spec, task, group=group, data=data)
        del data
        yield from _train(spec, trainer, group, callbacks)
    destroy_group()


def _data_of(spec: TrialSpec, task: Trainable, place: RankPlace) -> TrialData | None:
    """Load data before joining the others; a training function loads its own."""
    if isinstance(task, Command):
        raise TaskError("a command trains in studies only, which give it slots and a place; run it by itself")
    if isinstance(task, TrainingFunction):
        return None
    if place.world_size > 1:
        share_arrays(task)
    set_threads(spec.cpus_per_rank)
    return load_data(spec, task, place.device, StepCounter())


def _run_function(spec: TrialSpec, task: TrainingFunction, group: Group, callbacks: Callbacks) -> Iterator[Measurement]:
    function = FunctionTrainer(spec, task, group=group)
    with diagnosed(spec.diagnostics, group) as saw:
        course = _WithoutLimits(group, callbacks, saw)
        function.run(course)
    yield from course.measurements
    function.close()


def _train(spec: TrialSpec, trainer: Trainer, group: Group, callbacks: Callbacks) -> Iterator[Measurement]:
    callbacks.facts(_rank_facts(group, trainer.samples_of_rank, trainer.facts))
    trainer.on_part = callbacks.part
    with diagnosed(spec.diagnostics, group, trainer) as saw:
        for measurement in trainer.advance(2**31):
            saw(measurement)
            callbacks.measurement(measurement)
            yield measurement
    trainer.close()


def _rank_facts(group: Group, samples: int, facts: TrialFacts) -> RankFacts:
    device, backend = str(group.device), backend_in_use()
    return RankFacts(rank=group.rank, samples=samples, device=device, backend=backend, facts=facts)


class _WithoutLimits:
    """Lets a training function train to its end, and reports its measurements."""

    def __init__(self, group: Group, callbacks: Callbacks, saw: OnMeasurement) -> None:
        self._group, self._callbacks, self._saw = group, callbacks, saw
        self.measurements: list[Measurement] = []

    def begin(self, facts: TrialFacts, ago_seconds: float = 0.0) -> None:  # noqa: ARG002 - nobody asks for the start
        self._callbacks.facts(_rank_facts(self._group, 0, facts))

    def until(self, epoch: int) -> int | None:  # noqa: ARG002 - any epoch may be trained
        return 2**31

    def seconds_left(self) -> float | None:
        return None

    def asked(self, name: str, asked: Asked) -> None:
        """Do nothing: all parameters are given."""

    def saved(self, pending: Pending[EpochPart]) -> None:
        self._callbacks.part(pending.told())

    def measured(self, pending: Pending[Measurement]) -> None:
        measurement = pending.told()
        self.measurements.append(measurement)
        self._saw(measurement)
        self._callbacks.measurement(measurement)
