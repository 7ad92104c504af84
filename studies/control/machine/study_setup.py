"""Settings of a study for its state machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from search_spaces.space import Space
from studies.control.tracker_environment import OwnLogging
from studies.money.budget import Limits
from studies.records.records import Constraint, Objective
from studies.search.policy import Policy
from studies.spec.sections import FaultsSpec
from trainers.protocol import Params, TrialSpec

FREE_USD_PER_SLOT_HOUR = 1.0
"""Price per slot-hour at which the search compares trials on free slots, so that it saves time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudySetup:
    """Settings that do not change while a controller lives."""

    study: str
    objectives: tuple[Objective, ...]
    task: str
    task_options: Mapping[str, object]
    training: Mapping[str, object]
    epochs: int  # last epoch of a complete trial
    milestones: tuple[int, ...]  # epochs whose checkpoints are deliverables, including the last epoch
    policy: Policy
    limits: Limits
    slots: int
    usd_per_slot_hour: float
    seed: int
    device: Literal["cpu", "cuda"] = "cpu"
    cpus_per_rank: int = 1
    checkpoint_folder: str
    checkpoint_every_seconds: float = 60.0  # time between two checkpoints of a trial besides its milestones
    most_paused: int | None = None  # number of trials that wait with a checkpoint; None is no limit
    most_checkpoint_gib: float | None = None  # GiB beyond which paused trials are evicted; None is no limit
    python_path: tuple[str, ...] = ()  # folders from which ranks import the user's task
    reference_point: Mapping[str, float] | None = None  # by metric, given by the user or frozen earlier
    watched: tuple[int, ...] = ()  # epochs whose values the search looks at, besides milestones and rungs
    constraints: tuple[Constraint, ...] = ()
    faults: FaultsSpec = field(default_factory=FaultsSpec)
    on_lost_node: Literal["wait", "shrink"] = "wait"  # a started trial waits for devices, or takes fewer ranks
    space: Space | None = None  # None if suggestions are never narrowed
    world_sizes: tuple[int, ...] | None = None  # sizes that the search may choose; None if it does not search them
    autoscale: bool = False  # an autoscaler adds slots, which count once they are ready, and removes released ones
    learns_space: bool = False  # trials may request parameters that the space does not have
    baselines: tuple[Mapping[str, object], ...] = ()  # parameters of trials that no pruner pauses or stops
    own_logging: OwnLogging | None = None  # destination of the user code's own logging; None leaves it unchanged
    cut_seconds: float = 0.25  # time before the deadline at which epochs are cut, to notice, commit and kill in time

    def trial_spec(self, number: int, params: Params, world_size: int) -> TrialSpec:
        """Return what all trials of the study share, for a trial that starts from its beginning and saves nothing."""
        return TrialSpec(
            study=self.study,
            trial=number,
            task=self.task,
            task_options=self.task_options,
            params=params,
            training=self.training,
            world_size=world_size,
            seed=self.seed,
            device=self.device,
            cpus_per_rank=self.cpus_per_rank,
            python_path=self.python_path,
        )

    @property
    def rungs(self) -> tuple[int, ...]:
        """Return the epochs up to which gangs may train at a time: the policy's rungs and the last epoch."""
        return (*self.policy.pruner.rungs(self.epochs), self.epochs)

    @property
    def looked_at(self) -> frozenset[int]:
        """Return the epochs whose values a search may look at."""
        return frozenset({*self.rungs, *self.milestones, *self.watched})

    @property
    def search_usd_per_slot_hour(self) -> float:
        """Return the price at which the search compares trials."""
        return self.usd_per_slot_hour or FREE_USD_PER_SLOT_HOUR
