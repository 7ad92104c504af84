"""Calls and events between the controller and a pool of slots, on Ray or simulated.

A trial holds k slots, all or none, from `start` until `end`, `kill` or a `GangFailed`. Ranks train up to the granted
epoch and wait only there.
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
    """The pool cannot be opened or is too small; the message has the numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotsReady:
    """Slots whose processes are warm, so that they can take a rank."""

    slots: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotsLost:
    """Slots whose processes died while no gang had them; `SlotsReady` follows for each."""

    slots: tuple[int, ...]
    with_device: bool = False  # whether the device is gone too, so that the slot costs nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotsLeaving:
    """Slots of gangs whose node will be taken away soon; `SlotsLost` follows for each after its gang has ended."""

    slots: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GangStarted:
    """The ranks hold model and data and begin their first step."""

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
    """A trial has requested a parameter at run time."""

    trial_id: int
    attempt: int
    name: str
    asked: Asked


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSaved:
    """An epoch of a trial was saved before its end."""

    trial_id: int
    attempt: int
    part: EpochPart


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A rank has progressed within its epoch, or begins an action for the first time."""

    trial_id: int
    attempt: int
    epoch: int  # the running epoch, from 1; 0 before the first one
    fraction: float  # part of that epoch's work that rank 0 has done, from 0 to 1
    # Whether a rank does an action for the first time, which may involve compiling and take as long as a start
    is_first: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class GangFailed:
    """A gang cannot continue, and its ranks end. `SlotsReady` follows for each usable slot."""

    trial_id: int
    attempt: int
    failure: Failure
    message: str
    counts: bool = True  # whether it counts as an attempt; False if a process died before the gang started


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialQueued:
    """A committed configuration waits for slots, suggested by the sampler or enqueued by the user."""

    trial_id: int
    params: Mapping[str, ParameterValue]
    origin: str
    world_size: int
    attributes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequested:
    """`automl cancel`: the trial ends at once, for good."""

    trial_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceSet:
    """`automl price set`: new price of a slot in dollars per hour."""

    usd_per_slot_hour: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SuggestionFailed:
    """The sampler raised an error; the study cannot continue."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainRequested:
    """Ctrl-C, `automl stop` or a lost pool: every running trial is saved and paused."""

    reason: StopReason
    message: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """The watchdog's interval has passed; the tick is `late_seconds` late."""

    late_seconds: float = 0.0


Event = (
    SlotsReady
    | SlotsLost
    | SlotsLeaving
    | GangStarted
    | Measured
    | ParameterAsked
    | PartSaved
    | Progress
    | GangFailed
    | TrialQueued
    | CancelRequested
    | PriceSet
    | SuggestionFailed
    | DrainRequested
    | Tick
)


class GangPool(Protocol):
    """Slots, and the gangs that lease them. Calls return at once; their results are events from `wait`."""

    def open(self, slots: int) -> None:
        """Begin to start the slots; `SlotsReady` follows for each. Raises PoolError if the cluster lacks devices."""
        ...

    def pick(self, free: tuple[int, ...], world_size: int) -> tuple[int, ...]:
        """Choose free slots for a gang: of a standing group, else of one node if it has enough."""
        ...

    def spare(self, free: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Choose free slots to release: first slots of nodes without other users."""
        ...

    def release(self, slots: tuple[int, ...]) -> None:
        """Release slots without a gang for good; no events about them follow."""
        ...

    def start(self, trial_id: int, spec: TrialSpec, slots: tuple[int, ...], until: int) -> None:
        """Form a gang on the slots and train up to epoch `until`."""
        ...

    def grant(self, trial_id: int, attempt: int, until: int) -> None:
        """Let the ranks train up to epoch `until`."""
        ...

    def drain(self, trial_id: int, attempt: int, within_seconds: float = math.inf) -> None:
        """Make the ranks stop with a checkpoint at the end of their epoch, or within it after `within_seconds`."""
        ...

    def worn(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """Return the slots that should get a new process before another trial."""
        ...

    def end(self, trial_id: int, attempt: int, retire: tuple[int, ...] = ()) -> None:
        """Take the slots of a waiting or drained gang; `retire` slots get new processes, and `SlotsReady` follows."""
        ...

    def kill(self, trial_id: int, attempt: int) -> None:
        """Take the slots of a gang that may still train; `SlotsReady` follows for each."""
        ...

    def post(self, event: Event) -> None:
        """Put an event into the queue that `wait` reads; callable from any thread."""
        ...

    def now(self) -> float:
        """Return the pool's time in seconds since 1970, real or virtual."""
        ...

    def wait(self, seconds: float) -> list[Event]:
        """Return all events in the queue; if it is empty, wait at most `seconds` for the next one."""
        ...

    def close(self) -> None:
        """Close the pool and end all its processes."""
        ...
