"""What the controller asks the store to write: plain values, applied in order, in one transaction.

No SQLAlchemy here, so that the state machine can speak of rows without touching a database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from studies.records import Action, ChargeKind


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyChanged:
    """Columns of the study's row."""

    columns: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialChanged:
    """Columns of a trial's row; the store adds the revision that the views read by."""

    trial_id: int
    columns: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptOpened:
    """A trial was dispatched to a gang on `slots`."""

    trial_id: int
    attempt: int
    slots: tuple[int, ...]
    start_epoch: int
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptChanged:
    """Columns of an attempt's row."""

    trial_id: int
    attempt: int
    columns: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochMeasured:
    """One epoch of a trial, written once however often a fault makes it be repeated."""

    trial_id: int
    epoch: int
    metrics: Mapping[str, float]
    wall_seconds: float
    cost_nano_usd: int
    checkpoint: str | None
    is_milestone: bool
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointKept:
    """A milestone's file is kept (path) or no longer (None)."""

    trial_id: int
    epoch: int
    checkpoint: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """Why a trial went on, was paused or was stopped."""

    trial_id: int
    epoch: int
    action: Action
    reason: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Charged:
    """One line of the ledger."""

    kind: ChargeKind
    trial_id: int | None
    attempt: int | None
    slots: int
    seconds: float
    usd_per_slot_hour: float
    cost_nano_usd: int
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolChanged:
    """Columns of the lease's row that say when this controller held how many slots."""

    columns: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewsToRebuild:
    """The Optuna view holds states that it cannot leave again, and must be made anew."""


Change = (
    StudyChanged
    | TrialChanged
    | AttemptOpened
    | AttemptChanged
    | EpochMeasured
    | CheckpointKept
    | Decided
    | Charged
    | PoolChanged
    | ViewsToRebuild
)
