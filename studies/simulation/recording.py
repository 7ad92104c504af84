"""Records simulated studies, and the time of each decision."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from studies.control.controller import Rows
from studies.records.records import StudyRecord
from studies.search.observations import Observation
from studies.search.policy import Decision, History, Pruner, Thaw
from studies.search.samplers.suggester import Suggester, Suggestion
from studies.simulation.memory_store import MemoryStore
from studies.simulation.recorded_curves import CurvesError
from studies.simulation.setting import DecisionListener
from studies.spec.study_spec import StudySpec
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store


class MemoryRecording:
    """Keeps the study in memory only."""

    def __init__(self, name: str, spec: Mapping[str, object]) -> None:
        self.study_id, self.opened_at = 1, 0.0
        self.lease_token: str | None = None
        self._store = MemoryStore(name, spec)
        self.rows: Rows = self._store

    def record(self) -> StudyRecord:
        """Return the study so far."""
        return self._store.record()

    def close(self, now: float) -> None:
        """Do nothing: a study in memory has no lease."""


class StoreRecording:
    """Writes the study to a store, with a lease. Raises CurvesError if its name is taken."""

    def __init__(self, store: Store, spec: StudySpec) -> None:
        name = spec.study
        if store.study_row(name) is not None:
            raise CurvesError(f"study: {name!r} exists already in the store. Take another name")
        self.rows: Rows = store
        self._store, self._name = store, name
        self.study_id = store.create_study(name, recorded_spec(spec), ".", time.time())
        lease = leases.acquire(store, self.study_id)
        assert isinstance(lease, leases.Lease)  # noqa: S101 - no other process knows the study yet
        self._lease = lease
        self.lease_token: str | None = lease.token
        self.opened_at = lease.acquired_at

    def record(self) -> StudyRecord:
        """Return the study so far."""
        return load_study(self._store, self._name)

    def close(self, now: float) -> None:
        """Release the lease at this virtual time, so that the study's duration is right."""
        leases.release(self._store, self._lease, now)


def recorded_spec(spec: StudySpec) -> dict[str, Any]:
    """Return the spec to record for a simulated study, without the default store, which it does not use."""
    mapping = spec.model_dump(mode="json")
    mapping.pop("store")
    return mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Latencies:
    """Real seconds of each suggestion and decision, with the number of trials at that time."""

    suggest: list[tuple[int, float]] = field(default_factory=list)
    decide: list[tuple[int, float]] = field(default_factory=list)
    free_slot: list[tuple[int, float]] = field(default_factory=list)


class TimedSuggester:
    """A suggester that measures another suggester's time."""

    def __init__(self, suggester: Suggester, latencies: Latencies) -> None:
        self._suggester, self._latencies = suggester, latencies

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """Return the other suggester's suggestion."""
        began = time.perf_counter()
        suggestion = self._suggester.suggest(number, history)
        self._latencies.suggest.append((number, time.perf_counter() - began))
        return suggestion


class TimedPruner:
    """A pruner that measures another pruner's time, and calls a listener after each decision."""

    def __init__(self, pruner: Pruner, latencies: Latencies, on_decision: DecisionListener | None) -> None:
        self._pruner, self._latencies, self._on_decision = pruner, latencies, on_decision

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pruner, name)

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return the other pruner's rungs."""
        return self._pruner.rungs(epochs)

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Return the other pruner's decision."""
        began = time.perf_counter()
        decision = self._pruner.decide(history, number, rung)
        self._latencies.decide.append((len(history.trials), time.perf_counter() - began))
        if self._on_decision is not None:
            self._on_decision(self._pruner, history, number, rung)
        return decision

    def prepare(self, history: History) -> None:
        """Prepare the other pruner."""
        self._pruner.prepare(history)

    def worth_least(self, history: History) -> int | None:
        """Return the other pruner's least valuable paused trial."""
        return self._pruner.worth_least(history)

    def thaw(self, history: History) -> Thaw | None:
        """Return the other pruner's choice for a free slot."""
        began = time.perf_counter()
        thaw = self._pruner.thaw(history)
        self._latencies.free_slot.append((len(history.trials), time.perf_counter() - began))
        return thaw
