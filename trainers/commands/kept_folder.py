"""The files that a program keeps for going on: a folder while it runs, and inside a checkpoint of the trial.

A checkpoint holds each file as a tensor of bytes under its relative path, so that it is written, checked, sent and
deleted as any other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from trainers import checkpoint as checkpoints
from trainers.checkpoint_place import tick
from trainers.errors import CheckpointError, StorageError
from trainers.own_loop import OwnLoop
from trainers.protocol import TaskError

FILES = "files"
"""Name of the part of a checkpoint that holds a program's files."""
_CHUNK_BYTES = 2**24
_TRIES, _PAUSE_SECONDS = 5, 0.2


class FolderCheckpoints:
    """Checkpoints of a trial whose state is the content of a folder.

    Args:
        own: The trial.
    """

    def __init__(self, own: OwnLoop) -> None:
        self._own = own

    def restore(self, folder: Path | None) -> int:
        """Put the files of the checkpoint to go on from into a folder, if one is given; returns the epochs done.

        Raises:
            CheckpointError: The checkpoint cannot be read, or is of another trial.
            StorageError: The disk takes nothing.
        """
        path = self._own.spec.resume_from
        if path is None:
            return 0
        content = checkpoints.open_checkpoint(path)
        self._own.check_belongs(content, path)
        if folder is not None:
            try:
                put_files(content, folder, path)
            except OSError as error:
                raise StorageError(f"cannot write {folder}: {error.strerror or error}") from error
        return int(content["position"]["epoch"])

    def write(self, folder: Path, epoch: int, metrics: Mapping[str, float]) -> tuple[str | None, int]:
        """Write a checkpoint of a folder after an epoch.

        Returns:
            Its path or URL and its size in bytes; None and 0 if the folder is empty, or the trial writes none.

        Raises:
            StorageError: The disk or the object store does not allow it.
        """
        path = checkpoints.checkpoint_path(self._own.spec, epoch)
        if path is None or not (files := files_in(folder)):
            return None, 0
        return path, checkpoints.write_atomically(self._own.content(epoch, metrics, **{FILES: files}), path)


def files_in(folder: Path) -> dict[str, Tensor]:
    """Return the content of all files below a folder, by their relative paths.

    The files are read, not mapped: one that the program makes shorter would kill whoever has it mapped. If something
    changes meanwhile all is read anew.

    Raises:
        TaskError: Something in it cannot be read, or changes all the time.
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
        f"the folder of checkpoints changes while it is kept: {why}; allowed: files that stay as they are from a "
        "report, or a line with metrics, until the answer; write each under another name first, and os.replace it"
    )


def put_files(content: Mapping[str, Any], folder: Path, path: str) -> None:
    """Write the files of a checkpoint into an empty folder.

    Args:
        content: Content of the checkpoint.
        folder: The folder.
        path: Path or URL of the checkpoint, for messages.

    Raises:
        CheckpointError: It holds no files, or names one outside the folder.
        OSError: The disk takes nothing.
    """
    files = content.get(FILES)
    if not isinstance(files, dict) or not all(isinstance(file, Tensor) for file in files.values()):
        raise CheckpointError(f"checkpoint {path} holds no files of a command")
    for name, file in files.items():
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts or "\0" in name:
            raise CheckpointError(f"checkpoint {path} names the file {name!r} outside its folder")
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as written:
            for part in file.split(_CHUNK_BYTES) if file.numel() else ():
                written.write(part.numpy().tobytes())


class _ChangedError(Exception):
    """A file has changed while it was read."""


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
        raise _ChangedError(f"{path.name} had {before.st_size} bytes, and has {after.st_size}")
    return content
