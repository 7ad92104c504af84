"""Interface of the places that store checkpoints; its operations raise `OSError` if the place fails."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import BinaryIO, Protocol

from trainers.checkpoints.checkpoint_cache import Content

Save = Callable[[BinaryIO], object]
Parts = Mapping[str, Content]  # contents of a checkpoint's parts, by file name
NO_PARTS: Parts = {}
_tick: ContextVar[Callable[[], None]] = ContextVar("_tick", default=lambda: None)


class Place(Protocol):
    """Operations on checkpoints, local or remote. All paths are absolute, or URLs."""

    def write(self, path: str, save: Save, parts: Parts = NO_PARTS) -> int:
        """Write a checkpoint after its parts, and return the bytes of all its files; after OSError none exists."""

    def write_part(self, path: str, save: Save) -> Content:
        """Write a part of a checkpoint."""

    def open(self, path: str, *, fresh: bool = False) -> BinaryIO:
        """Open a checkpoint; FileNotFoundError if there is none, DamagedObjectError for other bytes than written."""

    def open_part(self, path: str, content: Content, *, fresh: bool = False) -> BinaryIO:
        """Open a part with the content that its checkpoint states; errors as in `open`."""

    def delete(self, path: str) -> None:
        """Delete a checkpoint and then its parts; missing files are ignored."""

    def withdraw(self, path: str) -> None:
        """Delete the main file before its parts are replaced; any rank may call it."""

    def size(self, path: str) -> int:
        """Return the size of a checkpoint in bytes, its parts included."""

    def write_note(self, path: str, text: str) -> None:
        """Write a short text, replacing the earlier one."""

    def read_note(self, path: str) -> str:
        """Read a short text."""

    def delete_note(self, path: str) -> None:
        """Delete a short text, if it exists."""

    def try_out(self, folder: str, size: int) -> None:
        """Write a file of `size` bytes to a folder, and remove it."""


@contextmanager
def counting(tick: Callable[[], None]) -> Iterator[None]:
    """While the block runs, call `tick` with each chunk sent to a place or read from it."""
    token = _tick.set(tick)
    try:
        yield
    finally:
        _tick.reset(token)


def tick() -> Callable[[], None]:
    """Return the function to call after each chunk."""
    return _tick.get()
