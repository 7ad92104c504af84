"""A store that forgets when its process ends: for simulated studies by the thousand.

It takes what a controller writes and gives the same `StudyRecord` as a database would, without SQL.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from studies.constraints import constraints_in
from studies.records import (
    AttemptRecord,
    ChargeRecord,
    DecisionRecord,
    EpochRecord,
    Objective,
    StudyRecord,
    TrialRecord,
)
from studies.storage import changes as ch
from studies.storage.store import QueuedTrial, as_time, finite


class MemoryStore:
    """One study, written by one controller.

    Args:
        name: The study's.
        objectives: The study's.
        spec: As the record shows it.
        created_at: Virtual or real seconds.
    """

    def __init__(
        self, name: str, objectives: tuple[Objective, ...], spec: Mapping[str, object], created_at: float = 0.0
    ) -> None:
        self._name, self._objectives, self._spec, self._created_at = name, objectives, spec, created_at
        self._ids = itertools.count(1)
        self._study: dict[str, Any] = {"state": "running"}
        self._trials: dict[int, dict[str, Any]] = {}
        self._epochs: dict[int, dict[int, ch.EpochMeasured]] = {}
        self._kept: dict[tuple[int, int], str | None] = {}
        self._decisions: dict[int, list[DecisionRecord]] = {}
        self._attempts: dict[int, dict[int, dict[str, Any]]] = {}
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
        lease_id: int | None = None,  # noqa: ARG002 - there are no rivals
    ) -> int:
        """Insert a configuration that waits; returns its id."""
        number = next(self._ids)
        self._trials[number] = {
            "params": dict(params), "world_size": world_size, "origin": origin, "state": "queued",
            "attributes": dict(attributes or {}),
        }  # fmt: skip
        return number

    def queued(self, study_id: int) -> list[QueuedTrial]:  # noqa: ARG002 - there is one study
        """Configurations that wait, oldest first."""
        return [
            QueuedTrial(
                id=number,
                params=row["params"],
                world_size=row["world_size"],
                origin=row["origin"],
                attributes=row["attributes"],
            )
            for number, row in self._trials.items()
            if row["state"] == "queued"
        ]

    def commit(self, study_id: int, lease_id: int | None, changes: Iterable[ch.Change]) -> None:  # noqa: ARG002
        """Take all changes in."""
        for row in changes:
            match row:
                case ch.StudyChanged():
                    self._study.update(row.columns)
                case ch.TrialChanged():
                    self._trials[row.trial_id].update(row.columns)
                case ch.EpochMeasured():
                    self._epochs.setdefault(row.trial_id, {})[row.epoch] = row
                case ch.CheckpointKept():
                    self._kept[row.trial_id, row.epoch] = row.checkpoint
                case ch.Charged():
                    self._charges.append(row)
                case ch.Decided():
                    made = DecisionRecord(
                        epoch=row.epoch, action=row.action, reason=row.reason, numbers=row.numbers, decided_at=row.at
                    )
                    self._decisions.setdefault(row.trial_id, []).append(made)
                case ch.AttemptOpened():
                    self._attempts.setdefault(row.trial_id, {})[row.attempt] = {"opened": row, "outcome": "running"}
                case ch.AttemptChanged():
                    self._attempts[row.trial_id][row.attempt].update(row.columns)
                case _:
                    pass  # the pool's columns and the views' cursors: nobody reads them here

    def record(self) -> StudyRecord:
        """The study with everything in it."""
        numbers = {number: row.get("number") for number, row in self._trials.items()}
        paid: dict[int | None, int] = {}
        for charge in self._charges:
            if charge.kind in {"start", "train"}:
                paid[charge.trial_id] = paid.get(charge.trial_id, 0) + charge.cost_nano_usd
        return StudyRecord(
            id=1,
            uid=self._name,
            name=self._name,
            state=self._study["state"],
            stop_reason=self._study.get("stop_reason"),
            spec=self._spec,
            objectives=self._objectives,
            constraints=constraints_in(self._spec),
            reference_point=self._study.get("reference_point"),
            budget={},
            alive_seconds=0.0,
            trials=tuple(self._trial(number, paid.get(number, 0)) for number in self._trials),
            charges=tuple(_charge(row, numbers) for row in self._charges),
            overshoot_nano_usd=self._study.get("overshoot_nano_usd", 0),
            created_at=_time(self._created_at),
            ended_at=as_time(self._study.get("ended_at")),
        )

    def _trial(self, trial_id: int, paid: int) -> TrialRecord:
        row = self._trials[trial_id]
        return TrialRecord(
            id=trial_id,
            number=row.get("number"),
            state=row["state"],
            failure=row.get("failure"),
            params=row["params"],
            world_size=row["world_size"],
            reason=row.get("reason", ""),
            error=row.get("error"),
            origin=row["origin"],
            epochs=tuple(self._epoch(one) for _, one in sorted(self._epochs.get(trial_id, {}).items())),
            decisions=tuple(self._decisions.get(trial_id, ())),
            attempts=tuple(_attempt(columns) for columns in self._attempts.get(trial_id, {}).values()),
            resume_checkpoint=row.get("resume_checkpoint"),
            resume_epoch=row.get("resume_epoch", 0),
            paid_nano_usd=paid,
            started_at=as_time(row.get("started_at")),
            ended_at=as_time(row.get("ended_at")),
        )

    def _epoch(self, row: ch.EpochMeasured) -> EpochRecord:
        key = (row.trial_id, row.epoch)
        return EpochRecord(
            epoch=row.epoch,
            metrics={name: math.nan if value is None else value for name, value in finite(row.metrics).items()},
            wall_seconds=row.wall_seconds,
            cost_nano_usd=row.cost_nano_usd,
            checkpoint=self._kept.get(key, row.checkpoint),
            is_milestone=row.is_milestone,
            measured_at=row.at,
        )


def _attempt(columns: Mapping[str, Any]) -> AttemptRecord:
    opened: ch.AttemptOpened = columns["opened"]
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
    )


def _time(seconds: float) -> datetime:
    moment = as_time(seconds)
    assert moment is not None  # noqa: S101 - only None has none
    return moment
