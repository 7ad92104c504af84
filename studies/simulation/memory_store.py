"""A fast store in memory for simulated studies, with the same `StudyRecord` as a database."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from studies.records.records import (
    OWN_CHARGES,
    AttemptRecord,
    ChargeRecord,
    DecisionRecord,
    EpochRecord,
    StudyRecord,
    TrialRecord,
)
from studies.storage.reading.reader import record_of, study_record, trial_record
from studies.storage.study_store import QueuedTrial
from studies.storage.writing import changes as ch
from studies.storage.writing.commit_writer import row_of

_QUEUED: Mapping[str, Any] = {
    "number": None, "state": "queued", "failure": None, "reason": "", "error": None, "resume_checkpoint": None,
    "resume_epoch": 0, "paused_by": None, "created_at": None, "started_at": None, "ended_at": None,
}  # fmt: skip
"""Columns of a new trial's row."""


@dataclass(kw_only=True, slots=True)
class _Trial:
    """A trial's rows, with the database's columns as attributes."""

    row: SimpleNamespace
    epochs: dict[int, SimpleNamespace] = field(default_factory=dict)
    decisions: list[SimpleNamespace] = field(default_factory=list)
    attempts: dict[int, SimpleNamespace] = field(default_factory=dict)


class MemoryStore:
    """A store of one study with one controller."""

    def __init__(self, name: str, spec: Mapping[str, object]) -> None:
        self._ids = itertools.count(1)
        self._study = SimpleNamespace(
            id=1, uid=name, name=name, state="running", stop_reason=None, error=None, spec=spec, reference_point=None,
            overshoot_nano_usd=0, created_at=0.0, ended_at=None,
        )  # fmt: skip
        self._trials: dict[int, _Trial] = {}
        self._charges: list[SimpleNamespace] = []

    def enqueue(
        self,
        study_id: int,  # noqa: ARG002 - there is one study
        params: Mapping[str, Any],
        *,
        world_size: int,
        origin: str,
        attributes: Mapping[str, Any] | None = None,
        study_attributes: Mapping[str, Any] | None = None,  # noqa: ARG002 - the suggester itself still has them
        lease_token: str | None = None,  # noqa: ARG002 - there is no other controller
        enqueue_id: str | None = None,  # noqa: ARG002 - no answer is ever lost
    ) -> int:
        """Insert a waiting configuration, and return its id."""
        trial_id = next(self._ids)
        row = {"params": dict(params), "world_size": world_size, "origin": origin}
        self._trials[trial_id] = _Trial(
            row=SimpleNamespace(id=trial_id, **row, sampler_attributes=dict(attributes or {}), **_QUEUED)
        )
        return trial_id

    def cancel_requests(self, study_id: int) -> list[int]:  # noqa: ARG002 - the interface of a store
        """Return no requests: no other process can use this store."""
        return []

    def price_that_was_set(self, study_id: int) -> float | None:  # noqa: ARG002 - the interface of a store
        """Return None: no other process can use this store."""
        return None

    def queued(self, study_id: int) -> list[QueuedTrial]:  # noqa: ARG002 - there is one study
        """Return the waiting configurations, oldest first."""
        return [
            QueuedTrial(
                id=trial_id,
                params=trial.row.params,
                world_size=trial.row.world_size,
                origin=trial.row.origin,
                attributes=trial.row.sampler_attributes,
            )
            for trial_id, trial in self._trials.items()
            if trial.row.state == "queued"
        ]

    def commit(
        self,
        study_id: int,  # noqa: ARG002 - there is one study
        lease_token: str | None,  # noqa: ARG002 - there is no other controller
        changes: Iterable[ch.Change],
        *,
        commit_id: str | None = None,  # noqa: ARG002 - no answer is ever lost
    ) -> None:
        """Apply all changes in order."""
        for row in changes:
            match row:
                case ch.StudyChanged():
                    vars(self._study).update(row.columns)
                case ch.TrialChanged():
                    vars(self._trials[row.trial_id].row).update(row.columns)
                case ch.AttemptChanged():
                    vars(self._trials[row.trial_id].attempts[row.attempt]).update(row.columns)
                case ch.CheckpointKept():
                    self._trials[row.trial_id].epochs[row.epoch].checkpoint = row.checkpoint
                case ch.EpochMeasured():
                    self._trials[row.trial_id].epochs[row.epoch] = SimpleNamespace(**row_of(row))
                case ch.Decided():
                    self._trials[row.trial_id].decisions.append(SimpleNamespace(**row_of(row)))
                case ch.AttemptOpened():
                    opened = SimpleNamespace(**row_of(row), ended_at=None)
                    self._trials[row.trial_id].attempts[row.attempt] = opened
                case ch.Charged():
                    self._charges.append(SimpleNamespace(**row_of(row)))
                case _:
                    pass  # columns of the pool and cursors of the views, which records do not have

    def record(self) -> StudyRecord:
        """Return the whole study."""
        paid: dict[int | None, int] = {}
        for charge in self._charges:
            if charge.kind in OWN_CHARGES:
                paid[charge.trial_id] = paid.get(charge.trial_id, 0) + charge.cost_nano_usd
        numbers = {trial_id: trial.row.number for trial_id, trial in self._trials.items()}
        return study_record(
            self._study,
            budget={},
            alive_seconds=0.0,
            trials=tuple(_trial(trial, paid.get(trial_id, 0)) for trial_id, trial in self._trials.items()),
            charges=tuple(record_of(ChargeRecord, row, trial=numbers.get(row.trial_id)) for row in self._charges),
        )


def _trial(trial: _Trial, paid: int) -> TrialRecord:
    return trial_record(
        trial.row,
        tuple(record_of(EpochRecord, row) for _, row in sorted(trial.epochs.items())),
        paid,
        decisions=tuple(record_of(DecisionRecord, row) for row in trial.decisions),
        attempts=tuple(record_of(AttemptRecord, row) for row in trial.attempts.values()),
    )
