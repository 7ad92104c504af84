"""Files that a program keeps in a folder for resuming. A checkpoint stores them as byte tensors by relative path."""

import os
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from trainers.checkpoints.locations import tick
from trainers.failures import CheckpointError, StorageError
from trainers.protocol import TaskError

FILES = "files"
ARE_OLD = "files_are_old"
"""Key of a checkpoint whose files the program has probably not written in the checkpoint's epoch."""
_CHUNK_BYTES = 2**24
_TRIES, _PAUSE_SECONDS = 5, 0.2


def files_in(folder: Path) -> dict[str, Tensor]:
    """Return the content of all files below a folder, by relative path. Starts again if a file changes.

    Files are not mapped into memory, because a mapped file that shrinks would kill this process.
    """
    why = ""
    for _ in range(_TRIES):
        try:
            paths = sorted(path for path in folder.rglob("*") if path.is_file())
            return {path.relative_to(folder).as_posix(): _read(path) for path in paths}
        except (_ChangedError, FileNotFoundError) as error:
            why = str(error)
            time.sleep(_PAUSE_SECONDS)
        except OSError as error:
            raise TaskError(f"the folder of checkpoints cannot be read: {error}") from error
    raise TaskError(
        f"files in the folder of checkpoints changed while automl copied them: {why}. automl copies after each report "
        "(or line with metrics), until it answers. Write a file under another name, then move it with os.replace"
    )


def are_old(folder: Path, since: float, until: float) -> bool:
    """Return whether the latest file of an epoch from `since` to `until` was written before the epoch's second half.

    A program that saves after it prints writes the files of the previous epoch at the epoch's beginning.
    """
    try:
        written_at = max((path.stat().st_mtime for path in folder.rglob("*") if path.is_file()), default=until)
    except OSError:  # a file was replaced just now
        return False
    return written_at < (since + until) / 2


def put_files(content: Mapping[str, Any], folder: Path, path: str) -> None:
    """Write the files of a checkpoint into an empty folder."""
    files = content.get(FILES)
    if not isinstance(files, dict) or not all(isinstance(file, Tensor) for file in files.values()):
        raise CheckpointError(f"checkpoint {path} holds no files of a command")
    for name, file in files.items():
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts or "\0" in name:
            raise CheckpointError(f"checkpoint {path} names the file {name!r}, which is outside of its folder")
        target = folder / relative
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as written:
                for part in file.split(_CHUNK_BYTES) if file.numel() else ():
                    written.write(part.numpy().tobytes())
        except OSError as error:
            raise StorageError(f"cannot write {folder}: {error.strerror or error}") from error


class _ChangedError(Exception):
    """A file changed while it was read."""


def _read(path: Path) -> Tensor:
    with path.open("rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        content = torch.empty(before.st_size, dtype=torch.uint8)
        memory, at = memoryview(content.numpy()), 0  # type: ignore[arg-type]  # an array is a buffer
        while at < len(memory) and (count := file.readinto(memory[at : at + _CHUNK_BYTES])):
            at += count
            tick()()
        after = os.fstat(file.fileno())
    if at < len(memory) or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise _ChangedError(f"{path.name} changed from {before.st_size} to {after.st_size} bytes")
    return content
