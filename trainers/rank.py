"""One rank's process: it lives as long as its slot and trains one trial after another.

A pool calls it from several threads: `run` or `follow` occupy one while a trial lasts, `grant`, `drain` and `close`
come in beside them. All trials are trained in one thread of the process's own, which tells `run` what happens. A run
trains up to the epoch it was granted and waits there; after `close` it ends.
"""

from __future__ import annotations

import copy
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import psutil
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from trainers.ddp import (
    STORE_TIMEOUT_SECONDS,
    Group,
    backend_of,
    connect_store,
    destroy_group,
    device_of,
    form_group,
    serve_store,
    warm_up,
)
from trainers.errors import CheckpointError, classify
from trainers.process import clean_process, pin_to_cpus, set_threads, use_one_heap
from trainers.protocol import Failure, Measurement, TrialSpec
from trainers.task import Task, load_task
from trainers.trainer import Trainer

HOLD_SECONDS = 0.5
"""Measurements of shorter epochs are sent together, no later than this, unless somebody waits for them.

Each message costs processor time here, in the controller and in the store, and ranks on CPUs share theirs with both.
"""

MOST_EARLY_ORDERS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A rank's place in a gang.

    Attributes:
        key: The attempt's identity; orders that carry another are ignored.
        rank: From 0.
        group_id: Identity of the process group; one that still stands from the trial before is used again.
        store: Host and port of the pool's store; None where no group of several ranks is ever formed.
        one_host: Whether all ranks of the gang share a machine.
        timeout_seconds: Deadline of the group's formation and of each collective.
        store_timeout_seconds: Deadline of each request to the store.
    """

    key: str
    rank: int
    group_id: str
    store: tuple[str, int] | None
    one_host: bool
    timeout_seconds: float
    store_timeout_seconds: float = STORE_TIMEOUT_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Began:
    """Rank 0 holds model and data and begins its first step."""

    facts: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """A rank's trial failed. Its process is spoilt unless all ranks noticed together: `diverged`, `unreadable`."""

    failure: Failure
    message: str


Message = Began | Failed | list[Measurement]


class _Orders:
    """What the pool allows a run to do, handed between threads."""

    def __init__(self, until: int) -> None:
        self._until = until
        self._closed = False
        self._draining = False
        self._changed = threading.Condition()

    def change(self, *, until: int | None = None, draining: bool = False, closed: bool = False) -> None:
        with self._changed:
            self._until = self._until if until is None else until
            self._draining = self._draining or draining
            self._closed = self._closed or closed
            self._changed.notify_all()

    def wait_for_more_than(self, epoch: int) -> int | None:
        """The epoch up to which the run may train, once that is beyond `epoch`; None after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._until > epoch)
            return None if self._closed else self._until

    def should_end(self) -> bool:
        return self._draining


@dataclass(frozen=True, kw_only=True, slots=True)
class _News:
    """Something that happened; `what` is None at the end."""

    what: Began | Failed | Measurement | None
    at: float = field(default_factory=time.monotonic)
    is_urgent: bool = True


class _Told:
    """What the thread that trains says to the one that passes it on; measurements of short epochs go together."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_News] = queue.SimpleQueue()

    def say(self, what: Began | Failed | None) -> None:
        """Send it at once; None is the end."""
        self._queue.put(_News(what=what))

    def measure(self, measurement: Measurement, *, is_last: bool) -> None:
        """Send it with others, unless somebody waits for it."""
        self._queue.put(_News(what=measurement, is_urgent=is_last))

    def messages(self) -> Iterator[Message]:
        """Whatever is said until the end."""
        held: list[tuple[Measurement, float]] = []
        send_at = time.monotonic() + HOLD_SECONDS
        while True:
            news = self._next(send_at if held else None)
            if news is not None and isinstance(news.what, Measurement):
                held.append((news.what, news.at))
            if held and (news is None or news.is_urgent or time.monotonic() >= send_at):
                now = time.monotonic()
                yield [replace(measurement, age_seconds=now - ended_at) for measurement, ended_at in held]
                held, send_at = [], now + HOLD_SECONDS
            if news is not None and news.what is None:
                return
            if news is not None and isinstance(news.what, Began | Failed):
                yield news.what

    def _next(self, before: float | None) -> _News | None:
        try:
            return self._queue.get(timeout=None if before is None else max(before - time.monotonic(), 0.0))
        except queue.Empty:
            return None


class _TaskShelf:
    """Keeps the last task that was made: a constructor may read and encode data, which a trial should not wait for.

    Each trial gets a shallow copy, so that what a trial assigns to its task the next one does not see.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._task: Task | None = None

    def task_of(self, spec: TrialSpec) -> Task:
        """The trial's task."""
        key = (spec.task, repr(sorted(spec.task_options.items())), spec.python_path)
        if self._task is None or key != self._key:
            self._task = None  # two data sets at once may be too much
            self._task, self._key = load_task(spec.task, spec.task_options, spec.python_path), key
        return copy.copy(self._task)


class RankProcess:
    """What a slot's process does.

    Args:
        device: "cpu" or "cuda"; on cuda the process is expected to see its one GPU only.
        cpus_per_rank: Threads that torch may use.
        cpus: CPUs that belong to this slot alone; empty where ranks do not fill the machine.
    """

    def __init__(self, *, device: Literal["cpu", "cuda"], cpus_per_rank: int, cpus: Collection[int] = ()) -> None:
        pin_to_cpus(cpus)
        use_one_heap()
        set_threads(cpus_per_rank)
        self._device = device_of(device)
        self._kind = device
        self._tasks = _TaskShelf()
        self._store: TCPStore | None = None
        self._store_address: tuple[str, int] | None = None
        self._group_id: str | None = None
        self._orders: dict[str, _Orders] = {}
        self._early: dict[str, dict[str, Any]] = {}
        self._changing = threading.Lock()
        self._trials: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        warm_up(self._device)
        threading.Thread(target=self._train_trials, name="trials", daemon=True).start()

    def pid(self) -> int:
        """This process, for those who have to look at it from outside."""
        return os.getpid()

    def rss_bytes(self) -> int:
        """Memory of this process, by which the pool notices that it grows."""
        return int(psutil.Process().memory_info().rss)

    def follow(self, spec: TrialSpec, seat: Seat, until: int) -> Failed | None:
        """Take part in a trial as a rank other than 0; returns when it is over."""
        for message in self.run(spec, seat, until):
            if isinstance(message, Failed):
                return message
        return None

    def run(self, spec: TrialSpec, seat: Seat, until: int) -> Iterator[Message]:
        """Train a trial and yield what happens; the stream ends after `close` or a failure."""
        with self._changing:
            for before in self._orders.values():
                before.change(closed=True)
            orders = self._orders[seat.key] = _Orders(until)
            orders.change(**self._early.pop(seat.key, {}))
        told = _Told()
        self._trials.put(lambda: self._train(spec, seat, orders, told))
        try:
            yield from told.messages()
        finally:
            orders.change(closed=True)
            with self._changing:
                self._orders.pop(seat.key, None)

    def _train_trials(self) -> None:
        while True:
            self._trials.get()()

    def _train(self, spec: TrialSpec, seat: Seat, orders: _Orders, told: _Told) -> None:
        trainer: Trainer | None = None
        try:
            group = self._take_seat(spec, seat)
            trainer = Trainer(spec, self._tasks.task_of(spec), group=group)
            told.say(Began(facts=asdict(trainer.facts)))
            _train_as_ordered(trainer, orders, told)
        except BaseException as error:  # noqa: BLE001 - whatever goes wrong is the trial's failure, SystemExit too
            failure = classify(error)
            cannot_resume = trainer is None and isinstance(failure, CheckpointError)
            told.say(Failed(failure="unreadable" if cannot_resume else failure.failure, message=str(failure)))
        finally:
            try:
                if trainer is not None:
                    trainer.close()
                clean_process()
            except Exception as error:  # noqa: BLE001 - the process is spoilt, but the stream must end
                told.say(Failed(failure="error", message=f"a trial could not be cleaned up: {classify(error)}"))
            told.say(None)

    def grant(self, key: str, until: int) -> None:
        """Let the run train on, up to this epoch."""
        self._order(key, until=until)

    def drain(self, key: str) -> None:
        """Let the run end after its epoch, with a checkpoint. Only rank 0's word counts."""
        self._order(key, draining=True)

    def close(self, key: str) -> None:
        """End a run that waits."""
        self._order(key, closed=True)

    def _order(self, key: str, **change: Any) -> None:
        with self._changing:
            if key in self._orders:
                self._orders[key].change(**change)
                return
            # Calls of several threads may overtake each other: an order is kept for the run that is about to come.
            self._early[key] = self._early.pop(key, {}) | change
            for oldest in list(self._early)[:-MOST_EARLY_ORDERS]:
                del self._early[oldest]

    def _take_seat(self, spec: TrialSpec, seat: Seat) -> Group:
        if spec.world_size == 1:
            return Group(device=self._device)
        if self._group_id == seat.group_id:
            return Group(rank=seat.rank, world_size=spec.world_size, device=self._device)
        self._group_id = None
        destroy_group()
        if seat.store is not None and seat.store != self._store_address:  # the pool has a new one if the old one died
            self._store = connect_store(*seat.store, seat.store_timeout_seconds)
            self._store_address = seat.store
        group = form_group(
            self._store,
            seat.group_id,
            seat.rank,
            spec.world_size,
            backend_of(self._kind),
            timeout_seconds=seat.timeout_seconds,
            device=self._device,
            one_host=seat.one_host,
        )
        self._group_id = seat.group_id
        return group


def _train_as_ordered(trainer: Trainer, orders: _Orders, told: _Told) -> None:
    while (until := orders.wait_for_more_than(trainer.epoch)) is not None:
        for measurement in trainer.advance(until, orders.should_end):
            is_over = measurement.ended or measurement.complete
            # The gang waits after the last epoch that it was granted, or is over.
            told.measure(measurement, is_last=is_over or measurement.epoch >= until)
            if is_over:
                return


class StoreProcess:
    """Serves the store over which all groups of a pool are formed, in a process that no trial can spoil."""

    def __init__(self, host: str) -> None:
        self._store, port = serve_store(host)
        self.address = (host, port)

    def where(self) -> tuple[str, int]:
        """Host and port."""
        return self.address
