"""The gangs that a pool runs: whoever takes one out says what became of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from studies.gangs.gang_reports import Gang


class RunningGangs:
    """Gangs by trial and attempt, for several threads."""

    def __init__(self) -> None:
        self._gangs: dict[tuple[int, int], Gang] = {}
        self._changing = threading.Lock()

    def __iter__(self) -> Iterator[Gang]:
        """Iterate over those that run now."""
        return iter(list(self._gangs.values()))

    def add(self, gang: Gang) -> None:
        """Take a gang in."""
        with self._changing:
            self._gangs[gang.trial_id, gang.attempt] = gang

    def get(self, trial_id: int, attempt: int) -> Gang | None:
        """Look a gang up; None if it does not run."""
        return self._gangs.get((trial_id, attempt))

    def take(self, trial_id: int, attempt: int) -> Gang | None:
        """Take a gang out, which is over then; None if another thread has."""
        with self._changing:
            gang = self._gangs.pop((trial_id, attempt), None)
        if gang is not None:
            gang.end()
        return gang

    def remove(self, gang: Gang) -> bool:
        """Take this gang out; False if another thread has, which says what became of it."""
        return self.take(gang.trial_id, gang.attempt) is not None

    def take_all(self) -> list[Gang]:
        """Take all gangs out."""
        return [gang for gang in self if self.remove(gang)]

    def has(self, slot: int) -> bool:
        """Whether a gang holds a slot."""
        return any(slot in gang.slots for gang in self)
