"""Files that are there wholly or not at all, in whatever place, and why one could not be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from trainers.checkpoint_place import Save, tick
from trainers.checkpoint_urls import MissingLibraryError
from trainers.errors import CheckpointError, StorageError, classify
from trainers.protocol import LostError, OutOfMemoryError

T = TypeVar("T")
S = TypeVar("S")


def write_whole_file(path: str | Path, write: Callable[[BinaryIO], T], send: Callable[[Save], S]) -> tuple[T, S]:
    """Let `write` write a file that is then at `path`.

    Args:
        path: Path or URL of the file, for messages.
        write: Function that writes the content.
        send: Function that has a place take a file whose content its argument writes.

    Returns:
        What both functions returned.

    Raises:
        StorageError: The disk, the folder or the object store does not allow it.
        CheckpointError: Something in the content cannot be saved.
        OutOfMemoryError: The host has no memory for what is written.
        LostError: The device that holds a tensor has failed.
    """
    noting: _NotingWriter | None = None
    written: list[T] = []

    def save(file: BinaryIO) -> None:
        nonlocal noting
        noting = _NotingWriter(file)
        written.append(write(cast("BinaryIO", noting)))

    try:
        sent = send(save)
    except (OSError, RuntimeError, MissingLibraryError) as error:
        cause = noting.problem if noting is not None and noting.problem is not None else error
        if isinstance(found := classify(cause), OutOfMemoryError | LostError):
            raise found from error  # tensors come from a device, which may fail meanwhile
        kind = StorageError if isinstance(cause, OSError | MissingLibraryError) else CheckpointError
        raise kind(f"cannot write {path}: {type(cause).__name__}: {cause}") from error
    return written[-1], sent


class _NotingWriter:
    """A file that remembers why it could not be written, which torch turns into a RuntimeError of its own.

    Attributes:
        problem: First error of the disk; None if there was none.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._tick = file, tick()
        self.problem: OSError | None = None

    def write(self, data: Any) -> int:
        """Write bytes, or what has a buffer of them, to the file."""
        self._tick()
        try:
            return self._file.write(data)
        except OSError as error:
            self.problem = self.problem or error
            raise

    def flush(self) -> None:
        """Do nothing: the file is flushed once it is whole."""
