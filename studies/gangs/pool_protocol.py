"""The protocol between the controller and a pool of slots: calls and events. One pool is on Ray, one is simulated.

A trial holds k slots, all or none, from `start` to `end`, `kill` or a `GangFailed`. Ranks run up to the epoch that they
were granted and wait there, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from search_spaces.suggestions import Asked
from search_spaces.user_errors import UserError
from studies.records.records import StopReason
from trainers.protocol import EpochPart, Failure, Measurement, ParameterValue, TrialSpec


class PoolError(UserError):
    """The pool cannot be opened or cannot hold what was asked for; the message has the numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotsReady:
    """These slots can take a rank: their processes are warm."""

    slots: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotsLost:
    """These slots cannot take a rank: their processes died while no gang had them. `SlotsReady` follows for each.

    Attributes:
        with_device: Whether the device is gone as well, as with its node, so that nothing has to be paid for it.
    """

    slots: tuple[int, ...]
    with_device: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotsLeaving:
    """The node of these slots, which gangs hold, will be taken away soon: the gangs have to end before.

    `SlotsLost` follows for each once its gang has given it back.
    """

    slots: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GangStarted:
    """The ranks hold model and data and begin their first step.

    Attributes:
        facts: The trainer's `TrialFacts` as a mapping.
        seconds: Time that the start took, measured in rank 0; None where it began with the lease and ends now.
    """

    trial_id: int
    attempt: int
    facts: Mapping[str, object] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """An epoch of a trial ended."""

    trial_id: int
    attempt: int
    measurement: Measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterAsked:
    """A trial has asked for a parameter as it runs."""

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
    """A rank has got further within its epoch, or begins something that it does for the first time.

    Attributes:
        epoch: The epoch that the gang trains, from 1; 0 before the first one.
        fraction: Part of that epoch's work that rank 0 has done, from 0 to 1.
        is_first: Whether a rank does something for the first time in its attempt, for which code may have to be
            compiled: it may take as long as a start.
    """

    trial_id: int
    attempt: int
    epoch: int
    fraction: float
    is_first: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class GangFailed:
    """A gang cannot go on; its ranks have been ended, or are being ended.

    `SlotsReady` follows for each of its slots that can take another trial, at once or once it has a new process.

    Attributes:
        counts: Whether it is one of the attempts that a trial has; not if a process was dead before the gang started.
    """

    trial_id: int
    attempt: int
    failure: Failure
    message: str
    counts: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialQueued:
    """A configuration waits for slots: suggested by the sampler or enqueued by the user, and committed as such."""

    trial_id: int
    params: Mapping[str, ParameterValue]
    origin: str
    world_size: int
    attributes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequested:
    """`automl cancel`: the trial ends at once, and for good."""

    trial_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceSet:
    """`automl price set`: a slot costs as many dollars an hour from now on, or has done so already."""

    usd_per_slot_hour: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SuggestionFailed:
    """The sampler raised an error; the study cannot go on."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainRequested:
    """Ctrl-C, `automl stop`, or a pool that is gone: every running trial is saved and paused."""

    reason: StopReason
    message: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """The watchdog's interval has passed, and it looks `late_seconds` after the moment at which it wanted to."""

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
    """Slots, and the gangs that lease them. Calls return at once; their results come as events out of `wait`."""

    def open(self, slots: int) -> None:
        """Begin to bring up the slots; `SlotsReady` follows for each.

        Raises:
            PoolError: There is no room for so many slots.
        """
        ...

    def pick(self, free: tuple[int, ...], world_size: int) -> tuple[int, ...]:
        """Which free slots a gang should get: those of a standing group, else of one node if it has enough."""
        ...

    def spare(self, free: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Which free slots to let go: those of nodes that nobody else uses first."""
        ...

    def release(self, slots: tuple[int, ...]) -> None:
        """Let go of slots without a gang for good: they are neither brought up nor told of any more."""
        ...

    def start(self, trial_id: int, spec: TrialSpec, slots: tuple[int, ...], until: int) -> None:
        """Form a gang on the slots and train up to epoch `until`."""
        ...

    def grant(self, trial_id: int, attempt: int, until: int) -> None:
        """Let the ranks train on, up to epoch `until`."""
        ...

    def drain(self, trial_id: int, attempt: int, within_seconds: float = math.inf) -> None:
        """Let the ranks stop with a checkpoint: at the end of their epoch, or within it if that takes longer."""
        ...

    def worn(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """Which of these slots should get a new process before they take another trial."""
        ...

    def end(self, trial_id: int, attempt: int, retire: tuple[int, ...] = ()) -> None:
        """Take the slots of a gang that waits at the epoch it was granted, or has drained.

        Args:
            trial_id: The gang's trial.
            attempt: The gang's attempt.
            retire: Slots that get a new process; `SlotsReady` follows for each.
        """
        ...

    def kill(self, trial_id: int, attempt: int) -> None:
        """Take the slots of a gang that may still train; `SlotsReady` follows for each."""
        ...

    def post(self, event: Event) -> None:
        """Put an event into the queue that `wait` reads; may be called from any thread."""
        ...

    def now(self) -> float:
        """The pool's clock, in seconds since 1970: the real one, or virtual time."""
        ...

    def wait(self, seconds: float) -> list[Event]:
        """The events in the queue, or the first one that comes within so many seconds."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...
