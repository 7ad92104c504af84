"""Messages and orders of a rank's process, shared between its threads."""

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
"""Seconds for which measurements of short epochs wait to be sent together, because each message costs CPU time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Began:
    """Message that rank 0 begins its first step, `seconds` after the trial started and the previous trial ended."""

    facts: dict[str, Any]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """Message that a rank's trial failed. The process is unusable, unless all ranks failed together."""

    failure: Failure
    message: str

    @classmethod
    def of(cls, error: BaseException, *, has_begun: bool) -> "Failed":
        """Return the message for an error. Before `has_begun`, checkpoints were only read."""
        failure = classify(error)
        # A store that does not answer still has the checkpoint, so the trial must not go back to an earlier checkpoint.
        is_away = isinstance(failure, StorageError)
        cannot_resume = not has_begun and isinstance(failure, CheckpointError) and not is_away
        return cls(failure="unreadable" if cannot_resume else failure.failure, message=str(failure))


Holdable = Measurement | AskedFor  # messages that may wait to be sent with others
Message = Began | Failed | EpochPart | list[Holdable]


class Orders:
    """Orders for a run, shared between threads: the last epoch it may train, and the time of its end."""

    def __init__(self, until: int) -> None:
        self._until = until
        self._closed = False
        self._draining = False
        self._end_by = math.inf
        self._changed = threading.Condition()

    def change(self, *, until: int | None = None, end_by: float | None = None, closed: bool = False) -> None:
        """Change the given orders. `end_by` is a time of the monotonic clock."""
        with self._changed:
            self._until = self._until if until is None else until
            if end_by is not None:
                self._draining, self._end_by = True, min(self._end_by, end_by)
            self._closed = self._closed or closed
            self._changed.notify_all()

    def wait_for_more_than(self, epoch: int) -> int | None:
        """Wait until training beyond `epoch` is allowed, and return the last allowed epoch; None after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._until > epoch)
            return None if self._closed else self._until

    def seconds_left(self) -> float | None:
        """Return the seconds left to end the trial: infinite to finish the epoch, None while it may continue."""
        return max(self._end_by - time.monotonic(), 0.0) if self._draining else None


Pendable = Pending[Measurement] | Pending[EpochPart]  # messages that may name a file which is still being written


@dataclass(frozen=True, kw_only=True, slots=True)
class _Event:
    what: Began | Failed | AskedFor | Pendable | None
    at: float = field(default_factory=time.monotonic)
    is_urgent: bool = True

    def is_ready_by(self, moment: float) -> bool:
        write = self.what.write if isinstance(self.what, Pending) else None
        return write is None or write.ends_within(moment - time.monotonic())

    def told(self) -> Began | Failed | Holdable | EpochPart | None:
        if not isinstance(self.what, Pending):
            return self.what
        try:
            return self.what.told()
        except TrainingError as error:
            return Failed.of(error, has_begun=True)


class _Held:
    def __init__(self) -> None:
        self._news: list[tuple[Holdable, float]] = []
        self._send_at = time.monotonic() + HOLD_SECONDS

    @property
    def send_at(self) -> float | None:
        return self._send_at if self._news else None

    def add(self, one: Holdable, since: float) -> None:
        self._news.append((one, since))

    def take(self) -> Iterator[list[Holdable]]:
        if self._news:
            now = time.monotonic()
            yield [
                replace(one, age_seconds=now - since) if isinstance(one, Measurement) else one
                for one, since in self._news
            ]
            self._news, self._send_at = [], now + HOLD_SECONDS


class Outgoing:
    """Queue of messages from the training thread to the sending thread. Measurements of short epochs go together.

    A message is sent once its checkpoint is complete. A failure, also of saving, is the last message.
    """

    def __init__(self) -> None:
        self.began_at = time.monotonic()
        self._queue: queue.SimpleQueue[_Event] = queue.SimpleQueue()

    def begin(self) -> None:
        """Start the clock of the trial, after the previous trial."""
        self.began_at = time.monotonic()

    def send(self, what: Began | Failed | Pending[EpochPart] | None) -> None:
        """Send a message at once; None ends the queue."""
        self._queue.put(_Event(what=what))

    def measure(self, measurement: Pending[Measurement], *, is_last: bool) -> None:
        """Send a measurement with others, or at once if `is_last`."""
        self._queue.put(_Event(what=measurement, is_urgent=is_last))

    def asked(self, one: AskedFor) -> None:
        """Send a requested parameter with other messages."""
        self._queue.put(_Event(what=one, is_urgent=False))

    def messages(self) -> Iterator[Message]:
        """Yield the messages until the queue ends."""
        held, has_failed = _Held(), False
        while True:
            event = self._next(held.send_at)
            if event is not None and held.send_at is not None and not event.is_ready_by(held.send_at):
                yield from held.take()  # earlier messages do not wait for its file
            what = None if event is None or has_failed else event.told()
            if event is not None and isinstance(what, Holdable):
                held.add(what, event.at)
            is_due = (at := held.send_at) is not None and time.monotonic() >= at
            if event is None or event.is_urgent or isinstance(what, Failed) or is_due:
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
