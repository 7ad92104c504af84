"""Waits while a study's checkpoint folder cannot be written."""

import threading
import time
from collections.abc import Callable

from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import MissingLibraryError, is_url

TRY_BYTES = 4 * 1024**2  # number of bytes that must be writable before a study continues
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0
_LOOK_SECONDS = 0.2


def storage_problem(folder: str) -> str:
    """Write a small file as a test; returns the problem in one line, or an empty string."""
    try:
        place_of(folder).try_out(folder, TRY_BYTES)
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    except MissingLibraryError as error:
        return str(error)
    return ""


class RoomWaiter:
    """Waits until a folder is writable. Pauses between attempts grow until the study makes progress."""

    def __init__(self, folder: str, is_over: Callable[[], bool]) -> None:
        self._folder, self._is_over = folder, is_over
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def wait(self, *, made_progress: bool) -> bool:
        """Return True when the folder is writable, False if the study ended."""
        self._pause_seconds = FIRST_PAUSE_SECONDS if made_progress else self._pause_seconds
        while True:
            end = time.monotonic() + self._pause_seconds
            while time.monotonic() < end:
                if self._is_over():
                    return False
                time.sleep(_LOOK_SECONDS)
            problem = self._problem()
            if problem is None:
                return False
            if not problem:
                self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
                return True

    def _problem(self) -> str | None:
        if not is_url(self._folder):
            return storage_problem(self._folder)
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(storage_problem(self._folder)), daemon=True)
        thread.start()
        while thread.is_alive():
            if self._is_over():
                return None
            thread.join(_LOOK_SECONDS)
        return answers[0] if answers else f"{self._folder}: cannot test whether it is writable"
