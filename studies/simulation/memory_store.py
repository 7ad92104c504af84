"""A store in memory, for thousands of simulated studies.

It takes the changes that a controller writes and returns the same `StudyRecord` as a database would, without SQL.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from studies.constraints import constraints_in
from studies.records import (
    OWN_CHARGES,
    AttemptRecord,
    ChargeRecord,
    DecisionRecord,
    EpochRecord,
    Objective,
    StudyRecord,
    TrialRecord,
)
from studies.storage import changes as ch
from studies.storage.commit_writer import finite
from studies.storage.store import QueuedTrial, as_time


@dataclass(kw_only=True, slots=True)
class _Trial:
    """Rows of one trial; `columns` are those that its controller has set."""

    params: Mapping[str, Any]
    world_size: int
    origin: str
    attributes: Mapping[str, Any]
    columns: ch.TrialColumns = field(default_factory=lambda: ch.TrialColumns(state="queued"))
    epochs: dict[int, ch.EpochMeasured] = field(default_factory=dict)
    kept: dict[int, str | None] = field(default_factory=dict)
    decisions: list[DecisionRecord] = field(default_factory=list)
    attempts: dict[int, _Attempt] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class _Attempt:
    """Row of one attempt; `columns` are those that its controller has set since it was inserted."""

    opened: ch.AttemptOpened
    columns: ch.AttemptColumns = field(default_factory=lambda: ch.AttemptColumns(outcome="running"))


class MemoryStore:
    """One study, written by one controller.

    Args:
        name: Name of the study.
        objectives: Objectives of the study.
        spec: Spec of the study as its record shows it.
        created_at: Moment of the launch, in virtual or real seconds since 1970.
    """

    def __init__(
        self, name: str, objectives: tuple[Objective, ...], spec: Mapping[str, object], created_at: float = 0.0
    ) -> None:
        self._name, self._objectives, self._spec, self._created_at = name, objectives, spec, created_at
        self._ids = itertools.count(1)
        self._study: ch.StudyColumns = {"state": "running"}
        self._trials: dict[int, _Trial] = {}
        self._charges: list[ch.Charged] = []

    def enqueue(
        self,
        study_id: int,  # noqa: ARG002 - there is one study
        params: Mapping[str, Any],
        *,
        world_size: int,
        origin: str,
        attributes: Mapping[str, Any] | None = None,
        study_attributes: Mapping[str, Any] | None = None,  # noqa: ARG002 - the suggester that made them is still there
        lease_token: str | None = None,  # noqa: ARG002 - there are no rivals
        enqueue_id: str | None = None,  # noqa: ARG002 - no answer is ever lost
    ) -> int:
        """Inserts a configuration that waits; returns its id."""
        trial_id = next(self._ids)
        self._trials[trial_id] = _Trial(
            params=dict(params), world_size=world_size, origin=origin, attributes=dict(attributes or {})
        )
        return trial_id

    def cancel_requests(self, study_id: int) -> list[int]:  # noqa: ARG002 - as of a `Store`
        """Returns no trial: nobody else knows of this store."""
        return []

    def price_that_was_set(self, study_id: int) -> float | None:  # noqa: ARG002 - as of a `Store`
        """Returns None: nobody else knows of this store."""
        return None

    def queued(self, study_id: int) -> list[QueuedTrial]:  # noqa: ARG002 - there is one study
        """Returns the configurations that wait, oldest first."""
        return [
            QueuedTrial(
                id=trial_id,
                params=trial.params,
                world_size=trial.world_size,
                origin=trial.origin,
                attributes=trial.attributes,
            )
            for trial_id, trial in self._trials.items()
            if trial.columns["state"] == "queued"
        ]

    def commit(
        self,
        study_id: int,  # noqa: ARG002 - there is one study
        lease_token: str | None,  # noqa: ARG002 - there are no rivals
        changes: Iterable[ch.Change],
        *,
        commit_id: str | None = None,  # noqa: ARG002 - no answer is ever lost
    ) -> None:
        """Apply all changes in their order."""
        for row in changes:
            match row:
                case ch.StudyChanged():
                    self._study.update(row.columns)
                case ch.TrialChanged():
                    self._trials[row.trial_id].columns.update(row.columns)
                case ch.EpochMeasured():
                    self._trials[row.trial_id].epochs[row.epoch] = row
                case ch.CheckpointKept():
                    self._trials[row.trial_id].kept[row.epoch] = row.checkpoint
                case ch.Charged():
                    self._charges.append(row)
                case ch.Decided():
                    made = DecisionRecord(
                        epoch=row.epoch,
                        action=row.action,
                        reason=row.reason,
                        numbers=row.numbers,
                        forecasts=row.forecasts,
                        decided_at=row.at,
                    )
                    self._trials[row.trial_id].decisions.append(made)
                case ch.AttemptOpened():
                    self._trials[row.trial_id].attempts[row.attempt] = _Attempt(opened=row)
                case ch.AttemptChanged():
                    self._trials[row.trial_id].attempts[row.attempt].columns.update(row.columns)
                case _:
                    pass  # columns of the pool and cursors of the views, which no record has

    def record(self) -> StudyRecord:
        """Returns the study with everything in it."""
        numbers = {trial_id: trial.columns.get("number") for trial_id, trial in self._trials.items()}
        paid: dict[int | None, int] = {}
        for charge in self._charges:
            if charge.kind in OWN_CHARGES:
                paid[charge.trial_id] = paid.get(charge.trial_id, 0) + charge.cost_nano_usd
        return StudyRecord(
            id=1,
            uid=self._name,
            name=self._name,
            state=self._study["state"],
            stop_reason=self._study.get("stop_reason"),
            error=self._study.get("error"),
            spec=self._spec,
            objectives=self._objectives,
            constraints=constraints_in(self._spec),
            reference_point=self._study.get("reference_point"),
            budget={},
            alive_seconds=0.0,
            trials=tuple(_trial(id_, trial, paid.get(id_, 0)) for id_, trial in self._trials.items()),
            charges=tuple(_charge(row, numbers) for row in self._charges),
            overshoot_nano_usd=self._study.get("overshoot_nano_usd", 0),
            created_at=_time(self._created_at),
            ended_at=as_time(self._study.get("ended_at")),
        )


def _trial(trial_id: int, trial: _Trial, paid: int) -> TrialRecord:
    columns = trial.columns
    return TrialRecord(
        id=trial_id,
        number=columns.get("number"),
        state=columns["state"],
        failure=columns.get("failure"),
        params=trial.params,
        world_size=trial.world_size,
        reason=columns.get("reason", ""),
        error=columns.get("error"),
        origin=trial.origin,
        epochs=tuple(_epoch(row, trial.kept) for _, row in sorted(trial.epochs.items())),
        decisions=tuple(trial.decisions),
        attempts=tuple(_attempt(attempt) for attempt in trial.attempts.values()),
        resume_checkpoint=columns.get("resume_checkpoint"),
        resume_epoch=columns.get("resume_epoch", 0),
        paid_nano_usd=paid,
        started_at=as_time(columns.get("started_at")),
        ended_at=as_time(columns.get("ended_at")),
    )


def _epoch(row: ch.EpochMeasured, kept: Mapping[int, str | None]) -> EpochRecord:
    return EpochRecord(
        epoch=row.epoch,
        metrics={name: math.nan if value is None else value for name, value in finite(row.metrics).items()},
        wall_seconds=row.wall_seconds,
        cost_nano_usd=row.cost_nano_usd,
        checkpoint=kept.get(row.epoch, row.checkpoint),
        is_milestone=row.is_milestone,
        measured_at=row.at,
    )


def _attempt(attempt: _Attempt) -> AttemptRecord:
    opened, columns = attempt.opened, attempt.columns
    return AttemptRecord(
        attempt=opened.attempt,
        world_size=len(opened.slots),
        start_epoch=opened.start_epoch,
        slots=opened.slots,
        outcome=columns["outcome"],
        started_at=_time(opened.at),
        ended_at=as_time(columns.get("ended_at")),
        facts=columns.get("facts", {}),
    )


def _charge(row: ch.Charged, numbers: Mapping[int, int | None]) -> ChargeRecord:
    return ChargeRecord(
        kind=row.kind,
        trial=None if row.trial_id is None else numbers.get(row.trial_id),
        attempt=row.attempt,
        slots=row.slots,
        seconds=row.seconds,
        usd_per_slot_hour=row.usd_per_slot_hour,
        cost_nano_usd=row.cost_nano_usd,
        charged_at=_time(row.at),
        slot_numbers=row.slot_numbers,
    )


def _time(seconds: float) -> datetime:
    moment = as_time(seconds)
    assert moment is not None  # noqa: S101 - only None has none
    return moment
