"""One DDP training on this machine without Ray: in this process, in new processes, or inside torchrun."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess, parent_process
from typing import Any, NamedTuple, cast

import psutil

from trainers.contract.task_loading import Trainable
from trainers.failures import classify
from trainers.local.rank import Callbacks, OnFacts, OnMeasurement, OnPart, RankFacts, train_rank
from trainers.protocol import EpochPart, LostError, Measurement, TrainingError, TrialSpec
from trainers.ranks.group_options import GroupOptions
from trainers.ranks.group_store import StoreClient
from trainers.ranks.group_store_server import StoreAddress, StoreServer
from trainers.ranks.process_group import DeviceKind, destroy_group, device_of
from trainers.ranks.rendezvous import Presence, RankPlace, place_in_environment, place_on_this_machine

_USUAL_GROUP = GroupOptions()
_GRACE_SECONDS = 5.0
_CAUSE_SECONDS = 2.0
"""Seconds that a lost rank's error waits for the error of the rank that failed first."""


Send = Callable[[Any], None]
"""Sends a message from a rank to the parent process."""
Work = Callable[[RankPlace, Send], None]
"""The work of a rank, from its place, with a function to send messages."""


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
    """Train `spec` to its last epoch with `world_size` ranks on this machine and return rank 0's measurements.

    One rank trains in this process. Under torchrun (RANK is set) this process is one rank of WORLD_SIZE, and only rank
    0 calls `on_measurement`. Otherwise each rank is a new process, which needs `if __name__ == "__main__":` in a
    script, and ends with the call or with this process.

    Ranks load task and data before they join: a loading rank is waited for without limit, a lost one `group.seconds`.

    Raises:
        TrainingError: The error of the rank that failed first.
        KeyboardInterrupt: The user pressed Ctrl-C; all ranks have been ended.
    """
    callbacks = Callbacks(on_facts, on_measurement, on_part)
    if "RANK" in os.environ:
        place = place_in_environment(spec.device, group, presence)
        spec = replace(spec, world_size=place.world_size)
        own = callbacks if place.rank == 0 else callbacks._replace(measurement=_nothing, part=_nothing)
        return list(train_rank(spec, place, own, task))
    spec = replace(spec, world_size=world_size)
    if world_size == 1:
        return list(train_rank(spec, RankPlace(device=device_of(spec.device)), callbacks, task))
    return _train_in_processes(spec, callbacks, group)


def _nothing(_: object) -> None:
    return


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

    No process outlives the iteration, or this process if it is killed. Close the generator (`contextlib.closing`) to
    end
    early: the processes are no daemons, which could not start others, so Python would wait for them at its exit. GPUs
    are shared if there are fewer than ranks. Raises TrainingError from the rank that failed first.
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
            theirs.close()  # so that the rank's death ends the pipe
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
    """Yield (rank, message) until all are done; the error of a lost rank waits briefly for the error that caused it."""
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
                message = _death(rank, processes[rank])
            if isinstance(message, LostError):
                lost = lost or (rank, message)
            elif message is not None:
                yield rank, message
    if lost:
        yield lost


def _death(rank: int, process: BaseProcess) -> LostError | None:
    process.join(_GRACE_SECONDS)
    return None if process.exitcode == 0 else LostError(f"rank {rank} died with exit code {process.exitcode}")


def _end(processes: list[SpawnProcess]) -> None:
    """End running ranks and their data-reading processes."""
    running = [process for process in processes if process.is_alive()]
    readers = [reader for process in running for reader in _children_of(process)]
    for process in running:
        process.kill()  # it ignores signals that ask
    for reader in readers:
        with suppress(psutil.NoSuchProcess):
            reader.kill()
    for process in processes:
        process.join()
        process.close()


def _children_of(process: SpawnProcess) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


class _LocalRank(NamedTuple):
    """A rank's place in a group of this machine."""

    kind: DeviceKind
    rank: int
    world_size: int
    store: StoreAddress
    start_method: str
    group: GroupOptions


def _rank_main(pipe: Connection, work: Work, local: _LocalRank) -> None:
    # They reach all processes of a terminal or a service; the parent lets this one end its epoch, or ends it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    multiprocessing.set_start_method(local.start_method, force=True)  # else spawn, and each reader would import torch
    try:
        store = StoreClient(local.store, local.group.seconds)
        place = place_on_this_machine(local.kind, local.rank, local.world_size, store=store, options=local.group)
        work(place, pipe.send)
        destroy_group()
    except Exception as error:  # noqa: BLE001 - every failure has to reach the parent
        pipe.send(classify(error))
        pipe.close()
        _exit_now()  # an orderly exit would wait for ranks that are waiting for this one


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _exit_now()


def _exit_now() -> None:
    """Exit at once, ending only the data-reading processes."""
    for reader in multiprocessing.active_children():
        reader.kill()
    os._exit(1)
