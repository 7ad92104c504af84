"""What a simulated study is made of: a table, objectives, slots and a budget; and what it can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.wording import found, listed, nearest
from studies.records.records import CUMULATIVE_METRICS, Constraint, Objective, StudyRecord
from studies.results.extrapolation import milestones
from studies.search.policy import History, Pruner
from studies.search.pruners.mo_asha import MoAsha
from studies.search.rungs import decision_rungs
from studies.search.samplers.suggester import Suggester
from studies.simulation.candidates import Candidates
from studies.simulation.recorded_curves import CurvesError, CurveTable

START_EPOCHS = 0.3
"""Default cost of starting or thawing a gang, in mean epochs of its configuration."""


def shared_milestones(epochs: int) -> tuple[int, ...]:
    """Returns the milestones of every simulated study, whatever its pruner, so that none is scored on more models.

    They are those of a study without pruner and the rungs of `break_even` and `mo_asha` at their defaults, since each
    may hand over the models of its own; of 52 epochs 2 3 4 5 6 9 11 13 19 24 27 28 41 52.

    Args:
        epochs: Number of epochs of a full training.
    """
    return milestones(epochs, rungs=(*decision_rungs(epochs), *MoAsha().rungs(epochs)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A simulated study, as a sampler or a pruner made for it may look at it.

    Attributes:
        table: Table whose curves are replayed; a search must not look at them.
        candidates: Configurations of the table, those that were used already, and what is known before training.
        epochs: Number of epochs of a full training.
        usd_per_slot_hour: Price of one slot in dollars per hour.
        budget_usd: Budget of the study in dollars.
        start_epochs: Cost of starting or thawing a gang, in mean epochs of its configuration.
        finish: Share of the budget that is kept for leaders that were cut short.
    """

    table: CurveTable
    candidates: Candidates
    objectives: tuple[Objective, ...]
    epochs: int
    slots: int
    usd_per_slot_hour: float
    budget_usd: float
    start_epochs: float
    finish: float
    seed: int
    constraints: tuple[Constraint, ...]
    record: Callable[[], StudyRecord]


SamplerChoice = str | Callable[[Setting], Suggester]
"""A sampler as `search.sampler` of a spec names it, or a function that makes a suggester."""
PrunerChoice = str | Mapping[str, object] | Callable[[Setting], Pruner]
"""A pruner as `search.pruner` of a spec has it, or a function that makes a pruner."""
DecisionListener = Callable[[Pruner, History, int, int], None]
"""Called after each decision at a rung with the pruner, the history it knew, the trial's number and the rung."""


def check_objectives(table: CurveTable, objectives: Sequence[Objective]) -> None:
    """Raises `CurvesError` unless the search may see each of the objectives."""
    _check_metrics(table, "objective", [objective.metric for objective in objectives])
    if len({objective.metric for objective in objectives}) < len(objectives) or not objectives:
        names = listed(objective.metric for objective in objectives) or "none"
        raise CurvesError(f"objective: found {names}, allowed: at least one, and metrics that all differ")


def check_constraints(table: CurveTable, constraints: Sequence[Constraint]) -> None:
    """Raises `CurvesError` unless the search may see each of the bounded metrics."""
    _check_metrics(table, "constraint", [constraint.metric for constraint in constraints])


def _check_metrics(table: CurveTable, place: str, metrics: Sequence[str]) -> None:
    allowed = [name for name, about in table.about.items() if about.split == "validation"]
    allowed += [*table.statics, *sorted(CUMULATIVE_METRICS)]
    for metric in metrics:
        if metric not in allowed:
            raise CurvesError(f"{table.name}: {place}: {found(metric, listed(allowed), nearest(metric, allowed))}")
