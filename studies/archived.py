"""What counts of a study: its feasible milestones, and the hypervolume that they dominate."""

from __future__ import annotations

from collections.abc import Mapping

from studies import constraints, pareto
from studies.records import EpochRecord, StudyRecord, TrialRecord
from studies.reference_point import point, reference_of


def milestones(study: StudyRecord) -> list[tuple[TrialRecord, EpochRecord, pareto.Point]]:
    """All feasible milestones with finite objectives, by trial and epoch, with signed values (smaller is better)."""
    return [
        (trial, epoch, values)
        for trial in study.started
        for epoch in trial.epochs
        if epoch.is_milestone
        and constraints.is_feasible(epoch.metrics, study.constraints)
        and (values := point(epoch, study.objectives)) is not None
    ]


def hypervolume(study: StudyRecord, reference: Mapping[str, float] | None = None) -> float | None:
    """Hypervolume of the archive.

    Args:
        study: The study as committed.
        reference: Reference point by metric, in the metrics' own signs; the study's own by default.

    Returns:
        None as long as no reference point is known.
    """
    reference = reference or reference_of(study)
    if reference is None:
        return None
    bound = [o.signed(reference[o.metric]) for o in study.objectives]
    return pareto.hypervolume([values for _, _, values in milestones(study)], bound)


def best_values(study: StudyRecord) -> dict[str, float]:
    """The best value of each objective among the feasible milestones, in the metrics' own signs; empty without any."""
    points = [values for _, _, values in milestones(study)]
    columns = zip(study.objectives, zip(*points, strict=True), strict=True) if points else ()
    return {objective.metric: objective.signed(min(column)) for objective, column in columns}
