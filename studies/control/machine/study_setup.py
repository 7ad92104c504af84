"""Settings of a study for its state machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from search_spaces.space import Space
from studies.control.tracker_environment import OwnLogging
from studies.money.budget import Limits
from studies.records.records import Constraint, Objective
from studies.search.policy import Policy
from studies.spec.sections import FaultsSpec

FREE_USD_PER_SLOT_HOUR = 1.0
"""Price at which the search compares trials on free slots, so that it saves time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudySetup:
    """Settings that do not change while a controller lives.

    Attributes:
        epochs: Last epoch of a complete trial.
        milestones: Epochs whose checkpoints are deliverables, the last epoch among them.
        checkpoint_every_seconds: Time between two checkpoints of a trial within its milestones.
        most_paused: Largest number of trials that wait with a checkpoint; None is no limit.
        most_checkpoint_gib: Room for checkpoints in GiB, beyond which paused trials are evicted; None is no limit.
        python_path: Folders from which ranks import the user's task.
        reference_point: Reference point by metric, given by the user or frozen earlier, else None.
        watched: Epochs whose values the search looks at, besides milestones and rungs.
        on_lost_node: Whether a trial that has begun waits for lost devices, or goes on with fewer ranks.
        space: Search space; None where no suggestion is ever narrowed.
        world_sizes: World sizes that the search may choose; None if it does not search them.
        autoscale: Whether an autoscaler brings the slots; they count once their process is ready, and may be released.
        learns_space: Whether trials may request parameters that the space does not have.
        baselines: Parameters of the baseline trials, which no pruner pauses or stops.
        own_logging: Where the user's code logs by itself; None leaves that to its environment.
        cut_seconds: Time before the deadline at which running epochs are cut, for noticing, commit and killing.
    """

    study: str
    objectives: tuple[Objective, ...]
    task: str
    task_options: Mapping[str, object]
    training: Mapping[str, object]
    epochs: int
    milestones: tuple[int, ...]
    policy: Policy
    limits: Limits
    slots: int
    usd_per_slot_hour: float
    seed: int
    device: Literal["cpu", "cuda"] = "cpu"
    cpus_per_rank: int = 1
    checkpoint_folder: str
    checkpoint_every_seconds: float = 60.0
    most_paused: int | None = None
    most_checkpoint_gib: float | None = None
    python_path: tuple[str, ...] = ()
    reference_point: Mapping[str, float] | None = None
    watched: tuple[int, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    faults: FaultsSpec = field(default_factory=FaultsSpec)
    on_lost_node: Literal["wait", "shrink"] = "wait"
    space: Space | None = None
    world_sizes: tuple[int, ...] | None = None
    autoscale: bool = False
    learns_space: bool = False
    baselines: tuple[Mapping[str, object], ...] = ()
    own_logging: OwnLogging | None = None
    cut_seconds: float = 0.25

    @property
    def rungs(self) -> tuple[int, ...]:
        """Return the epochs up to which gangs are granted training: the policy's rungs and the last epoch."""
        return (*self.policy.pruner.rungs(self.epochs), self.epochs)

    @property
    def looked_at(self) -> frozenset[int]:
        """Return the epochs whose values a search may look at."""
        return frozenset({*self.rungs, *self.milestones, *self.watched})

    @property
    def search_usd_per_slot_hour(self) -> float:
        """Return the price at which the search compares trials."""
        return self.usd_per_slot_hour or FREE_USD_PER_SLOT_HOUR
