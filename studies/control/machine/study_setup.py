"""Settings of a study's state machine, and the commands that it returns.

The controller sends permissions to train an epoch (grants) before the commit, and all other commands after it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from search_spaces.space import Space
from studies.control.files.kept_files import Released
from studies.money.budget import Limits
from studies.records.records import Constraint, Objective
from studies.search.observations import Observation
from studies.search.policy import Policy
from studies.spec.sections import FaultsSpec
from studies.storage.views.mlflow_runs import BY_SCRIPT, BY_TAG
from studies.storage.writing.changes import Change, CheckpointKept
from trainers.protocol import Diagnostics, Params, TrialSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLogging:
    """Settings for logging by the user's code; `mlflow` is a tracking URI, or empty."""

    study: str
    study_uid: str
    mlflow: str = ""
    diagnostics: Diagnostics = field(default_factory=Diagnostics)

    def variables(self, trial: int, attempt: int) -> dict[str, str]:
        """Return environment variables for an attempt, with its name in W&B and MLflow."""
        name = f"trial {trial}"
        found = {"WANDB_RUN_GROUP": self.study, "WANDB_NAME": name}
        if not self.mlflow:
            return found
        tags = {
            BY_TAG: BY_SCRIPT,
            "automl.study": self.study,
            "automl.study_uid": self.study_uid,
            "automl.trial": str(trial),
            "automl.attempt": str(attempt),
            "mlflow.runName": name,
        }
        return found | {
            "MLFLOW_TRACKING_URI": self.mlflow,
            "MLFLOW_EXPERIMENT_NAME": self.study,
            "MLFLOW_RUN_CONTEXT": json.dumps(tags),
        }


FREE_USD_PER_SLOT_HOUR = 1.0
"""Price at which the search compares trials on free slots, so that it saves time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudySetup:
    """Settings that stay the same while a controller runs."""

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
    has_start_in_epoch: bool = False  # an attempt's first epoch may hold a program's start, which automl does not see
    learns_space: bool = False  # trials may request parameters that the space does not have
    baselines: tuple[Mapping[str, object], ...] = ()  # parameters of trials that no pruner pauses or stops
    own_logging: OwnLogging | None = None  # destination of the user code's own logging; None leaves it unchanged
    cut_seconds: float = 0.25  # time before the deadline at which epochs are cut, to notice, commit and kill in time

    def trial_spec(self, number: int, params: Params, world_size: int) -> TrialSpec:
        """Return the trainer's spec of a training from the beginning that saves nothing."""
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
        """The pruner's rungs, at which trials wait for a decision, and the last epoch."""
        return (*self.policy.pruner.rungs(self.epochs), self.epochs)

    @property
    def looked_at(self) -> frozenset[int]:
        """Epochs whose values the search may read."""
        return frozenset({*self.rungs, *self.milestones, *self.watched})

    @property
    def search_usd_per_slot_hour(self) -> float:
        """Price at which the search compares trials; never zero."""
        return self.usd_per_slot_hour or FREE_USD_PER_SLOT_HOUR


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggest:
    """Ask the sampler for trial `number`, with at most `most_ranks` ranks (None: no limit)."""

    number: int
    history: tuple[Observation, ...]
    most_ranks: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StartGang:
    """Start a trial on slots, to train up to epoch `until`."""

    trial_id: int
    spec: TrialSpec
    slots: tuple[int, ...]
    until: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """Let a trial train up to epoch `until`. Sent before the commit."""

    trial_id: int
    attempt: int
    until: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainGang:
    """Stop a trial at the end of its epoch, or after `within_seconds`."""

    trial_id: int
    attempt: int
    within_seconds: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class EndGang:
    """Take back a waiting trial's slots; slots in `retire` get new processes."""

    trial_id: int
    attempt: int
    retire: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class KillGang:
    """Kill a trial's processes, and take back its slots."""

    trial_id: int
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseSlots:
    """Return slots that no trial will need to the autoscaler."""

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
    """Rows to store in one commit, and commands, in order."""

    changes: tuple[Change, ...] = ()
    commands: tuple[Command, ...] = ()


class Outbox:
    """Collects rows and commands of one step."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._commands: list[Command] = []

    def write(self, *changes: Change) -> None:
        """Add rows to commit."""
        self.changes += changes

    def order(self, *commands: Command) -> None:
        """Add commands, in order."""
        self._commands += commands

    def release(self, released: Released) -> None:
        """Delete files, and clear their paths in the store."""
        self.order(*(DeleteFile(path=path) for path in released.files))
        self.write(
            *(CheckpointKept(trial_id=trial_id, epoch=epoch, checkpoint=None) for trial_id, epoch in released.epochs)
        )

    def take(self) -> Step:
        """Return and clear all rows and commands."""
        step = Step(changes=tuple(self.changes), commands=tuple(self._commands))
        self.changes, self._commands = [], []
        return step
