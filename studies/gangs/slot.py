"""A slot of a pool on Ray, with its process and its memory."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from studies.storage.leases.processes import started_at

WEIGH_DEADLINE_SECONDS = 10.0


@dataclass(kw_only=True, slots=True)
class Slot:
    """A slot, and the process that serves it now."""

    actor: Any  # actor of the process; None between two attempts to start one
    hello: Any = None  # call whose answer shows that the process is ready; None before the call
    death: Any = None  # call that ends with the process; None before the process is ready
    since: float = 0.0  # moment at which the actor was made, or will be made again, on the monotonic clock in seconds
    failures: int = 0  # number of failed starts in a row
    node: str = ""
    host: str = ""
    pid: int = 0
    started_at: float | None = None  # in seconds since the boot; None if unknown on this machine
    ready: bool = False
    is_dead: bool = False
    is_lost: bool = False
    is_released: bool = False  # never gets a process again
    is_leaving: bool = False  # the pool has reported that the slot's node will be taken away
    trials: int = 0
    rss_bytes_when_new: int = 0  # memory of the process before its first trial
    rss_bytes: int = 0  # memory of the process after its latest trial

    def is_gone(self) -> bool:
        """Return whether the slot's process is known to be dead, or is seen to be."""
        cannot_be_seen = self.started_at is None
        return self.is_dead or not self.ready or not (cannot_be_seen or started_at(self.pid) == self.started_at)

    def is_worn(self, trials: int, growth_bytes: int) -> bool:
        """Return whether the slot's process has served `trials` trials, or grown by `growth_bytes`."""
        return self.trials >= trials or self.rss_bytes - self.rss_bytes_when_new >= growth_bytes


def kill_processes(slots: Iterable[Slot]) -> None:
    """Kill processes of this machine by their ids, if the cluster can no longer do so."""
    for slot in slots:
        if slot.started_at is not None and started_at(slot.pid) == slot.started_at:
            with contextlib.suppress(OSError):
                os.kill(slot.pid, signal.SIGKILL)


def weigh(slots: Sequence[Slot], actors: Sequence[Any], ends: Sequence[Any], is_closing: Callable[[], bool]) -> None:
    """Measure the memory of processes after they released a trial, if they still serve their slots."""
    import ray

    ray.wait(list(ends), num_returns=len(ends), timeout=WEIGH_DEADLINE_SECONDS)
    for slot, actor in zip(slots, actors, strict=True):
        if slot.actor is actor and not is_closing():
            with contextlib.suppress(Exception):  # the process may die at any time; its next trial will notice
                slot.rss_bytes = ray.get(actor.rss_bytes.remote(), timeout=WEIGH_DEADLINE_SECONDS)
