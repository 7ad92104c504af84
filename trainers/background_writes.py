"""Files that a thread writes while training goes on, and news of a trial that must not be told before.

FileWriter ── begins ──► Write ◄── waits for it ── Pending, which holds the news that name the file
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from trainers.checkpoint_place import counting
from trainers.errors import classified, classify
from trainers.protocol import EpochPart, Measurement, TrainingError
from trainers.state_copy import StateCopies

LOOK_SECONDS = 1.0
"""Time between two looks of a thread that waits whether the write has got on."""

N = TypeVar("N", Measurement, EpochPart)
Save = Callable[[Mapping[str, Any]], int]
"""Writes a content to a file, or to several, and returns their size in bytes."""


class Write:
    """A file that is being written by a thread, or that is written."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._size, self._parts = 0, 0
        self._error: TrainingError | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.is_set()

    @property
    def has_failed(self) -> bool:
        """Whether it has ended without a whole file."""
        return self.is_done and self._error is not None

    def run(self, work: Callable[[], int]) -> None:
        """Write the file, in this thread.

        Args:
            work: Function that writes it, and returns its size in bytes.
        """
        try:
            with counting(self._count):
                self._size = work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for it has to hear of it
            self._error = classify(error)
        finally:
            self._done.set()

    def wait(self, tick: Callable[[], None] = lambda: None) -> int:
        """Return the size of the file in bytes, once it is whole.

        Args:
            tick: Called now and then, as long as the write gets on.

        Raises:
            TrainingError: The file could not be written.
        """
        seen = 0
        while not self._done.wait(LOOK_SECONDS):
            if self._parts != seen:
                seen = self._parts
                tick()
        if self._error is not None:
            raise self._error
        return self._size

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end, so many seconds at most; returns whether it has ended."""
        return self._done.wait(max(seconds, 0.0))

    def _count(self) -> None:
        self._parts += 1


def written(size: int) -> Write:
    """Return a file of this size in bytes that is written."""
    write = Write()
    write.run(lambda: size)
    return write


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending(Generic[N]):
    """News that name a file, and may be told once that is whole.

    Attributes:
        news: The news, without the size of the file.
        write: The file; None if there is none, or another rank writes it.
    """

    news: N
    write: Write | None = None

    def told(self) -> N:
        """Return the news once the file is whole.

        Raises:
            TrainingError: It could not be written.
        """
        return self.news if self.write is None else replace(self.news, checkpoint_bytes=self.write.wait())


class FileWriter:
    """Writes one content after the other: in this thread, or from a copy while this thread goes on.

    Args:
        tick: Called while this thread waits for a file, as long as its write gets on.
    """

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._copies = StateCopies()
        self._last = written(0)

    @property
    def is_busy(self) -> bool:
        """Whether a file is being written."""
        return not self._last.is_done

    @property
    def has_failed(self) -> bool:
        """Whether the last file could not be written; the next one raises why."""
        return self._last.has_failed

    def write(self, content: Callable[[], Mapping[str, Any]], save: Save, *, in_background: bool) -> Write:
        """Write a content, after waiting for the last one.

        Args:
            content: Returns the content, whose tensors may be those that are trained.
            save: Function that writes it.
            in_background: Whether a thread writes a copy; else the file is whole when this returns.

        Raises:
            TrainingError: The last file could not be written, or this one, if it is not written by a thread.
        """
        self._last.wait(self._tick)
        if not in_background:
            with counting(self._tick), classified():
                return written(save(content()))
        copied = self._copies.of(content())
        write = Write()
        work = threading.Thread(target=write.run, args=(lambda: save(copied),), name="checkpoint", daemon=True)
        work.start()
        self._last = write  # a thread that cannot be started leaves nothing to wait for
        return write

    def close(self) -> None:
        """Wait for the last file; who waits for it hears how it ended."""
        with suppress(TrainingError):
            self._last.wait(self._tick)
