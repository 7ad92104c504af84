"""The queue of a pool's events, from its many threads to the controller."""

from __future__ import annotations

import contextlib
import queue

from studies.gangs.protocol import Event


class EventQueue:
    """Events in the order in which they came."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def post(self, event: Event) -> None:
        """Put an event into the queue."""
        self._events.put(event)

    def wait(self, seconds: float) -> list[Event]:
        """All events in the queue, or the first one that comes within that time."""
        events = []
        with contextlib.suppress(queue.Empty):
            events.append(self._events.get(timeout=seconds))
            while True:
                events.append(self._events.get_nowait())
        return events
