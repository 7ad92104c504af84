"""Process of one device slot, which trains one trial after another in one thread, as one rank of each trial.

A pool calls it from several threads: `run` or `follow` occupies a thread during a trial; `grant`, `drain`, `close` and
`steps` are called at the same time. A run trains up to the granted epoch and waits; it ends after `close`.
"""

import copy
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, Literal, cast

import psutil

from search_spaces.suggestions import Asked
from trainers.checkpoints.checkpoint_writer import Pending
from trainers.commands.command import Command
from trainers.commands.command_trainer import CommandTrainer
from trainers.contract.task_loading import Trainable, import_task, load_trainable
from trainers.contract.training_function import TrainingFunction
from trainers.data.samples import load_data
from trainers.data.shared_arrays import share_arrays
from trainers.failures import classify
from trainers.functions.function_trainer import FunctionTrainer
from trainers.local.diagnostics import diagnosed
from trainers.loop.step_counter import StepCount, StepCounter
from trainers.loop.trainer import Trainer
from trainers.protocol import AskedFor, Backend, Measurement, RankAssignment, TrialFacts, TrialSpec
from trainers.ranks.process import (
    Remains,
    collect_exempt,
    exempt_from_collection,
    free_memory,
    pin_to_cpus,
    set_threads,
    use_one_heap,
)
from trainers.ranks.process_group import Group, Membership, device_of, warm_up
from trainers.ranks.process_state import ProcessState, own_environment
from trainers.ranks.rank_messages import Began, Failed, Message, Orders, Outgoing

MOST_EARLY_ORDERS = 8


class _TaskCache:
    """Keeps the last task, whose constructor may read data, and the process's state. Each trial gets a shallow copy."""

    def __init__(self) -> None:
        self._key: object = None
        self._task: Trainable | None = None
        self._start = self._with_task = ProcessState()
        self._with_module: dict[object, ProcessState] = {}

    def set_process_back(self, spec: TrialSpec) -> None:
        (self._with_task if self._is_kept(spec) else self._start).restore()

    def task_of(self, spec: TrialSpec) -> Trainable:
        if not self._is_kept(spec):
            if self._task is not None:
                self._task = None  # two data sets may not fit into memory
                collect_exempt()
            self._import_module(spec)
            made = load_trainable(spec.task, spec.task_options, spec.python_path)
            share_arrays(made)
            self._task, self._key = made, _key_of(spec)
            self._with_task = ProcessState()
            exempt_from_collection()
        return copy.copy(cast("Trainable", self._task))

    def _is_kept(self, spec: TrialSpec) -> bool:
        return self._task is not None and self._key == _key_of(spec)

    def _import_module(self, spec: TrialSpec) -> None:
        """Import the task's module. A second import runs no code, so it restores the first import's global state."""
        module = (spec.task, spec.python_path)
        if module in self._with_module:
            self._with_module[module].restore()
        else:
            import_task(spec.task, spec.python_path)
            self._with_module[module] = ProcessState()


def _key_of(spec: TrialSpec) -> object:
    return spec.task, repr(sorted(spec.task_options.items())), spec.python_path


class RankProcess:
    """Process of one device slot, which trains trials in turn. It should see at most one GPU.

    `cpus` belong only to this slot; empty if ranks do not use all CPUs. `backend` None means the device's default.
    """

    def __init__(
        self,
        *,
        device: Literal["cpu", "cuda"],
        cpus_per_rank: int,
        cpus: Collection[int] = (),
        backend: Backend | None = None,
    ) -> None:
        pin_to_cpus(cpus)
        use_one_heap()
        set_threads(cpus_per_rank)
        self._device = device_of(device)
        self._membership = Membership(self._device)
        self._orders: dict[str, Orders] = {}
        self._early: dict[str, dict[str, Any]] = {}
        self._counter: tuple[str, StepCounter] = ("", StepCounter())
        self._changing = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        warm_up(self._device, backend)
        threading.Thread(target=self._work, args=(cpus_per_rank,), name="trials", daemon=True).start()

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def rss_bytes(self) -> int:
        """Return the resident memory in bytes, for detecting leaks."""
        return int(psutil.Process().memory_info().rss)

    def steps(self, key: str) -> StepCount:
        """Return the progress of the attempt `key`; zeros before it begins."""
        now, counter = self._counter
        return counter.read() if now == key else StepCount()

    def follow(self, spec: TrialSpec, assignment: RankAssignment, until: int) -> Failed | None:
        """Train a trial as a rank other than 0, and return its failure or None."""
        for message in self.run(spec, assignment, until):
            if isinstance(message, Failed):
                return message
        return None

    def run(self, spec: TrialSpec, assignment: RankAssignment, until: int) -> Iterator[Message]:
        """Train a trial, and yield its messages until `close` is called or the trial fails."""
        with self._changing:
            for before in self._orders.values():
                before.change(closed=True)
            orders = self._orders[assignment.key] = Orders(until)
            orders.change(**self._early.pop(assignment.key, {}))
            counter = StepCounter()
            self._counter = (assignment.key, counter)
        outgoing = Outgoing()
        train = partial(self._train, spec, assignment, orders, outgoing, counter)
        self._jobs.put(partial(_leave_nothing_of, train, outgoing))
        try:
            for message in outgoing.messages():
                if isinstance(message, Failed):  # training may go on, for example after a failed checkpoint
                    orders.change(closed=True)
                yield message
        finally:
            orders.change(closed=True)
            with self._changing:
                self._orders.pop(assignment.key, None)

    def _work(self, cpus_per_rank: int) -> None:
        set_threads(cpus_per_rank)  # the setting is per thread
        self._tasks = _TaskCache()
        while True:
            self._jobs.get()()

    def _train(
        self, spec: TrialSpec, assignment: RankAssignment, orders: Orders, outgoing: Outgoing, counter: StepCounter
    ) -> Remains | None:
        outgoing.begin()
        trainer: Trainer | FunctionTrainer | CommandTrainer | None = None
        course = _Course(orders, outgoing)
        try:
            self._tasks.set_process_back(spec)
            counter.begin("task")
            task = self._tasks.task_of(spec)
            counter.done()
            if isinstance(task, Command):
                trainer = self._command_trainer(spec, task, assignment, counter)
                trainer.run(course)
                return trainer.close()
            # Load before the group forms: ranks take different times, and forming has a deadline.
            data = None if isinstance(task, TrainingFunction) else load_data(spec, task, self._device, counter)
            counter.begin("group")
            group = self._membership.join(assignment, spec.world_size)
            counter.done()
            if isinstance(task, TrainingFunction):
                trainer = FunctionTrainer(spec, task, group=group, counter=counter)
                with own_environment(spec.environment), diagnosed(spec.diagnostics, group) as course.saw:
                    trainer.run(course)
            else:
                trainer = Trainer(spec, task, group=group, data=data, counter=counter)
                del data
                with diagnosed(spec.diagnostics, group, trainer) as course.saw:
                    trainer.run(course)
        except BaseException as error:  # noqa: BLE001 - any error fails the trial, SystemExit too
            outgoing.send(Failed.of(error, has_begun=course.has_begun))
        return None if trainer is None else trainer.close()

    def _command_trainer(
        self, spec: TrialSpec, command: Command, assignment: RankAssignment, counter: StepCounter
    ) -> CommandTrainer:
        group = Group(rank=assignment.rank, world_size=spec.world_size, device=self._device)
        store = self._membership.store_of(assignment)
        return CommandTrainer(spec, command, assignment=assignment, group=group, store=store, counter=counter)

    def leave(self, group_id: str) -> None:
        """Leave a process group with its other members, and wait until this process has left."""
        self._jobs.put(lambda: self._membership.leave(group_id))
        self._membership.wait_until_left(group_id)

    def grant(self, key: str, until: int) -> None:
        """Let the run train up to `until`."""
        self._order(key, until=until)

    def drain(self, key: str, within_seconds: float = math.inf) -> None:
        """End the run with a checkpoint after its epoch, or within it if the rest takes over `within_seconds`."""
        self._order(key, end_by=time.monotonic() + within_seconds)

    def close(self, key: str) -> None:
        """End a run that waits for an order."""
        self._order(key, closed=True)

    def _order(self, key: str, **change: Any) -> None:
        with self._changing:
            if key in self._orders:
                self._orders[key].change(**change)
                return
            # Calls of several threads may overtake each other, so an early order is kept for its run.
            self._early[key] = self._early.pop(key, {}) | change
            for oldest in list(self._early)[:-MOST_EARLY_ORDERS]:
                del self._early[oldest]


def _leave_nothing_of(train: Callable[[], Remains | None], outgoing: Outgoing) -> None:
    try:
        free_memory(train())
    except Exception as error:  # noqa: BLE001 - the process is unusable, but the stream must end
        outgoing.send(Failed(failure="error", message=f"a trial could not be cleaned up: {classify(error)}"))
    outgoing.send(None)


class _Course:
    def __init__(self, orders: Orders, outgoing: Outgoing) -> None:
        self._orders, self._outgoing, self._until = orders, outgoing, 0
        self.has_begun = False
        self.saw: Callable[[Measurement], None] = lambda _measurement: None
        self.seconds_left, self.saved = orders.seconds_left, outgoing.send

    def begin(self, facts: TrialFacts, ago_seconds: float = 0.0) -> None:
        self.has_begun = True
        seconds = max(time.monotonic() - self._outgoing.began_at - ago_seconds, 0.0)
        self._outgoing.send(Began(facts=asdict(facts), seconds=seconds))

    def until(self, epoch: int) -> int | None:
        until = self._orders.wait_for_more_than(epoch)
        self._until = epoch if until is None else until
        return until

    def asked(self, name: str, asked: Asked) -> None:
        self._outgoing.asked(AskedFor(name=name, asked=asked))

    def measured(self, pending: Pending[Measurement]) -> None:
        measurement = pending.news
        self.saw(measurement)
        is_over = measurement.ended or measurement.complete
        self._outgoing.measure(pending, is_last=is_over or measurement.epoch >= self._until)
