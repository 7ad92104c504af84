"""Lets ranks wait without a limit for one that loads, and no longer than a deadline for one that is gone.

Ranks need not be equally quick at loading a task and its data, and a process group has one deadline for everything. So
each rank says over the store that it lives, before there is a group:

    beat R    number that rank R's process counts up all the time, from its start until the group is about to form
    here R    is set once rank R has loaded what it needs
    come      number of ranks that have

A rank that has come waits as long as the beats of the others change. In a study the pool watches instead
(`trainers.membership`).
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from torch.distributed import Store  # type: ignore[attr-defined]

from trainers.protocol import LostError

log = logging.getLogger(__name__)

_BEATS_OF_A_DEADLINE = 8
_LONGEST_PERIOD_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Heard:
    """What was heard of a rank: its beats so far, and when they were last other than before, in seconds of a clock."""

    beats: int
    changed_at: float


class Presence:
    """One rank's presence, from now on, for the other ranks of a group that is going to form.

    Args:
        store: Store that all ranks reach, in which nobody has used these names before. Requests to it are short.
        rank: Number of this rank, from 0.
        world_size: Number of ranks.
        deadline_seconds: Longest silence of a rank that has not come yet, in seconds.

    Attributes:
        period_seconds: Seconds between two beats of a rank.
    """

    def __init__(self, store: Store, rank: int, world_size: int, deadline_seconds: float) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self.deadline_seconds = deadline_seconds
        self.period_seconds = min(deadline_seconds / _BEATS_OF_A_DEADLINE, _LONGEST_PERIOD_SECONDS)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="presence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Say no more that this rank lives."""
        self._ends.set()
        self._thread.join()

    def wait_for_all(self) -> None:
        """Return once all ranks have come; call it when this one has loaded what it needs.

        Raises:
            LostError: A rank has not started, or was not heard of, for as long as the deadline.
        """
        self.store.set(f"here {self.rank}", "yes")
        self.store.add("come", 1)
        watch = _Watch(self, time.monotonic())
        pause = _FIRST_PAUSE_SECONDS
        while self.store.add("come", 0) < self.world_size:
            watch.look(time.monotonic())
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS, self.period_seconds)
        self.close()

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store is gone: this rank hears so when it has come
            while True:
                self.store.add(f"beat {self.rank}", 1)
                if self._ends.wait(self.period_seconds):
                    return


class _Watch:
    """What a rank that has come hears of those that have not.

    Args:
        presence: Presence of the rank that has come.
        now: Seconds of a clock that never goes back.
    """

    def __init__(self, presence: Presence, now: float) -> None:
        self._presence, self._store = presence, presence.store
        self._missing = [rank for rank in range(presence.world_size) if rank != presence.rank]
        self._heard = {rank: _Heard(beats=0, changed_at=now) for rank in self._missing}
        self._next_look, self._next_word = now, now + presence.deadline_seconds

    def look(self, now: float) -> None:
        """Look for the others, once in each period.

        Args:
            now: Seconds of the same clock.

        Raises:
            LostError: Nothing was heard of a rank for as long as the deadline.
        """
        if now < self._next_look:
            return
        self._next_look = now + self._presence.period_seconds
        self._missing = [rank for rank in self._missing if not self._store.check([f"here {rank}"])]
        for rank in self._missing:
            beats = self._store.add(f"beat {rank}", 0)
            if beats != self._heard[rank].beats:
                self._heard[rank] = _Heard(beats=beats, changed_at=now)
            elif now - self._heard[rank].changed_at > self._presence.deadline_seconds:
                raise LostError(self._why_lost(rank))
        if self._missing and now >= self._next_word:
            self._next_word = now + self._presence.deadline_seconds
            others = ", ".join(map(str, self._missing))
            log.warning("rank %d waits for rank %s, still loading task or data", self._presence.rank, others)

    def _why_lost(self, rank: int) -> str:
        within = f"within the deadline of {self._presence.deadline_seconds:g} s (--group-seconds)"
        which = f"rank {rank} of {self._presence.world_size}"
        if self._heard[rank].beats == 0:
            return f"{which} has not started {within}: start all ranks, and look at what this one printed last"
        return (
            f"{which} was not heard of {within} while it loaded its task or data: look at what it printed last, or "
            "give a longer deadline"
        )
