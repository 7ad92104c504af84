"""One DDP training on this machine without Ray: in this process, in new processes, or inside torchrun."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.process import parent_process
from typing import Any, NamedTuple, cast

import psutil

from search_spaces.suggestions import Asked
from trainers.checkpoints.checkpoint_writer import Pending
from trainers.commands.command import Command
from trainers.contract.task_loading import Trainable, load_trainable
from trainers.contract.training_function import TrainingFunction
from trainers.data.samples import TrialData, load_data
from trainers.data.shared_arrays import share_arrays
from trainers.failures import classify
from trainers.functions.function_trainer import FunctionTrainer
from trainers.local.diagnostics import diagnosed
from trainers.loop.step_counter import StepCounter
from trainers.loop.trainer import Trainer
from trainers.protocol import EpochPart, LostError, Measurement, TaskError, TrainingError, TrialFacts, TrialSpec
from trainers.ranks.group_options import GroupOptions
from trainers.ranks.group_store import StoreClient
from trainers.ranks.group_store_server import StoreAddress, StoreServer
from trainers.ranks.process import set_threads
from trainers.ranks.process_group import DeviceKind, Group, backend_in_use, destroy_group, device_of
from trainers.ranks.rendezvous import Presence, RankPlace, place_in_environment, place_on_this_machine


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """Facts of a rank before its first step. `samples` count for one epoch; `backend` is "none" for one rank."""

    rank: int
    samples: int
    device: str
    backend: str
    facts: TrialFacts


OnMeasurement = Callable[[Measurement], None]
OnPart = Callable[[EpochPart], None]
OnFacts = Callable[[RankFacts], None]


class Callbacks(NamedTuple):
    """Functions called with a rank's messages, one for each kind."""

    facts: OnFacts
    measurement: OnMeasurement
    part: OnPart


def train_rank(
    spec: TrialSpec, place: RankPlace, callbacks: Callbacks, task: Trainable | None = None
) -> Iterator[Measurement]:
    """Load task and data, join the ranks, train, and yield measurements. Raises TrainingError."""
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
    if isinstance(task, Command):
        raise TaskError("this task is a command, which runs only in a study. Use `automl launch`")
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
    def __init__(self, group: Group, callbacks: Callbacks, saw: OnMeasurement) -> None:
        self._group, self._callbacks, self._saw = group, callbacks, saw
        self.measurements: list[Measurement] = []

    def begin(self, facts: TrialFacts, ago_seconds: float = 0.0) -> None:  # noqa: ARG002 - the start is not used
        self._callbacks.facts(_rank_facts(self._group, 0, facts))

    def until(self, epoch: int) -> int | None:  # noqa: ARG002 - any epoch may be trained
        return 2**31

    def seconds_left(self) -> float | None:
        return None

    def asked(self, name: str, asked: Asked) -> None:
        """Do nothing: the spec has all parameters."""

    def saved(self, pending: Pending[EpochPart]) -> None:
        self._callbacks.part(pending.told())

    def measured(self, pending: Pending[Measurement]) -> None:
        measurement = pending.told()
        self.measurements.append(measurement)
        self._saw(measurement)
        self._callbacks.measurement(measurement)


_USUAL_GROUP = GroupOptions()
_GRACE_SECONDS = 5.0
_CAUSE_SECONDS = 2.0  # seconds to wait, after a rank is lost, for the error of the rank that failed first


Send = Callable[[Any], None]
Work = Callable[[RankPlace, Send], None]  # a rank's work, with a function to send messages


def train_locally(
    spec: TrialSpec,
    world_size: int = 1,
    on_measurement: OnMeasurement = lambda _: None,
    on_facts: OnFacts = lambda _: None,
    *,
    on_part: OnPart = lambda _: None,
    group: GroupOptions = _USUAL_GROUP,
    presence: Presence | None = None,
    task: Trainable | None = None,
) -> list[Measurement]:
    """Train `spec` to its last epoch with `world_size` ranks on this machine, and return rank 0's measurements.

    One rank trains in this process. Under torchrun (RANK is set) this process is one rank of WORLD_SIZE, and only rank
    0 calls `on_measurement`. Otherwise each rank is a new process, which ends with the call or with this process;
    scripts need `if __name__ == "__main__":`. Ranks wait without limit for a rank that loads its data, and
    `group.seconds` for a lost rank.

    Raises:
        TrainingError: The error of the rank that failed first.
        KeyboardInterrupt: The user pressed Ctrl-C. All ranks have ended.
    """
    callbacks = Callbacks(on_facts, on_measurement, on_part)
    if "RANK" in os.environ:
        place = place_in_environment(spec.device, group, presence)
        spec = replace(spec, world_size=place.world_size)
        own = callbacks if place.rank == 0 else callbacks._replace(measurement=lambda _: None, part=lambda _: None)
        return list(train_rank(spec, place, own, task))
    spec = replace(spec, world_size=world_size)
    if world_size == 1:
        return list(train_rank(spec, RankPlace(device=device_of(spec.device)), callbacks, task))
    return _train_in_processes(spec, callbacks, group)


def _train_in_processes(spec: TrialSpec, callbacks: Callbacks, group: GroupOptions) -> list[Measurement]:
    measurements: list[Measurement] = []
    work = partial(_train_and_send, spec)
    with closing(in_processes(work, spec.world_size, spec.device, group)) as messages:
        for rank, message in messages:
            if isinstance(message, RankFacts):
                callbacks.facts(message)
            elif rank != 0:
                continue
            elif isinstance(message, EpochPart):
                callbacks.part(message)
            else:
                measurements.append(message)
                callbacks.measurement(message)
    return measurements


def _train_and_send(spec: TrialSpec, place: RankPlace, send: Send) -> None:
    for _ in train_rank(spec, place, Callbacks(send, send, send)):
        pass


def in_processes(
    work: Work, world_size: int, device: DeviceKind, group: GroupOptions = _USUAL_GROUP
) -> Generator[tuple[int, Any], None, None]:
    """Run picklable `work` in new processes of this machine, and yield (rank, message) until all are done.

    All processes end with the iteration or with this process; close the generator (`contextlib.closing`) to end early.
    Ranks share GPUs if there are fewer. Raises the TrainingError of the rank that failed first.
    """
    store = StoreServer()
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    pipes: dict[Connection, int] = {}
    try:
        for rank in range(world_size):
            ours, theirs = context.Pipe(duplex=False)
            start_method = multiprocessing.get_start_method()
            local = _LocalRank(device, rank, world_size, store.address, start_method, group)
            process = context.Process(target=_rank_main, args=(theirs, work, local), daemon=False)
            process.start()
            theirs.close()  # with this end open, the rank's death would not end the pipe
            processes.append(process)
            pipes[ours] = rank
        for rank, message in _messages(dict(pipes), processes):
            if isinstance(message, TrainingError):
                raise message
            yield rank, message
    finally:
        _end(processes)
        for pipe in pipes:
            pipe.close()
        store.close()


def _messages(open_pipes: dict[Connection, int], processes: list[SpawnProcess]) -> Iterator[tuple[int, Any]]:
    lost: tuple[int, LostError] | None = None
    while open_pipes:
        waiting: list[Any] = list(open_pipes)
        ready = cast("list[Connection]", wait(waiting, timeout=_CAUSE_SECONDS if lost else None))
        if lost and not ready:
            break
        for pipe in ready:
            rank = open_pipes[pipe]
            try:
                message = pipe.recv()
            except (EOFError, ConnectionResetError):
                del open_pipes[pipe]
                processes[rank].join(_GRACE_SECONDS)
                code = processes[rank].exitcode
                message = None if code == 0 else LostError(f"rank {rank} died with exit code {code}")
            if isinstance(message, LostError):
                lost = lost or (rank, message)
            elif message is not None:
                yield rank, message
    if lost:
        yield lost


def _end(processes: list[SpawnProcess]) -> None:
    running = [process for process in processes if process.is_alive()]
    readers: list[psutil.Process] = []
    for process in running:
        with suppress(psutil.NoSuchProcess):
            readers += psutil.Process(process.pid).children(recursive=True)
    for process in running:
        process.kill()  # the process ignores SIGTERM
    for reader in readers:
        with suppress(psutil.NoSuchProcess):
            reader.kill()
    for process in processes:
        process.join()
        process.close()


class _LocalRank(NamedTuple):
    kind: DeviceKind
    rank: int
    world_size: int
    store: StoreAddress
    start_method: str
    group: GroupOptions


def _rank_main(pipe: Connection, work: Work, local: _LocalRank) -> None:
    # Signals reach all processes of a terminal or a service, but the parent decides when this rank ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    multiprocessing.set_start_method(local.start_method, force=True)  # with spawn, each reader would import torch
    try:
        store = StoreClient(local.store, local.group.seconds)
        place = place_on_this_machine(local.kind, local.rank, local.world_size, store=store, options=local.group)
        work(place, pipe.send)
        destroy_group()
    except Exception as error:  # noqa: BLE001 - every failure has to reach the parent
        pipe.send(classify(error))
        pipe.close()
        _exit_now()  # an orderly exit would wait for ranks that wait for this rank


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _exit_now()


def _exit_now() -> None:
    for reader in multiprocessing.active_children():
        reader.kill()
    os._exit(1)
