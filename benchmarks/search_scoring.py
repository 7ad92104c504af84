"""How good a simulated study was: the hypervolume of its models against the dollars spent, on a scale of its table.

The reference point and the unit, the hypervolume of all milestones of all configurations, are fixed for each table, so
that studies with different searches can be compared. Both exist twice: for the values that the search saw, and for
the test metrics at the same epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from studies.records.records import Constraint, Objective
from studies.results import pareto
from studies.results.constraints import bounds_of
from studies.simulation.recorded_curves import Array, CurveTable
from studies.simulation.setting import START_EPOCHS, shared_milestones
from studies.simulation.simulated_study import SimulatedStudy
from trainers.protocol import CUMULATIVE_METRICS

ScoredOn = Literal["validation", "test"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Yardstick:
    """The unit of hypervolume for studies over one table.

    Attributes:
        scored_on: Split whose metrics are scored.
        reference: Reference point, one bound per objective, turned so that smaller is better.
        hypervolume: Hypervolume of all milestones of all configurations.
    """

    scored_on: ScoredOn
    reference: tuple[float, ...]
    hypervolume: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A rise of a study's hypervolume.

    Attributes:
        spent_usd: Cost of the study so far in dollars.
        share: Hypervolume of its models by then, as a share of the table's.
    """

    spent_usd: float
    share: float


def yardstick(
    table: CurveTable,
    objectives: Sequence[Objective],
    *,
    scored_on: ScoredOn = "validation",
    usd_per_slot_hour: float = 1.0,
    start_epochs: float = START_EPOCHS,
    constraints: Sequence[Constraint] = (),
) -> Yardstick:
    """Returns the reference point and the unit of a table.

    The point is, per objective, worst + 0.1 max(worst - best, 0.1 |worst|) over the milestones of all configurations
    without outliers (above Q3 + 3 IQR); of dollars and seconds so far over their values at the last epoch.

    Args:
        table: Table that was simulated.
        objectives: Objectives of the studies.
        scored_on: Split whose metrics are scored.
        usd_per_slot_hour: Price of one slot in dollars per hour.
        start_epochs: Cost of a start, in mean epochs of its configuration.
        constraints: Bounds that a milestone has to keep to count, by validation metrics. The reference point does not
            depend on them.
    """
    milestones = np.asarray(shared_milestones(table.epochs)) - 1
    columns = [
        _column(table, objective, scored_on, usd_per_slot_hour, start_epochs)[:, milestones] for objective in objectives
    ]
    reference = []
    for objective, column in zip(objectives, columns, strict=True):
        values = column[:, -1] if objective.metric in CUMULATIVE_METRICS else column
        reference.append(pareto.reference_coordinate(values[np.isfinite(values)].tolist()))
    feasible = np.ones_like(columns[0], dtype=bool)
    for bound in bounds_of(constraints):
        bounded = Objective(metric=bound.metric)
        values = _column(table, bounded, "validation", usd_per_slot_hour, start_epochs)[:, milestones]
        feasible &= values <= bound.bound if bound.side == "max" else values >= bound.bound
    points = np.stack([column[feasible] for column in columns], axis=-1)
    points = points[np.isfinite(points).all(axis=1)]
    volume = pareto.hypervolume([tuple(point) for point in points], reference)
    return Yardstick(scored_on=scored_on, reference=tuple(reference), hypervolume=volume)


def _column(
    table: CurveTable, objective: Objective, scored_on: ScoredOn, usd_per_slot_hour: float, start_epochs: float
) -> Array:
    """An objective of all configurations after all epochs, turned so that smaller is better [n, T]."""
    metric = objective.metric
    if metric in CUMULATIVE_METRICS:
        seconds = table.seconds + start_epochs * table.mean_epoch_seconds[:, None]
        rate = table.world_sizes[:, None] * usd_per_slot_hour / 3600.0 if metric == "cost_usd" else 1.0
        values = seconds * rate
    elif metric in table.statics:
        values = np.repeat(table.statics[metric][:, None], table.epochs, axis=1)
    else:
        values = table.metrics[(scored_on == "test" and table.test_metric(metric)) or metric]
    turned: Array = values if objective.direction == "minimize" else -values
    return turned


def steps(study: SimulatedStudy, by: Yardstick) -> list[Step]:
    """Returns the rises of a study's hypervolume, from 0 on: one for each model that added to it."""
    found = [Step(spent_usd=0.0, share=0.0)]
    archive: list[pareto.Point] = []
    for milestone in study.milestones:
        point = milestone.values if by.scored_on == "validation" else milestone.test_values
        if not all(value < bound for value, bound in zip(point, by.reference, strict=True)):  # NaN is in no box
            continue
        grown = pareto.grown(archive, point)
        if grown is None:
            continue
        archive = grown
        share = pareto.hypervolume(archive, by.reference) / by.hypervolume
        found.append(Step(spent_usd=milestone.spent_usd, share=share))
    return found


def share_at(found: Sequence[Step], spent_usd: float) -> float:
    """Returns the share that was reached by the time so many dollars were spent."""
    return max((step.share for step in found if step.spent_usd <= spent_usd), default=0.0)


def usd_to_reach(found: Sequence[Step], share: float) -> float | None:
    """Returns the dollars after which a share was reached; None if it never was."""
    return next((step.spent_usd for step in found if step.share >= share), None)
