"""What happens to a program, in its order: threads put it in, and the one that trains takes it out."""

from __future__ import annotations

import queue
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from trainers.commands.channel import Question
from trainers.commands.metric_lines import Reported
from trainers.protocol import TrainingError


@dataclass(frozen=True, slots=True)
class Exited:
    """The program has ended: see `exit_error` for the status."""

    status: int | str | None


Event = Question | Reported | ValueError | TrainingError | Exited | None
"""What happens to a program; None once the trial is over."""


class Inbox:
    """A queue of events that can be looked into."""

    def __init__(self) -> None:
        self._new: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._seen: deque[Event] = deque()

    def put(self, event: Event) -> None:
        """Put an event in; for other threads."""
        self._new.put(event)

    def take(self, seconds: float) -> Event:
        """Take the next event out, once there is one.

        Raises:
            queue.Empty: There is none in so many seconds.
        """
        return self._seen.popleft() if self._seen else self._new.get(timeout=seconds)

    def has_report(self) -> bool:
        """Return whether a line with metrics waits to be taken."""
        with suppress(queue.Empty):
            while True:
                self._seen.append(self._new.get_nowait())
        return any(isinstance(one, Reported) for one in self._seen)
