"""Settings of a simulated study: table, objectives, slots, budget, and its sampler and pruner."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.wording import found, listed, nearest
from studies.records.records import CUMULATIVE_METRICS, Constraint, Objective, StudyRecord
from studies.results.extrapolation import milestones
from studies.search.policy import History, Pruner
from studies.search.pruners.mo_asha import MoAsha
from studies.search.rungs import decision_rungs
from studies.search.samplers.advisor import Source
from studies.search.samplers.suggester import Suggester
from studies.simulation.candidates import Candidates
from studies.simulation.recorded_curves import CurvesError, CurveTable

START_EPOCHS = 0.3  # default cost of starting or thawing a gang, in mean epochs of its configuration


def shared_milestones(epochs: int) -> tuple[int, ...]:
    """Return the milestones of every simulated study of this length, so that pruners are scored on the same models.

    They are the milestones without a pruner, plus the default rungs of `break_even` and `mo_asha`; for 52 epochs 2 3 4
    5 6 9 11 13 19 24 27 28 41 52.
    """
    return milestones(epochs, rungs=(*decision_rungs(epochs), *MoAsha().rungs(epochs)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A simulated study, as seen by a sampler or pruner made for it."""

    table: CurveTable  # a search must not look at its curves
    candidates: Candidates  # configurations of the table, used ones, and facts known before training
    objectives: tuple[Objective, ...]
    epochs: int  # number of epochs of a full training
    slots: int
    usd_per_slot_hour: float
    budget_usd: float
    start_epochs: float  # cost of starting or thawing a gang, in mean epochs of its configuration
    finish: float  # share of the budget that is kept for leaders that were cut short
    seed: int
    constraints: tuple[Constraint, ...]
    record: Callable[[], StudyRecord]


SamplerChoice = str | Callable[[Setting], Suggester]
"""A value of `search.sampler` in a spec, or a function that makes a suggester."""
PrunerChoice = str | Mapping[str, object] | Callable[[Setting], Pruner]
"""A value of `search.pruner` in a spec, or a function that makes a pruner."""
AdviceChoice = Callable[[Setting], Source]
"""Function that makes the source of an advisor's proposals."""
DecisionListener = Callable[[Pruner, History, int, int], None]
"""Function called after each decision at a rung, with the pruner, its history, the trial's number and the rung."""


def check_objectives(table: CurveTable, objectives: Sequence[Objective]) -> None:
    """Raise `CurvesError` unless the search may see all objectives."""
    _check_metrics(table, "objective", [objective.metric for objective in objectives])
    if len({objective.metric for objective in objectives}) < len(objectives) or not objectives:
        names = listed(objective.metric for objective in objectives) or "none"
        raise CurvesError(f"objective: found {names}, allowed: at least one metric, each named once")


def check_constraints(table: CurveTable, constraints: Sequence[Constraint]) -> None:
    """Raise `CurvesError` unless the search may see all bounded metrics."""
    _check_metrics(table, "constraint", [constraint.metric for constraint in constraints])


def _check_metrics(table: CurveTable, place: str, metrics: Sequence[str]) -> None:
    allowed = [name for name, about in table.about.items() if about.split == "validation"]
    allowed += [*table.statics, *sorted(CUMULATIVE_METRICS)]
    for metric in metrics:
        if metric not in allowed:
            raise CurvesError(f"{table.name}: {place}: {found(metric, listed(allowed), nearest(metric, allowed))}")
