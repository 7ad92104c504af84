"""State that earlier controllers of a study left in the store, for the controller that resumes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from studies.records.records import TrialRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTrial:
    """A stored trial, with details for controllers only.

    Attributes:
        record: The trial without decisions and attempts, with its milestones, last epoch and watched epochs.
        paused_by: "policy", "drain" or "fault" for a paused trial, else None.
        slot_seconds: Slot time that it has trained, in seconds.
        epoch_seconds: Durations of all its epochs, in seconds.
        epoch_ranks: Number of ranks by epoch, for epochs trained on fewer than all ranks.
        finished_from: Epoch after which it was finished as a leader of the archive, else None.
    """

    record: TrialRecord
    paused_by: str | None
    wall_seconds: float
    slot_seconds: float
    sampler_attributes: Mapping[str, object]
    epoch_seconds: Sequence[float] = ()
    epoch_costs_nano_usd: Sequence[int] = ()
    epoch_ranks: Mapping[int, int] = field(default_factory=dict)
    outcomes: tuple[str, ...] = ()
    train_seconds: float = 0.0
    train_nano_usd: int = 0
    finished_from: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeState:
    """State from which a controller resumes a study; the default is a study without trials.

    Attributes:
        trials: All trials by id, queued ones included.
        checkpoint_bytes: Known sizes of checkpoint files in bytes, by path.
    """

    trials: tuple[StoredTrial, ...] = ()
    spent_nano_usd: int = 0
    alive_seconds: float = 0.0
    checkpoint_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def closed_trial_ids(self) -> list[int]:
        """Return the ids of the trials that were pruned only because the study closed."""
        records = (stored.record for stored in self.trials)
        return [record.id for record in records if record.state == "pruned" and record.reason == "closed"]
