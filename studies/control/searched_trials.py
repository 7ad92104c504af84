"""What a search may know of each started trial, by number: only trials that changed since the last look are read anew.

A study of ten thousand trials asks for this at each rung, for each free slot and for each suggestion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from studies.control.setup import StudySetup
from studies.control.trial_registry import TrialRegistry
from studies.search.observations import Observation, Snapshot

T = TypeVar("T")


class SearchedTrials:
    """Keeps snapshots and observations of the started trials.

    Args:
        setup: Settings of the study.
        registry: All trials; it tells which of them changed.
    """

    def __init__(self, setup: StudySetup, registry: TrialRegistry) -> None:
        self._setup, self._registry = setup, registry
        self._snapshots: list[Snapshot] = []
        self._observations: list[Observation] = []
        self._unobserved: set[int] = set()

    def snapshots(self) -> Sequence[Snapshot]:
        """Snapshots by number; what is returned does not change when trials do."""
        changed = self._registry.take_changed()
        if changed:
            self._unobserved |= changed
            # A copy, since a policy may keep the list that it saw: copying pointers is cheap.
            self._snapshots = _extended(self._snapshots, self._registry.started_count)
            for number in sorted(changed):
                trial = self._registry.numbered(number)
                self._snapshots[number] = trial.snapshot(self._setup.search_usd_per_slot_hour)
        return self._snapshots

    def observations(self) -> tuple[Observation, ...]:
        """Observations by number, each with its snapshot; one of a trial that did not change is the same object."""
        snapshots, setup = self.snapshots(), self._setup
        self._observations = _extended(self._observations, len(snapshots))
        for number in sorted(self._unobserved):
            trial = self._registry.numbered(number)
            made = trial.observation(setup.objectives, setup.epochs, setup.constraints)
            self._observations[number] = replace(made, snapshot=snapshots[number])
        self._unobserved.clear()
        return tuple(self._observations)


def _extended(items: list[T], length: int) -> list[T]:
    """A copy with room for so many items; the new places are filled by the caller."""
    return [*items, *([None] * (length - len(items)))]  # type: ignore[list-item]
