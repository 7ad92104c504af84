"""The settings of a study, as its state machine wants them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from studies.money.budget import Limits
from studies.records import Constraint, Objective
from studies.search.policy import Policy

MAX_LOST_ATTEMPTS = 3
FREE_USD_PER_SLOT_HOUR = 1.0
"""What the search counts where slots cost nothing: it saves their time then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadlines:
    """After how long a gang without a sign of life counts as hung, in seconds.

    Attributes:
        start: From the lease to the first step: loading data and forming the group.
        first_epoch: For an epoch whose like was never seen.
        epoch_factor: Else so many times the expected epoch,
        epoch_least: but at least so long.
    """

    start: float = 300.0
    first_epoch: float = 1800.0
    epoch_factor: float = 10.0
    epoch_least: float = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StudySetup:
    """Settings that do not change while a controller lives.

    Attributes:
        epochs: The last epoch of a complete trial.
        milestones: Epochs whose checkpoints are deliverables, the last epoch among them.
        watched: More epochs whose values the search looks at.
        constraints: What a model has to keep to count.
        limits: The budget.
        slots: Slots of the pool.
        usd_per_slot_hour: Price of one slot.
        checkpoint_folder: Absolute; each trial gets a folder in it.
        most_paused: Trials that the policy may keep waiting; None is no limit.
        reference_point: Given by the user or frozen earlier, else None.
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
    python_path: tuple[str, ...] = ()
    reference_point: Mapping[str, float] | None = None
    watched: tuple[int, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    deadlines: Deadlines = field(default_factory=Deadlines)

    @property
    def search_usd_per_slot_hour(self) -> float:
        """The price with which the search compares trials."""
        return self.usd_per_slot_hour or FREE_USD_PER_SLOT_HOUR
