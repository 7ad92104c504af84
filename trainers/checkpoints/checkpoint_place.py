"""What can be done with checkpoints in a place, whatever kind it is; a place that fails raises `OSError`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import BinaryIO, Protocol

from trainers.checkpoints.checkpoint_cache import Content

Save = Callable[[BinaryIO], None]
"""Writes the content of a file, from its beginning to its end."""
Parts = Mapping[str, Content]
"""What the parts of a checkpoint hold, by the names of their files beside it."""
NO_PARTS: Parts = {}
_tick: ContextVar[Callable[[], None]] = ContextVar("_tick", default=lambda: None)


class Place(Protocol):
    """What can be done with checkpoints, wherever they are. All paths are absolute, or URLs."""

    def write(self, path: str, save: Save, parts: Parts = NO_PARTS) -> int:
        """Write a checkpoint whose parts are written already; returns its size in bytes, that of its parts included.

        Raises:
            OSError: The place takes nothing. Nothing is there that a reader would take for a checkpoint.
        """
        ...

    def write_part(self, path: str, save: Save) -> Content:
        """Write a part of a checkpoint."""
        ...

    def open(self, path: str, *, fresh: bool = False) -> BinaryIO:
        """Open a checkpoint for reading.

        Raises:
            FileNotFoundError: The place answers, and has no such checkpoint.
            DamagedObjectError: It has other bytes than were written.
        """
        ...

    def open_part(self, path: str, content: Content, *, fresh: bool = False) -> BinaryIO:
        """Open a part of which its checkpoint says what it holds; arguments and errors as of `open`."""
        ...

    def delete(self, path: str) -> None:
        """Delete a checkpoint and then its parts, as far as they are there."""
        ...

    def withdraw(self, path: str) -> None:
        """Make a checkpoint none, if it is there, before its parts are replaced; any rank may do so."""
        ...

    def size(self, path: str) -> int:
        """Return the size of a checkpoint in bytes, its parts included."""
        ...

    def write_note(self, path: str, text: str) -> None:
        """Write a short text, which replaces the one before."""
        ...

    def read_note(self, path: str) -> str:
        """Read a short text."""
        ...

    def delete_note(self, path: str) -> None:
        """Delete a short text, if it is there."""
        ...

    def try_out(self, folder: str, size: int) -> None:
        """Write a file of so many bytes to a folder, and remove it."""
        ...


@contextmanager
def counting(tick: Callable[[], None]) -> Iterator[None]:
    """Call a function with each part of a file that goes to a place or comes from it, as long as the block runs."""
    token = _tick.set(tick)
    try:
        yield
    finally:
        _tick.reset(token)


def tick() -> Callable[[], None]:
    """Return the function to call with each part of a file that was sent or fetched."""
    return _tick.get()
