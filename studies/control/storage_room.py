"""Waiting for a disk: a study whose checkpoints cannot be written pauses, and goes on when there is room."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

TRY_BYTES = 4 * 1024**2
"""Number of bytes that have to fit before a study goes on."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0
_LOOK_SECONDS = 0.2


def storage_problem(folder: Path) -> str:
    """Write a small file to a folder and remove it; returns what is wrong in one line, empty if nothing is."""
    draft = folder / f".room.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                file.write(bytes(TRY_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return ""


class RoomWaiter:
    """Waits until a folder can be written to; the pauses grow while no progress is made in between.

    Args:
        folder: Folder of the checkpoints.
        is_over: Function that returns whether somebody has ended the waiting.
    """

    def __init__(self, folder: Path, is_over: Callable[[], bool]) -> None:
        self._folder, self._is_over = folder, is_over
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def wait(self, *, made_progress: bool) -> bool:
        """Return True once there is room, False once somebody has ended the waiting.

        Args:
            made_progress: Whether an epoch was recorded since the last call. If not, what has to be written is larger
                than what is tried here, and the next try is later.
        """
        self._pause_seconds = FIRST_PAUSE_SECONDS if made_progress else self._pause_seconds
        while True:
            end = time.monotonic() + self._pause_seconds
            while time.monotonic() < end:
                if self._is_over():
                    return False
                time.sleep(_LOOK_SECONDS)
            if not storage_problem(self._folder):
                self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
                return True
