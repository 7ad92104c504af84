"""Changes that the controller asks the store to write: plain values, applied in order, in one transaction.

No SQLAlchemy here, so that the state machine needs no database. Columns are typed mappings, so that type checks find
misspelt names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from studies.records.records import Action, ChargeKind, Forecasts, StopReason, StudyState, TrialState
from trainers.protocol import Failure, ParameterValue


class StudyColumns(TypedDict, total=False):
    """Columns of a study's row that a controller sets; times in seconds since 1970."""

    state: StudyState
    stop_reason: StopReason | None
    error: str | None
    closed_by: Mapping[str, float | None]
    reference_point: Mapping[str, float] | None
    reserved_nano_usd: int
    reserved_seconds: float
    overshoot_nano_usd: int
    ended_at: float | None


class TrialColumns(TypedDict, total=False):
    """Columns of a trial's row that a controller sets; times in seconds since 1970."""

    number: int | None
    state: TrialState
    failure: Failure | None
    params: Mapping[str, ParameterValue]
    sampler_attributes: Mapping[str, object]
    reason: str
    error: str | None
    resume_checkpoint: str | None
    resume_epoch: int
    paused_by: str | None
    started_at: float | None
    ended_at: float | None


class AttemptColumns(TypedDict, total=False):
    """Columns of an inserted attempt's row that a controller sets; times in seconds since 1970."""

    outcome: str
    facts: Mapping[str, object]
    charged_until: float
    ended_at: float | None


class PoolColumns(TypedDict, total=False):
    """Columns of a lease's row about its pool; times in seconds since 1970."""

    pool_slots: int
    pool_opened_at: float | None
    pool_closed_at: float | None
    usd_per_slot_hour: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyChanged:
    """New values in the study's row."""

    columns: StudyColumns


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialChanged:
    """New values in a trial's row; the store adds the revision, which shows the views that the row has changed."""

    trial_id: int
    columns: TrialColumns


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
    """New values in an attempt's row."""

    trial_id: int
    attempt: int
    columns: AttemptColumns


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochMeasured:
    """One epoch of a trial, written once even if a fault repeats it."""

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
    """A milestone's file is kept (path) or no longer kept (None)."""

    trial_id: int
    epoch: int
    checkpoint: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """Reason why a trial continued, was paused or was stopped."""

    trial_id: int
    epoch: int
    action: Action
    reason: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    forecasts: Forecasts = field(default_factory=dict)
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Charged:
    """A ledger line for some slots of the lease's pool, from `since` (seconds since 1970), for a trial or overhead."""

    kind: ChargeKind
    trial_id: int | None
    attempt: int | None
    slots: int
    slot_numbers: tuple[int, ...]
    since: float
    seconds: float
    usd_per_slot_hour: float
    cost_nano_usd: int
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmed:
    """A configuration was trained again with a fresh seed, outside the search."""

    trial_id: int
    seed: int
    epoch: int
    epochs: int  # number trained; fewer than `epoch` if this training stopped improving earlier
    metrics: Mapping[str, float]  # metrics of the last epoch; test metrics have their prefix
    wall_seconds: float
    cost_nano_usd: int
    checkpoint: str | None  # path or URL of the file with the model; None if it was not kept
    at: float  # end of the training, in seconds since 1970
    answers: Mapping[str, Any] | None = None  # description of a saved model's answers to validation samples


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolChanged:
    """New values in the lease's row about its pool."""

    columns: PoolColumns


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRateChanged:
    """Price of a slot, or charged slots, that changed in an open pool at `since` (seconds since 1970)."""

    since: float
    slot_numbers: tuple[int, ...]
    usd_per_slot_hour: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewsToRebuild:
    """The Optuna view has final states that are wrong by now, and must be cleared and mirrored again."""


Change = (
    StudyChanged
    | TrialChanged
    | AttemptOpened
    | AttemptChanged
    | EpochMeasured
    | CheckpointKept
    | Decided
    | Charged
    | Confirmed
    | PoolChanged
    | PoolRateChanged
    | ViewsToRebuild
)
