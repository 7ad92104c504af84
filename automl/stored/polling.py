"""Polls a study, and reads it only if it may have changed."""

import time
from collections.abc import Callable

from studies.records.records import StudyRecord
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store
from studies.storage.writing.retrying import retry_patiently

MOST_SECONDS = 10.0
"""Seconds until a study is read even without a commit, because leases and clocks change, too."""
RESTS_PER_LOOK = 19.0  # so that polls use a twentieth of a core: ranks may train on this machine


def rest_seconds(used_seconds: float, least_seconds: float) -> float:
    """Return the seconds until the next poll, so that polls use little CPU."""
    return max(least_seconds, RESTS_PER_LOOK * used_seconds)


class Looker:
    """Callable that returns the newest record of a study."""

    def __init__(self, store: Store, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._name, self._clock = store, name, clock
        self._revision, self._read_at = -1, 0.0
        self._record: StudyRecord | None = None

    def __call__(self) -> StudyRecord:
        """Return the study. Raises StoreError if it was deleted."""
        return retry_patiently(self._look)

    def _look(self) -> StudyRecord:
        revision = int(self._store.require(self._name).revision)
        is_old = self._clock() - self._read_at >= MOST_SECONDS
        if self._record is None or revision != self._revision or is_old:
            self._record = load_study(self._store, self._name)
            self._revision, self._read_at = revision, self._clock()
        return self._record
