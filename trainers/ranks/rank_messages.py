"""What a rank's process tells of a trial, what it is ordered, and how both pass between its threads."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from trainers.checkpoints.checkpoint_writer import Pending
from trainers.failures import CheckpointError, StorageError, classify
from trainers.protocol import AskedFor, EpochPart, Failure, Measurement, TrainingError

HOLD_SECONDS = 0.5
"""Measurements of shorter epochs are sent together, no later than this, unless the controller waits for them.

Each message costs processor time here, in the controller and in the store, and ranks on CPUs share theirs with both.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Began:
    """Rank 0 holds model and data and begins its first step, so many seconds after it turned to the trial.

    What the trial before took to end in this process is no part of them.
    """

    facts: dict[str, Any]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """A rank's trial failed. Its process is spoilt unless all ranks noticed together: `diverged`, `unreadable`."""

    failure: Failure
    message: str

    @classmethod
    def of(cls, error: BaseException, *, has_begun: bool) -> Failed:
        """Return the failure that an error is.

        Args:
            has_begun: Whether the attempt has begun its first step: before that a checkpoint is only read.
        """
        failure = classify(error)
        # A store that does not answer has the checkpoint still: the trial must not go back to an earlier one.
        is_away = isinstance(failure, StorageError)
        cannot_resume = not has_begun and isinstance(failure, CheckpointError) and not is_away
        return cls(failure="unreadable" if cannot_resume else failure.failure, message=str(failure))


Holdable = Measurement | AskedFor
"""News that may wait for a moment, to be sent with others."""
Message = Began | Failed | EpochPart | list[Holdable]


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


Pendable = Pending[Measurement] | Pending[EpochPart]
"""News that may name a file which is still being written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Event:
    """Something that happened; `what` is None at the end of the stream."""

    what: Began | Failed | AskedFor | Pendable | None
    at: float = field(default_factory=time.monotonic)
    is_urgent: bool = True

    def is_ready_by(self, moment: float) -> bool:
        """Wait until that moment, at most, for the file that is named; returns whether it is whole, or failed."""
        write = self.what.write if isinstance(self.what, Pending) else None
        return write is None or write.ends_within(moment - time.monotonic())

    def told(self) -> Began | Failed | Holdable | EpochPart | None:
        """Return what may be told now, after waiting for the file that is named."""
        if not isinstance(self.what, Pending):
            return self.what
        try:
            return self.what.told()
        except TrainingError as error:
            return Failed.of(error, has_begun=True)


class _Held:
    """News that wait for others, to be sent with them in their order."""

    def __init__(self) -> None:
        self._news: list[tuple[Holdable, float]] = []
        self._send_at = time.monotonic() + HOLD_SECONDS

    @property
    def send_at(self) -> float | None:
        """Moment at which they are sent, on the monotonic clock; None if there are none."""
        return self._send_at if self._news else None

    def add(self, one: Holdable, since: float) -> None:
        """Hold what happened at this moment."""
        self._news.append((one, since))

    def take(self) -> Iterator[list[Holdable]]:
        """Yield them together, if there are any, and hold the next ones for a while again."""
        if self._news:
            now = time.monotonic()
            yield [
                replace(one, age_seconds=now - since) if isinstance(one, Measurement) else one
                for one, since in self._news
            ]
            self._news, self._send_at = [], now + HOLD_SECONDS


class Outgoing:
    """Messages from the thread that trains to the one that sends them; measurements of short epochs go together.

    They are sent in their order, and none before the checkpoint that it names is whole. After a failure, which may be
    that of a checkpoint, there is nothing more to tell.
    """

    def __init__(self) -> None:
        self.began_at = time.monotonic()
        self._queue: queue.SimpleQueue[_Event] = queue.SimpleQueue()

    def begin(self) -> None:
        """Count the start of the trial from now on: the one before has ended."""
        self.began_at = time.monotonic()

    def send(self, what: Began | Failed | Pending[EpochPart] | None) -> None:
        """Send a message at once; None ends the stream."""
        self._queue.put(_Event(what=what))

    def measure(self, measurement: Pending[Measurement], *, is_last: bool) -> None:
        """Send a measurement together with others; at once if `is_last`."""
        self._queue.put(_Event(what=measurement, is_urgent=is_last))

    def asked(self, one: AskedFor) -> None:
        """Send a parameter that was asked for together with others."""
        self._queue.put(_Event(what=one, is_urgent=False))

    def messages(self) -> Iterator[Message]:
        """Yield the messages until the end of the stream."""
        held, has_failed = _Held(), False
        while True:
            event = self._next(held.send_at)
            if event is not None and held.send_at is not None and not event.is_ready_by(held.send_at):
                yield from held.take()  # those before it do not wait for its file
            what = None if event is None or has_failed else event.told()
            if event is not None and isinstance(what, Holdable):
                held.add(what, event.at)
            if event is None or event.is_urgent or isinstance(what, Failed) or _is_past(held.send_at):
                yield from held.take()
            if event is not None and event.what is None:
                return
            if event is not None and isinstance(what, EpochPart):
                yield replace(what, age_seconds=time.monotonic() - event.at)
            if isinstance(what, Began | Failed):
                yield what
            has_failed = has_failed or isinstance(what, Failed)

    def _next(self, before: float | None) -> _Event | None:
        try:
            return self._queue.get(timeout=None if before is None else max(before - time.monotonic(), 0.0))
        except queue.Empty:
            return None


def _is_past(moment: float | None) -> bool:
    return moment is not None and time.monotonic() >= moment
