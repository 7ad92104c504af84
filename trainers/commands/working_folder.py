"""Folders for the temporary files of commands, which are deleted whoever dies. Does not import torch.

    automl-trial-HOST-PID-RANDOM/lock       locked (flock) as long as the process lives that has made the folder
                                 channel    socket; in a folder of its own where this path would be too long for one

A lock, not the number of a process: containers that share a folder have numbers of their own, and even names.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_NAME = "automl-trial-"
_SHORT_FOLDER = Path("/tmp")  # noqa: S108 - what is made there has a name that nobody knows
_LONGEST_SOCKET_BYTES = 107
"""Bytes of a socket's path on Linux (`sun_path` in unix(7), without its end)."""
_LOCK = "lock"
_BEGUN_SECONDS = 3600.0
"""Age of a folder without a lock from which its process has died before it could lock it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkingFolder:
    """A folder for the files of one attempt on one rank.

    Attributes:
        path: The folder.
        channel: Path for a socket.
    """

    path: Path
    channel: Path


@contextmanager
def working_folder() -> Iterator[WorkingFolder]:
    """Make a new folder, which is deleted in the end; those of processes that died are deleted, too.

    Raises:
        OSError: The disk takes nothing.
    """
    with ExitStack() as stack:
        path = stack.enter_context(_locked_folder(Path(tempfile.gettempdir())))
        channel = path / "channel"
        if len(os.fsencode(channel)) > _LONGEST_SOCKET_BYTES:
            channel = stack.enter_context(_locked_folder(_SHORT_FOLDER)) / "channel"
        yield WorkingFolder(path=path, channel=channel)


@contextmanager
def _locked_folder(place: Path) -> Iterator[Path]:
    for old in place.glob(f"{_NAME}*"):
        with suppress(OSError):
            _delete_if_left(old)
    folder = Path(tempfile.mkdtemp(prefix=f"{_NAME}{socket.gethostname()[:16]}-{os.getpid()}-", dir=place))
    try:
        new = folder / f"{_LOCK}.new"  # nobody may take the lock before this process does
        with new.open("wb") as lock:
            with suppress(OSError):  # some network disks have no locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _delete_if_left(folder: Path) -> None:
    """Delete a folder whose process has died.

    Raises:
        OSError: It lives, or the folder is somebody else's.
    """
    try:
        lock = (folder / _LOCK).open("rb")
    except FileNotFoundError:
        if time.time() - folder.stat().st_mtime < _BEGUN_SECONDS:
            return
    else:
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    shutil.rmtree(folder, ignore_errors=True)
