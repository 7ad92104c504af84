"""Deletion of checkpoints, without making the controller wait for an object store."""

import logging
import queue
import threading
import time

from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import MissingLibraryError, is_url

WORKERS = 4  # number of simultaneous deletions in an object store
FINISH_SECONDS = 30.0
"""Longest wait for unconfirmed deletions at the end of a study; `automl gc` finds files that remain."""
_LOOK_SECONDS = 0.05
log = logging.getLogger(__name__)


def delete_file(path: str) -> None:
    """Delete a checkpoint; a failure costs disk space only."""
    try:
        place_of(path).delete(path)
    except (OSError, MissingLibraryError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        log.warning("cannot delete %s, which is no longer needed (%s)", path, reason)


class Deleter:
    """Deletes local files at once, and objects of a store in daemon threads, which cannot delay the process's end."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._changing = threading.Lock()
        self._unfinished = 0
        self._threads: list[threading.Thread] = []

    def delete(self, path: str) -> None:
        """Delete a checkpoint; does not wait for an object store."""
        if not is_url(path):
            delete_file(path)
            return
        with self._changing:
            self._unfinished += 1
        self._queue.put(path)
        if len(self._threads) < WORKERS:
            thread = threading.Thread(target=self._work, name="deletes", daemon=True)
            self._threads.append(thread)
            thread.start()

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Wait until everything is deleted, at most `seconds`."""
        deadline = time.monotonic() + seconds
        while self._unfinished and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        if left := self._unfinished:
            log.warning("%d checkpoints that are no longer needed are not deleted yet; `automl gc` lists them", left)

    def _work(self) -> None:
        while True:
            path = self._queue.get()
            try:
                delete_file(path)
            except Exception:
                log.exception("cannot delete %s", path)
            finally:
                with self._changing:
                    self._unfinished -= 1
