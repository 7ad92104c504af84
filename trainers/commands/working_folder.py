"""Folders for the temporary files of commands, which are deleted whoever dies. Does not import torch."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SHORT_FOLDER = "/tmp"  # noqa: S108 - what is made there has a name that nobody knows
_LONGEST_FOLDER = 50
"""Characters of a folder below which the path of a socket in ours fits into the 107 of Linux."""


@contextmanager
def working_folder() -> Iterator[Path]:
    """Return a new folder, which is deleted in the end; those of processes of this machine that died are deleted, too.

    Raises:
        OSError: The disk takes nothing.
    """
    place = Path(tempfile.gettempdir())
    if len(str(place)) > _LONGEST_FOLDER:
        place = Path(_SHORT_FOLDER)
    ours = f"automl-trial-{socket.gethostname()[:16]}-"
    for old in place.glob(f"{ours}*"):
        number = old.name.removeprefix(ours).partition("-")[0]
        if number.isdigit() and not _is_alive(int(number)):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{ours}{os.getpid()}-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError, OverflowError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
