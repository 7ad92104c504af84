"""Calls and events between the controller and a real or simulated pool of devices (slots).

A trial holds its slots from `start` to `end`, `kill` or `GangFailed`. Ranks train to the granted epoch, then wait.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from search_spaces.messages import UserError
from search_spaces.suggestions import Asked
from studies.records.records import StopReason
from trainers.protocol import EpochPart, Failure, Measurement, ParameterValue, TrialSpec


class PoolError(UserError):
    """The pool cannot be opened or is too small; the message gives the cause and the cure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotsReady:
    """The processes of slots are ready for trials."""

    slots: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotsLost:
    """The processes of slots without a trial died; `SlotsReady` follows for new processes."""

    slots: tuple[int, ...]
    with_device: bool = False  # whether the device is gone too, so that the slot costs nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotsLeaving:
    """The slots' node will soon be removed; `SlotsLost` follows when their trials have ended."""

    slots: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GangStarted:
    """The ranks of a trial have loaded model and data."""

    trial_id: int
    attempt: int
    facts: Mapping[str, object] = field(default_factory=dict)  # the trainer's `TrialFacts` as a mapping
    seconds: float | None = None  # duration of the start, measured by rank 0; None counts from the lease until now


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """An epoch of a trial ended."""

    trial_id: int
    attempt: int
    measurement: Measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterAsked:
    """A trial requested a parameter at run time."""

    trial_id: int
    attempt: int
    name: str
    asked: Asked


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSaved:
    """A checkpoint within an epoch of a trial was saved."""

    trial_id: int
    attempt: int
    part: EpochPart


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A rank made progress within its epoch, or began a long action, such as compiling."""

    trial_id: int
    attempt: int
    epoch: int  # the running epoch, from 1; 0 before the first one
    fraction: float  # part of that epoch's work that rank 0 has done, from 0 to 1
    is_first: bool = False  # whether a rank does an action for the first time, which may compile for as long as a start


@dataclass(frozen=True, kw_only=True, slots=True)
class GangFailed:
    """A trial's ranks failed; `SlotsReady` follows for their usable slots."""

    trial_id: int
    attempt: int
    failure: Failure
    message: str
    counts: bool = True  # whether it counts as an attempt; False if a process died before the gang started


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialQueued:
    """A configuration of the sampler or a user is stored, and waits to start."""

    trial_id: int
    params: Mapping[str, ParameterValue]
    origin: str
    world_size: int
    attributes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequested:
    """A user called `automl cancel`: the trial ends now and never continues."""

    trial_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceSet:
    """A user called `automl price set`."""

    usd_per_slot_hour: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SuggestionFailed:
    """The sampler raised an error, which ends the study."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainRequested:
    """A user stops the study, or its pool is lost: every running trial is saved and paused."""

    reason: StopReason
    message: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """The regular check of deadlines and hanging trials is due, or `late_seconds` overdue."""

    late_seconds: float = 0.0


Event = (
    SlotsReady | SlotsLost | SlotsLeaving | GangStarted | Measured | ParameterAsked | PartSaved | Progress | GangFailed
    | TrialQueued | CancelRequested | PriceSet | SuggestionFailed | DrainRequested | Tick
)  # fmt: skip


class GangPool(Protocol):
    """A pool of slots for trials. Calls do not wait; `wait` returns their results as events."""

    def open(self, slots: int) -> None:
        """Start the slots' processes; `SlotsReady` follows. Raises PoolError if devices are missing."""
        ...

    def pick(self, free: tuple[int, ...], world_size: int) -> tuple[int, ...]:
        """Choose free slots for a trial: with an existing process group, else on one node if possible."""
        ...

    def spare(self, free: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Choose free slots to release, so that many nodes become unused."""
        ...

    def release(self, slots: tuple[int, ...]) -> None:
        """Give up unused slots forever, without further events about them."""
        ...

    def start(self, trial_id: int, spec: TrialSpec, slots: tuple[int, ...], until: int) -> None:
        """Start a trial's ranks on the slots; they train up to epoch `until`."""
        ...

    def grant(self, trial_id: int, attempt: int, until: int) -> None:
        """Let the trial's ranks train up to epoch `until`."""
        ...

    def drain(self, trial_id: int, attempt: int, within_seconds: float = math.inf) -> None:
        """Make the trial save a checkpoint and stop, after its epoch or after `within_seconds` within it."""
        ...

    def worn(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """Return the slots that need a new process before another trial."""
        ...

    def end(self, trial_id: int, attempt: int, retire: tuple[int, ...] = ()) -> None:
        """Take back the slots of a trial that waits or stopped; `SlotsReady` follows for `retire`."""
        ...

    def kill(self, trial_id: int, attempt: int) -> None:
        """Kill a trial's ranks; `SlotsReady` follows for each slot."""
        ...

    def post(self, event: Event) -> None:
        """Put an event into the queue of `wait`, from any thread."""
        ...

    def now(self) -> float:
        """Return the real or virtual time in seconds since 1970."""
        ...

    def wait(self, seconds: float) -> list[Event]:
        """Return all events in the queue. If it is empty, wait up to `seconds` for the first."""
        ...

    def close(self) -> None:
        """Close the pool and end all its processes."""
        ...
