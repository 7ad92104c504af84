"""What earlier controllers of a study left in the store, for the one that goes on with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from studies.records import TrialRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTrial:
    """A trial as the store has it, with what only a controller needs to know.

    Attributes:
        wall_seconds: Start and train time, as charged.
    """

    record: TrialRecord
    paused_by: str | None
    wall_seconds: float
    sampler_attributes: Mapping[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What earlier controllers of this study left.

    Attributes:
        trials: All of them, queued ones included, in the order of their ids.
        spent_nano_usd: Sum of the ledger.
        alive_seconds: Time that earlier controllers were alive.
    """

    trials: tuple[StoredTrial, ...] = ()
    spent_nano_usd: int = 0
    alive_seconds: float = 0.0
