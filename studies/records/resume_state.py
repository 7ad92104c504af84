"""State of a study that earlier controllers left in the store, for the controller that resumes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from studies.records.records import TrialRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTrial:
    """A stored trial, with details for controllers only."""

    record: TrialRecord  # without decisions and attempts, with its milestones, last epoch and watched epochs
    paused_by: str | None  # "policy", "drain" or "fault" for a paused trial
    wall_seconds: float
    slot_seconds: float  # slot time spent on training
    sampler_attributes: Mapping[str, object]
    epoch_seconds: Sequence[float] = ()  # durations of all its epochs
    epoch_costs_nano_usd: Sequence[int] = ()
    epoch_ranks: Mapping[int, int] = field(default_factory=dict)  # number of ranks, for narrower epochs only
    outcomes: tuple[str, ...] = ()
    train_seconds: float = 0.0
    train_nano_usd: int = 0
    finished_from: int | None = None  # epoch after which it was finished as a leader of the archive


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeState:
    """State from which a controller resumes a study; the default is a study without trials."""

    trials: tuple[StoredTrial, ...] = ()  # all trials by id, queued ones included
    spent_nano_usd: int = 0
    alive_seconds: float = 0.0
    checkpoint_bytes: Mapping[str, int] = field(default_factory=dict)  # known sizes of checkpoint files, by path

    @property
    def closed_trial_ids(self) -> list[int]:
        """Return the ids of the trials that were pruned only because the study closed."""
        records = (stored.record for stored in self.trials)
        return [record.id for record in records if record.state == "pruned" and record.reason == "closed"]
