"""Ids of Optuna's studies that never come back, for those who remember by id what they have read."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells a study from another one that had its id before.

    Attributes:
        name: Name of the study.
        uid: Unique id of the study that it mirrors; empty if it mirrors none.
    """

    name: str
    uid: str


@dataclass(slots=True)
class LastingIds:
    """Ids by which one process tells others of studies.

    SQLite gives the id of a deleted study to the next one. Optuna Dashboard keeps trials, search spaces and importances
    by id, importances even for all projects of a process, so the next study would be shown with what it kept of the
    deleted one. An id that comes back is told as one that nobody was told before.
    """

    _outer: dict[tuple[int, Mark], int] = field(default_factory=dict)
    _inner: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def told(self, inner: int, mark: Mark) -> int:
        """Return the id by which others know the study that has an id now.

        Args:
            inner: Id of the study in Optuna's tables.
            mark: What tells it from others that had this id.
        """
        with self._lock:
            outer = self._outer.get((inner, mark))
            if outer is None:
                outer = inner if inner not in self._inner else max(self._inner) + 1
                self._outer[inner, mark], self._inner[outer] = outer, inner
            return outer

    def meant(self, outer: int) -> int:
        """Return the id in Optuna's tables that a study had when others were told of it; one of none is as it is."""
        with self._lock:
            return self._inner.get(outer, outer)
