"""Decides when the copies in Optuna and MLflow are updated: soon after each commit, at little cost for trainings.

If a processor core is idle, updates run only in idle time. If all are busy, they run at normal priority within a budget
of processor time, since a thread of lowest priority could hold locks in the store for long.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from studies.storage.views.cursors import VIEWS

POLL_SECONDS = 0.5
REST_SECONDS = 2.0
"""Pause after a pass. Mirroring accumulated rows takes half the processor time of mirroring them one by one, and three
of four trials of half a second do not coincide with a pass."""
HURRIED_SECONDS = 0.1
SHARE = 0.08  # share of a core for all views together; loading Optuna and MLflow once comes on top
SAVED_SECONDS = 1.0
MOST_REST_SECONDS = 60.0
LOADING_NICENESS = 10
FREE_CORES = 0.25  # number of cores that must have been idle recently for a pass in idle time
FREE_CORES_SECONDS = 0.5
T = TypeVar("T")


class ProcessorBudget:
    """Limits the processor time of updates; saves up to `saved_seconds` for later updates."""

    def __init__(self, now: float, share: float = SHARE, saved_seconds: float = SAVED_SECONDS) -> None:
        self._share, self._most = share, saved_seconds
        self._left, self._at = saved_seconds, now
        self._lock = threading.Lock()

    def use(self, seconds: float, now: float) -> float:
        """Subtract processor time, and return the seconds until more is available."""
        with self._lock:
            self._left = min(self._most, self._left + self._share * (now - self._at)) - seconds
            self._at = now
            return max(-self._left / self._share, 0.0)


class FreeCores:
    """Measures how many cores were idle recently. `idle_seconds` returns cumulative idle time."""

    def __init__(
        self, idle_seconds: Callable[[], float | None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._idle_seconds, self._clock = idle_seconds or idle_core_seconds, clock
        self._at, self._idle = clock(), self._idle_seconds()
        self._found = 0.0
        self._lock = threading.Lock()

    def number(self) -> float:
        """Return the mean number of idle cores in the last half second or longer; 0 if unknown."""
        with self._lock:
            now = self._clock()
            if now - self._at >= FREE_CORES_SECONDS:
                idle = self._idle_seconds()
                self._found = 0.0 if idle is None or self._idle is None else (idle - self._idle) / (now - self._at)
                self._at, self._idle = now, idle
            return self._found


class Pace:
    """Decides when and in which thread views are updated; no pauses while `hurried` is set."""

    def __init__(
        self,
        until: Callable[[], bool],
        hurried: threading.Event,
        free_cores: FreeCores | None = None,
    ) -> None:
        self.until, self._hurried = until, hurried
        self._budget = ProcessorBudget(time.monotonic())
        self._free_cores = free_cores or FreeCores()
        self._idle_threads = ThreadPoolExecutor(len(VIEWS), "idle", initializer=take_idle_time_only)

    def carry_out(self, make_pass: Callable[[], T]) -> tuple[T, float]:
        """Run an update; returns its result and processor seconds."""
        if self._hurried.is_set() or self._free_cores.number() < FREE_CORES:
            return timed(make_pass)
        return self._idle_threads.submit(timed, make_pass).result()

    def load(self, imports: Callable[[], None]) -> None:
        """Import a view's libraries, in idle time or at low priority."""
        if self._hurried.wait(FREE_CORES_SECONDS):
            imports()
            return
        give_way = take_idle_time_only if self._free_cores.number() >= FREE_CORES else be_nice
        with ThreadPoolExecutor(1, "loading", initializer=give_way) as thread:
            thread.submit(imports).result()

    def rest_after(self, used_seconds: float) -> float:
        """Return the pause after an update, in seconds."""
        return min(max(REST_SECONDS, self._budget.use(used_seconds, time.monotonic())), MOST_REST_SECONDS)

    def rest(self, seconds: float, hurried_seconds: float = HURRIED_SECONDS) -> None:
        """Pause for `seconds`, or for `hurried_seconds` while `hurried` is set; not at all at the end."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.until():
            if self._hurried.wait(min(left, POLL_SECONDS)):
                time.sleep(max(min(end - time.monotonic(), hurried_seconds), 0.0))
                return

    def close(self) -> None:
        """End the threads that run the updates."""
        self._idle_threads.shutdown()


def timed(make_pass: Callable[[], T]) -> tuple[T, float]:
    """Run an update in this thread; returns its result and processor seconds."""
    before = time.thread_time()
    made = make_pass()
    return made, time.thread_time() - before


def be_nice() -> None:
    """Lower this thread's priority to a tenth of a busy core."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOADING_NICENESS)


def take_idle_time_only() -> None:
    """Run this thread only in idle time of the processor."""
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, 19)
    with contextlib.suppress(AttributeError, OSError):  # only Linux has this policy, and a sandbox may refuse it
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def idle_core_seconds() -> float | None:
    """Return the idle seconds of usable cores since the boot; None if unknown."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        found = [fields for fields in map(str.split, lines) if fields and fields[0] in mine]
        # Idle time, and time waiting for a disk: a core that waits is free as well.
        ticks = sum(int(fields[4]) + int(fields[5]) for fields in found)
    except (AttributeError, OSError, ValueError, IndexError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK") if found else None
