"""What a rank's process tells of a trial, what it is ordered, and how both pass between its threads."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from trainers.protocol import EpochPart, Failure, Measurement

HOLD_SECONDS = 0.5
"""Measurements of shorter epochs are sent together, no later than this, unless the controller waits for them.

Each message costs processor time here, in the controller and in the store, and ranks on CPUs share theirs with both.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Began:
    """Rank 0 holds model and data and begins its first step, so many seconds after it was told to train the trial."""

    facts: dict[str, Any]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """A rank's trial failed. Its process is spoilt unless all ranks noticed together: `diverged`, `unreadable`."""

    failure: Failure
    message: str


Message = Began | Failed | EpochPart | list[Measurement]


class Orders:
    """Orders of the pool to a run: how far it may train, whether it ends; shared between threads."""

    def __init__(self, until: int) -> None:
        self._until = until
        self._closed = False
        self._draining = False
        self._end_by = math.inf
        self._changed = threading.Condition()

    def change(self, *, until: int | None = None, end_by: float | None = None, closed: bool = False) -> None:
        """Change what is given; `end_by` is a moment on the monotonic clock."""
        with self._changed:
            self._until = self._until if until is None else until
            if end_by is not None:
                self._draining, self._end_by = True, min(self._end_by, end_by)
            self._closed = self._closed or closed
            self._changed.notify_all()

    def wait_for_more_than(self, epoch: int) -> int | None:
        """The epoch up to which the run may train, once that is beyond `epoch`; None after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._until > epoch)
            return None if self._closed else self._until

    def seconds_left(self) -> float | None:
        """Seconds within which the run has to end, infinite if with its epoch; None while it may go on."""
        return max(self._end_by - time.monotonic(), 0.0) if self._draining else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Event:
    """Something that happened; `what` is None at the end of the stream."""

    what: Began | Failed | EpochPart | Measurement | None
    at: float = field(default_factory=time.monotonic)
    is_urgent: bool = True


class Outgoing:
    """Messages from the thread that trains to the one that sends them; measurements of short epochs go together."""

    def __init__(self) -> None:
        self.made_at = time.monotonic()
        self._queue: queue.SimpleQueue[_Event] = queue.SimpleQueue()

    def send(self, what: Began | Failed | EpochPart | None) -> None:
        """Send a message at once; None ends the stream."""
        self._queue.put(_Event(what=what))

    def measure(self, measurement: Measurement, *, is_last: bool) -> None:
        """Send a measurement together with others; at once if `is_last`."""
        self._queue.put(_Event(what=measurement, is_urgent=is_last))

    def messages(self) -> Iterator[Message]:
        """Yield the messages until the end of the stream."""
        held: list[tuple[Measurement, float]] = []
        send_at = time.monotonic() + HOLD_SECONDS
        while True:
            event = self._next(send_at if held else None)
            if event is not None and isinstance(event.what, Measurement):
                held.append((event.what, event.at))
            if held and (event is None or event.is_urgent or time.monotonic() >= send_at):
                now = time.monotonic()
                yield [replace(measurement, age_seconds=now - ended_at) for measurement, ended_at in held]
                held, send_at = [], now + HOLD_SECONDS
            if event is not None and event.what is None:
                return
            if event is not None and isinstance(event.what, EpochPart):
                yield replace(event.what, age_seconds=time.monotonic() - event.at)
            if event is not None and isinstance(event.what, Began | Failed):
                yield event.what

    def _next(self, before: float | None) -> _Event | None:
        try:
            return self._queue.get(timeout=None if before is None else max(before - time.monotonic(), 0.0))
        except queue.Empty:
            return None
