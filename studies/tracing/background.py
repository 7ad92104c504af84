"""Sends spans from a thread, for processes that must not wait for a collector: workers of a service."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from studies.tracing.collector import Collector, CollectorError
from studies.tracing.span import Span

MOST_WAITING = 2048
"""Number of spans that wait for a collector that is down; of more the oldest are dropped."""
FLUSH_SECONDS = 3.0
"""Longest time for what still waits at the end."""
BACKOFF_FIRST_SECONDS, BACKOFF_MOST_SECONDS = 1.0, 30.0

MakesSpans = Callable[[], Sequence[Span]]
"""Function that reads what a span needs, called in the thread."""


class BackgroundSender:
    """Takes spans at once, and sends them when the collector takes them.

    Args:
        collector: Collector that they are sent to.
        tell: Function that is called with a line when it does not take them, once until it takes some.
    """

    def __init__(self, collector: Collector, tell: Callable[[str], None]) -> None:
        self._collector, self._tell = collector, tell
        self._given: deque[MakesSpans] = deque(maxlen=MOST_WAITING)
        self._waiting: deque[Span] = deque(maxlen=MOST_WAITING)
        self._awake, self._over = threading.Event(), threading.Event()
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, make: MakesSpans) -> None:
        """Have spans made and sent; returns at once."""
        self._given.append(make)
        self._awake.set()

    def close(self) -> None:
        """Try once more to send what waits, for some seconds at most, and end."""
        self._over.set()
        self._awake.set()
        self._thread.join(FLUSH_SECONDS)

    def _run(self) -> None:
        backoff = BACKOFF_FIRST_SECONDS
        while True:
            self._awake.wait()
            self._awake.clear()
            is_last = self._over.is_set()
            if self._is_sent():
                backoff = BACKOFF_FIRST_SECONDS
            elif not is_last:
                self._over.wait(backoff)
                backoff = min(2 * backoff, BACKOFF_MOST_SECONDS)
                self._awake.set()
            if is_last:
                self._collector.close()
                return

    def _is_sent(self) -> bool:
        while self._given:
            try:
                self._waiting.extend(self._given.popleft()())
            except Exception as error:  # noqa: BLE001 - the store is away, or the job is deleted: its span is dropped
                self._say(f"a span is dropped ({type(error).__name__}: {' '.join(str(error).split())})")
        if not self._waiting:
            return True
        try:
            self._collector.send(list(self._waiting))
        except CollectorError as error:
            self._say(str(error))
            return False
        self._waiting.clear()
        self._told = ""
        return True

    def _say(self, line: str) -> None:
        if line != self._told:
            self._tell(line)
        self._told = line
