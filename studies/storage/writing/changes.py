"""Changes to store in one transaction, in order: plain values, since the state machine needs no database.

Times are in seconds since 1970. Typed mappings let type checks find misspelt columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from studies.records.records import Action, ChargeKind, Forecasts, StopReason, StudyState, TrialState
from trainers.protocol import Failure, ParameterValue


class StudyColumns(TypedDict, total=False):
    """Columns of a study's row that a controller sets."""

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
    """Columns of a trial's row that a controller sets."""

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
    """Columns of an attempt's row that a controller changes later."""

    outcome: str
    facts: Mapping[str, object]
    charged_until: float
    ended_at: float | None


class PoolColumns(TypedDict, total=False):
    """Columns of a lease's row that describe its pool."""

    pool_slots: int
    pool_opened_at: float | None
    pool_closed_at: float | None
    usd_per_slot_hour: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyChanged:
    """New values of a study's columns."""

    columns: StudyColumns


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialChanged:
    """New values of a trial's columns; even without columns, views copy the trial again."""

    trial_id: int
    columns: TrialColumns


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptOpened:
    """A new attempt of a trial on `slots`."""

    trial_id: int
    attempt: int
    slots: tuple[int, ...]
    start_epoch: int
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptChanged:
    """New values of an attempt's columns."""

    trial_id: int
    attempt: int
    columns: AttemptColumns


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochMeasured:
    """An epoch of a trial; an epoch repeated after a fault is not written again."""

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
    """Path of a saved epoch's checkpoint; None if the file is no longer kept."""

    trial_id: int
    epoch: int
    checkpoint: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """A decision about a trial (continue, pause or stop), with its reason."""

    trial_id: int
    epoch: int
    action: Action
    reason: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    forecasts: Forecasts = field(default_factory=dict)
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Charged:
    """A charge for slots from `since` to `at`, for a trial or as overhead."""

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
    """A training or test of a configuration outside the search."""

    trial_id: int
    seed: int
    epoch: int
    epochs: int  # number trained; fewer than `epoch` if this training stopped improving earlier
    metrics: Mapping[str, float]  # metrics of the last epoch; test metrics have their prefix
    wall_seconds: float
    cost_nano_usd: int
    checkpoint: str | None  # path or URL of the file with the model; None if it was not kept
    at: float  # end of the training
    answers: Mapping[str, Any] | None = None  # description of a saved model's answers to validation samples


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolChanged:
    """New values of a lease's columns that describe the pool."""

    columns: PoolColumns


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRateChanged:
    """The price or the charged slots of an open pool changed at `since`."""

    since: float
    slot_numbers: tuple[int, ...]
    usd_per_slot_hour: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewsToRebuild:
    """Optuna's copy of the study contains wrong final states, so it must be rebuilt."""


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
