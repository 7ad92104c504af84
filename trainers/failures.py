"""Turns exceptions into picklable `TrainingError`s. Only this module parses messages of torch's errors."""

import errno
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from search_spaces.untrusted_text import storable
from trainers.protocol import Failure, LostError, OutOfMemoryError, TaskError, TrainingError

_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|not enough memory: you tried to allocate|std::bad_alloc|out of memory"
    r"|_ALLOC(ATION)?_FAILED|(FIND|GET) was unable to find an engine",
    re.IGNORECASE,
)
_KILLED_READER = (
    r"DataLoader worker \(pid(\(s\))? [\d, ]+\) (exited unexpectedly|is killed by signal: (Killed|Terminated))"
)
"""A DataLoader's message about a killed worker process, usually for lack of host memory."""
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
"""Only torch's own messages, because a program may also lose connections of its own."""
_USERS_FAULT_ON_DEVICE = re.compile(
    r"device-side assert|no kernel image|kernel image is invalid|invalid (configuration )?argument"
    r"|invalid device (function|ordinal)|invalid resource handle|initialization error|unsupported toolchain"
    r"|too many resources requested|CUBLAS_STATUS_(NOT_SUPPORTED|INVALID_VALUE|ARCH_MISMATCH)",
    re.IGNORECASE,
)
"""Device errors caused by the user's code, which another attempt would repeat."""
_NOT_MAPPED = re.compile(r"unable to (open|stat|mmap)\b.* file <")
_OF_THE_FILE = frozenset({None, errno.EINVAL, errno.EISDIR, errno.ENOTDIR})
"""Codes of `OSError`s caused by the path (a folder) or by wrong offsets in the file."""


class CheckpointError(TrainingError):
    """A checkpoint is missing, damaged or of another trial, or cannot be written."""


class UnreadablePartError(CheckpointError):
    """A checkpoint written within an epoch does not fit the trial. Resume from an earlier checkpoint."""

    failure: Failure = "unreadable"


class StorageError(CheckpointError):
    """The checkpoint folder or its disk fails. The trial is intact, and continues once the disk works again."""

    failure: Failure = "storage"


def classify(exception: BaseException) -> TrainingError:
    """Return the `TrainingError` for an exception: itself, or by its type and message.

    A broken connection counts as lost only if torch reports it: a task may also read over a network (`OSError`).
    """
    if isinstance(exception, TrainingError):
        return exception
    try:
        said = str(exception)
    except Exception:  # noqa: BLE001 - the exception itself is what matters
        said = "its message cannot be read"
    text = storable(f"{type(exception).__name__}: {said}")
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
    """Return the error for an unreadable checkpoint file: missing, damaged, or its disk is unavailable.

    A file is missing only if its grandparent folder exists, because that folder vanishes with an unmounted disk.
    """
    # `Path.is_dir` raises if the disk does not answer.
    if isinstance(error, FileNotFoundError) and os.path.isdir(Path(path).parent.parent):  # noqa: PTH112
        return CheckpointError(f"checkpoint {path} is missing")
    is_wrong = isinstance(error, OSError) and error.errno in _OF_THE_FILE
    if (isinstance(error, OSError) and not is_wrong) or _NOT_MAPPED.search(str(error)):
        return StorageError(f"cannot read {path}: {error}")
    if isinstance(found := classify(error), OutOfMemoryError):
        return found
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return CheckpointError(f"checkpoint {path} is damaged: {reason}")


def error_of_text(what: str, last_words: str, last_lines: Sequence[str]) -> TrainingError:
    """Return the `TrainingError` for a failed program, classified by its last lines of output."""
    text = "\n".join(last_lines)
    message = storable(f"{what}: {last_words}" if last_words else what)
    if _OUT_OF_MEMORY.search(text):
        return OutOfMemoryError(message)
    if _LOST_BY_A_PROGRAM.search(text) and not _USERS_FAULT_ON_DEVICE.search(text):
        return LostError(message)
    return TaskError(message)


@contextmanager
def classified() -> Iterator[None]:
    """Turn any exception in the block into a `TrainingError`, except interrupts such as Ctrl-C."""
    try:
        yield
    except TrainingError:
        raise
    except Exception as exception:
        raise classify(exception) from exception
