"""Which `TrainingError` an exception is: the only place that reads the texts of torch's errors.

Training errors cross process borders, so each holds nothing but its message and can be pickled.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from search_spaces.outside_text import storable
from trainers.protocol import Failure, LostError, OutOfMemoryError, TaskError, TrainingError

_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|not enough memory: you tried to allocate|std::bad_alloc|out of memory"
    r"|_ALLOC(ATION)?_FAILED|(FIND|GET) was unable to find an engine",
    re.IGNORECASE,
)
_KILLED_READER = (
    r"DataLoader worker \(pid(\(s\))? [\d, ]+\) (exited unexpectedly|is killed by signal: (Killed|Terminated))"
)
"""What a loader says of a process that reads for it and was ended from outside, mostly for the host's memory."""
_LOST = re.compile(
    r"connection (closed|reset|refused|was likely closed)|broken pipe|socket (closed|timeout)|timed out (waiting|after)"
    r"|connectFullMesh|failed to (connect|recv|send)|gloo/transport|NCCL error"
    rf"|ncclRemoteError|ncclSystemError|CUDA error|{_KILLED_READER}",
    re.IGNORECASE,
)
_LOST_BY_A_PROGRAM = re.compile(
    r"torch\.distributed\.Dist\w*Error|connectFullMesh|gloo/transport|NCCL error|ncclRemoteError|ncclSystemError"
    rf"|CUDA error|{_KILLED_READER}"
)
"""What torch alone says: a program may have connections of its own, to a server of data, whose loss is its own."""
_USERS_FAULT_ON_DEVICE = re.compile(
    r"device-side assert|no kernel image|kernel image is invalid|invalid (configuration )?argument"
    r"|invalid device (function|ordinal)|invalid resource handle|initialization error|unsupported toolchain"
    r"|too many resources requested|CUBLAS_STATUS_(NOT_SUPPORTED|INVALID_VALUE|ARCH_MISMATCH)",
    re.IGNORECASE,
)
"""What the code asks of a device that can never do it: another attempt ends in the same way."""
_NOT_MAPPED = re.compile(r"unable to (open|stat|mmap)\b.* file <")
_OF_THE_FILE = frozenset({None, errno.EINVAL, errno.EISDIR, errno.ENOTDIR})
"""Codes of `OSError`s that what lies at a path leads to: a folder, or bytes that name no place in the file."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be read or written: it is missing, damaged, of another trial, or the disk is full."""


class UnreadablePartError(CheckpointError):
    """A saved part of an epoch does not fit: the trial goes back to an earlier checkpoint."""

    failure: Failure = "unreadable"


class StorageError(CheckpointError):
    """The disk or the folder of checkpoints takes nothing: the trial is as good as before, and goes on when it does."""

    failure: Failure = "storage"


def classify(exception: BaseException) -> TrainingError:
    """Return the `TrainingError` that says what the caller can do about `exception`.

    A `TrainingError` is returned as it is. A connection that broke is lost only when torch itself says so: an
    `OSError` of the task, which may load data over a network, is the task's.
    """
    if isinstance(exception, TrainingError):
        return exception
    text = _text_of(exception)
    if isinstance(exception, (torch.OutOfMemoryError, MemoryError)):
        return OutOfMemoryError(text)
    if isinstance(exception, RuntimeError):
        if _OUT_OF_MEMORY.search(text):
            return OutOfMemoryError(text)
        from_torch = isinstance(exception, dist.DistError) or _LOST.search(text)
        if from_torch and not _USERS_FAULT_ON_DEVICE.search(text):
            return LostError(text)
    return TaskError(storable("".join(traceback.format_exception(exception)).rstrip()))


def of_unread_file(path: str | Path, error: Exception) -> TrainingError:
    """Return what it means that a file of a checkpoint was not read.

    Only what a wrong or damaged file leads to is told as that: a disk that is away for a while has the file still. A
    file is missing only if the folder of its folder is there, which goes with a disk that is not mounted.
    """
    if isinstance(error, FileNotFoundError) and _is_folder(Path(path).parent.parent):
        return CheckpointError(f"checkpoint {path} is missing")
    is_wrong = isinstance(error, OSError) and error.errno in _OF_THE_FILE
    if (isinstance(error, OSError) and not is_wrong) or _NOT_MAPPED.search(str(error)):
        return StorageError(f"cannot read {path}: {error}")
    if isinstance(found := classify(error), OutOfMemoryError):
        return found
    return CheckpointError(f"checkpoint {path} is damaged: {type(error).__name__}: {error}")


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - a disk that does not answer has no folder, where `is_dir` raises


def error_of_text(what: str, last_lines: Sequence[str]) -> TrainingError:
    """Return the error of a program that has failed, by the last lines that it has printed."""
    text = "\n".join(last_lines)
    message = storable(": ".join([what, *(line.strip() for line in last_lines[-1:])]))
    if _OUT_OF_MEMORY.search(text):
        return OutOfMemoryError(message)
    if _LOST_BY_A_PROGRAM.search(text) and not _USERS_FAULT_ON_DEVICE.search(text):
        return LostError(message)
    return TaskError(message)


def _text_of(exception: BaseException) -> str:
    """An exception's class and message as every process and store takes it; the user's `__str__` may fail, too."""
    try:
        said = str(exception)
    except Exception:  # noqa: BLE001 - the exception itself is what matters
        said = "its message cannot be read"
    return storable(f"{type(exception).__name__}: {said}")


@contextmanager
def classified() -> Iterator[None]:
    """Turn whatever is raised inside into a `TrainingError`; interrupts pass."""
    try:
        yield
    except TrainingError:
        raise
    except Exception as exception:
        raise classify(exception) from exception
