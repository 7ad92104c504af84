"""Commands of the state machine; the controller carries out grants before the commit, and all others after it."""

import math
from dataclasses import dataclass

from studies.control.files.kept_files import Released
from studies.search.observations import Observation
from studies.storage.writing.changes import Change, CheckpointKept
from trainers.protocol import TrialSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggest:
    """Ask the sampler for the parameters of trial `number`; larger world sizes become `most_ranks` (None: no limit)."""

    number: int
    history: tuple[Observation, ...]
    most_ranks: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StartGang:
    """Dispatch a trial to slots, to train up to epoch `until`."""

    trial_id: int
    spec: TrialSpec
    slots: tuple[int, ...]
    until: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """Let a gang train up to epoch `until`; may precede its commit, since an epoch can be repeated."""

    trial_id: int
    attempt: int
    until: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainGang:
    """Let a gang stop at the end of its epoch, or within it after `within_seconds`."""

    trial_id: int
    attempt: int
    within_seconds: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class EndGang:
    """Take the slots of a waiting gang; the processes of the slots in `retire` are replaced."""

    trial_id: int
    attempt: int
    retire: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class KillGang:
    """Take the slots of a training gang by killing its processes."""

    trial_id: int
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseSlots:
    """Release slots that no trial will need, so that the cluster can remove their devices."""

    slots: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteFile:
    """Delete a checkpoint that is no longer needed."""

    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosePool:
    """Close the pool."""


Command = Suggest | StartGang | Grant | DrainGang | EndGang | KillGang | ReleaseSlots | DeleteFile | ClosePool


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The state machine's answer to events: rows to commit together, and commands in order."""

    changes: tuple[Change, ...] = ()
    commands: tuple[Command, ...] = ()


class Outbox:
    """Collects changes and commands of a step."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._commands: list[Command] = []

    @property
    def has_changes(self) -> bool:
        """Return whether there is anything to commit."""
        return bool(self._changes)

    def write(self, *changes: Change) -> None:
        """Add rows to commit."""
        self._changes += changes

    def order(self, *commands: Command) -> None:
        """Add commands to carry out."""
        self._commands += commands

    def release(self, released: Released) -> None:
        """Delete files that are no longer needed, and remove them from their epochs' rows."""
        self.order(*(DeleteFile(path=path) for path in released.files))
        self.write(
            *(CheckpointKept(trial_id=trial_id, epoch=epoch, checkpoint=None) for trial_id, epoch in released.epochs)
        )

    def take(self) -> Step:
        """Return all rows and commands, and empty the outbox."""
        step = Step(changes=tuple(self._changes), commands=tuple(self._commands))
        self._changes, self._commands = [], []
        return step
