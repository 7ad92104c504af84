"""What the state machine wants done. The shell carries it out, after the commit unless it is an `early` one."""

from __future__ import annotations

from dataclasses import dataclass

from studies.search.observations import Observation
from studies.storage.changes import Change
from trainers.protocol import TrialSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggest:
    """Prepare the parameters of the trial that will probably get this number, from this history."""

    number: int
    history: tuple[Observation, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StartGang:
    """Dispatch a trial."""

    trial_id: int
    spec: TrialSpec
    slots: tuple[int, ...]
    until: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """Let a gang go on; it may run ahead of its commit, since an epoch can be repeated."""

    trial_id: int
    attempt: int
    until: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainGang:
    """Let a gang stop at the end of its epoch."""

    trial_id: int
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EndGang:
    """Take the slots of a gang that waits; those in `retire` get a new process."""

    trial_id: int
    attempt: int
    retire: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class KillGang:
    """Take the slots of a gang that does not wait."""

    trial_id: int
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteFile:
    """Remove a checkpoint that nobody can ask for any more."""

    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FreezeReference:
    """Work out the reference point from what is committed, and store it: three trials are complete, or it is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosePool:
    """The study is over for now."""


Command = Suggest | StartGang | Grant | DrainGang | EndGang | KillGang | DeleteFile | FreezeReference | ClosePool


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The answer to one event: rows to commit together, and commands in order."""

    changes: tuple[Change, ...] = ()
    commands: tuple[Command, ...] = ()
