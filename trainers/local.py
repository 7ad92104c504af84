"""One DDP training on this machine without Ray: in this process, in processes of its own, or inside torchrun."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess, parent_process
from typing import Any, NamedTuple, cast

from trainers.ddp import (
    DeviceKind,
    Group,
    connect_store,
    destroy_group,
    device_of,
    form_group,
    from_environment,
    place_on_this_machine,
    serve_store,
)
from trainers.errors import classify
from trainers.profiling import Profile, Profiler
from trainers.protocol import LostError, Measurement, TrainingError, TrialFacts, TrialSpec
from trainers.task import load_task
from trainers.trainer import Trainer

_GRACE_SECONDS = 5.0
_SECOND_WORD_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """What one rank knows before its first step.

    Attributes:
        rank: From 0.
        samples: Training samples that this rank sees in an epoch.
        device: Such as "cpu" or "cuda:1".
        facts: The trial's.
    """

    rank: int
    samples: int
    device: str
    facts: TrialFacts


OnMeasurement = Callable[[Measurement], None]
OnFacts = Callable[[RankFacts], None]
Say = Callable[[Any], None]
"""Sends a message from a rank to the process that started it."""


def train_locally(
    spec: TrialSpec,
    world_size: int = 1,
    on_measurement: OnMeasurement = lambda _: None,
    on_facts: OnFacts = lambda _: None,
    *,
    trace: str | None = None,
    on_profile: Callable[[Profile], None] = lambda _: None,
) -> list[Measurement]:
    """Train `spec` to its last epoch with `world_size` ranks on this machine and return rank 0's measurements.

    One rank trains in this process. Under torchrun (RANK is set) this process is one rank, torchrun's WORLD_SIZE
    counts, and only rank 0 calls `on_measurement`. Else each rank is a new process, so a script that calls this needs
    `if __name__ == "__main__":`. None of them outlives the call, nor this process if it is killed.

    Args:
        spec: Its `world_size` is replaced.
        world_size: Number of ranks.
        on_measurement: Called after each epoch.
        on_facts: Called once for each rank, under torchrun for its own.
        trace: Profiles some steps of rank 0, and writes them to this file.
        on_profile: Called with what was found, once rank 0 is done; under torchrun in its process only.

    Raises:
        TrainingError: Of the rank that failed first.
        KeyboardInterrupt: After all ranks were ended.
    """
    if "RANK" in os.environ:
        group = from_environment(spec.device)
        spec = replace(spec, world_size=group.world_size)
        said = on_measurement if group.rank == 0 else _nothing
        return list(_train(spec, group, _Ears(on_facts, said, on_profile), trace))
    spec = replace(spec, world_size=world_size)
    ears = _Ears(on_facts, on_measurement, on_profile)
    if world_size == 1:
        return list(_train(spec, Group(device=device_of(spec.device)), ears, trace))
    return _train_in_processes(spec, ears, trace)


def _nothing(_: Measurement) -> None:
    return


class _Ears(NamedTuple):
    """Who is told what."""

    facts: OnFacts
    measurement: OnMeasurement
    profile: Callable[[Profile], None]


def _train(spec: TrialSpec, group: Group, ears: _Ears, trace: str | None) -> Iterator[Measurement]:
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=group)
    device = str(group.device)
    ears.facts(RankFacts(rank=group.rank, samples=trainer.samples_of_rank, device=device, facts=trainer.facts))
    profiler = Profiler(trace, trainer.steps_left, group.device) if trace and group.rank == 0 else None
    if profiler is not None:
        trainer.on_step = profiler.step
    with profiler or nullcontext():
        for measurement in trainer.advance(until_epoch=2**31):
            ears.measurement(measurement)
            yield measurement
    if profiler is not None:
        ears.profile(profiler.result())
    trainer.close()
    destroy_group()


def _train_in_processes(spec: TrialSpec, ears: _Ears, trace: str | None) -> list[Measurement]:
    measurements: list[Measurement] = []
    for rank, message in in_processes(partial(_train_and_say, spec, trace), spec.world_size, spec.device):
        if isinstance(message, RankFacts):
            ears.facts(message)
        elif isinstance(message, Profile):
            ears.profile(message)
        elif rank == 0:
            measurements.append(message)
            ears.measurement(message)
    return measurements


def _train_and_say(spec: TrialSpec, trace: str | None, group: Group, say: Say) -> None:
    for _ in _train(spec, group, _Ears(say, say, say), trace):
        pass


def in_processes(work: Callable[[Group, Say], None], world_size: int, device: DeviceKind) -> Iterator[tuple[int, Any]]:
    """Let ranks work in new processes of this machine, and yield (rank, message) until all of them are done.

    None of the processes outlives the iteration, nor this process if it is killed.

    Args:
        work: Called in each process, once the group is formed, with what sends a message; has to be picklable.
        world_size: Ranks.
        device: What each of them gets; GPUs are shared where there are fewer.

    Raises:
        TrainingError: Of the rank that failed first.
    """
    store, port = serve_store()
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    pipes: dict[Connection, int] = {}
    try:
        for rank in range(world_size):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (theirs, work, _Seat(device, rank, world_size, port))
            process = context.Process(target=_rank_main, args=arguments, daemon=True)
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
        del store


def _messages(open_pipes: dict[Connection, int], processes: list[SpawnProcess]) -> Iterator[tuple[int, Any]]:
    """Yield (rank, message) until all ranks are done.

    A rank that fails makes the others lose it, so the word of a rank that was merely left waits for a better one.
    """
    lost: tuple[int, LostError] | None = None
    while open_pipes:
        waiting: list[Any] = list(open_pipes)
        ready = cast("list[Connection]", wait(waiting, timeout=_SECOND_WORD_SECONDS if lost else None))
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
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(_GRACE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


class _Seat(NamedTuple):
    """A rank's place in a group of this machine; `port` is the store's."""

    kind: DeviceKind
    rank: int
    world_size: int
    port: int


def _rank_main(pipe: Connection, work: Callable[[Group, Say], None], seat: _Seat) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the parent ends us
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        store = connect_store("127.0.0.1", seat.port)
        device, backend = place_on_this_machine(seat.kind, seat.rank, seat.world_size)
        work(form_group(store, "local", seat.rank, seat.world_size, backend, device=device), pipe.send)
        destroy_group()
    except Exception as error:  # noqa: BLE001 - every failure has to reach the parent
        pipe.send(classify(error))
        pipe.close()
        os._exit(1)  # an orderly exit would wait for ranks that are waiting for us


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
