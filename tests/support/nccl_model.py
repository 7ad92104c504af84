"""A model of NCCL's rules for communicators, and of the processes that hold them, in threads of one process.

A communicator takes memory from its creation to its destruction. It is created once all of its members ask for it, and
destroyed once all of them ask for that; a member that asks alone waits for ever, also where another member is dead.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from trainers.protocol import RankAssignment
from trainers.ranks.process_group import Group, Membership

DEVICE = torch.device("cpu")
WAIT_SECONDS = 5.0


class Ended(BaseException):
    """The process was killed while it waited."""


class Communicators:
    """All communicators of all processes, by the identities of their groups."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.created: dict[str, set[ModelProcess]] = defaultdict(set)
        self.leaving: dict[str, set[ModelProcess]] = defaultdict(set)
        self.most_held = 0

    def create(self, process: ModelProcess, group_id: str, size: int) -> None:
        with self.changed:
            assert process not in self.created[group_id], f"{group_id} is formed twice"
            self.created[group_id].add(process)
            process.held.add(group_id)
            self.most_held = max(self.most_held, len(process.held))
            self.changed.notify_all()
            self._wait(process, lambda: len(self.created[group_id]) == size)

    def destroy(self, process: ModelProcess) -> None:
        with self.changed:
            (group_id,) = process.held
            self.leaving[group_id].add(process)
            self.changed.notify_all()
            self._wait(process, lambda: self.leaving[group_id] == self.created[group_id])
            process.held.discard(group_id)

    def _wait(self, process: ModelProcess, is_so: Callable[[], bool]) -> None:
        self.changed.wait_for(lambda: is_so() or process.is_dead)
        if process.is_dead:
            raise Ended


class ModelProcess:
    """A process of a slot that takes its place in groups as a rank does, and trains by waiting."""

    def __init__(self, communicators: Communicators) -> None:
        self.held: set[str] = set()
        self.is_dead = False
        self._communicators = communicators
        self._size = 0
        self._membership = Membership(DEVICE, form=self._form, destroy=self._destroy)
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _form(self, _store: object, group_id: str, rank: int, size: int, *_: Any, **__: Any) -> Group:
        self._communicators.create(self, group_id, size)
        return Group(rank=rank, world_size=size, device=DEVICE)

    def _destroy(self) -> None:
        self._communicators.destroy(self)

    def _work(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                task()
        except Ended:
            return

    def train(self, assignment: RankAssignment, size: int, over: threading.Event, joined: threading.Semaphore) -> None:
        """Take part in a trial until it is over."""

        def trial() -> None:
            self._membership.join(assignment, size)
            joined.release()
            while not over.wait(0.001):
                if self.is_dead:
                    raise Ended

        self._tasks.put(trial)

    def leave(self, group_id: str) -> None:
        """As `RankProcess.leave`."""
        self._tasks.put(lambda: self._membership.leave(group_id))
        self._membership.wait_until_left(group_id)

    def kill(self) -> None:
        """End the process wherever it is."""
        with self._communicators.changed:
            self.is_dead = True
            self._communicators.changed.notify_all()
        self._tasks.put(None)

    def ends_within(self, seconds: float) -> bool:
        """Whether it does what it was told and ends."""
        self._tasks.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()


def all_leave(processes: Mapping[int, ModelProcess], group_id: str, is_hopeless: Callable[[], bool]) -> list[int]:
    """As `studies.gangs.ray_actors.all_leave`."""
    orders = {one: threading.Thread(target=process.leave, args=(group_id,)) for one, process in processes.items()}
    for order in orders.values():
        order.daemon = True
        order.start()
    while any(order.is_alive() for order in orders.values()) and not is_hopeless():
        if any(process.is_dead for process in processes.values()):
            return list(processes)
        time.sleep(0.0005)
    return [slot for slot, order in orders.items() if order.is_alive()]
