"""The reference point of a study's hypervolume: given, stored, or computed from the milestones so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from studies.extrapolation import extrapolated_metric
from studies.pareto import reference_coordinate
from studies.records import CUMULATIVE_METRICS, EpochRecord, Objective, StudyRecord, TrialRecord


def last_epoch(spec: Mapping[str, object]) -> int | None:
    """Epochs of a full training, None when the spec does not say."""
    training = spec.get("training")
    planned = training.get("epochs") if isinstance(training, Mapping) else None
    return int(planned) if isinstance(planned, int | float) else None


def point(epoch: EpochRecord, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """The epoch's objectives turned so that smaller is better; None unless all of them are there and finite."""
    values = tuple(o.signed(float(epoch.metrics.get(o.metric, math.nan))) for o in objectives)
    return values if all(map(math.isfinite, values)) else None


def reference_point(
    trials: Sequence[TrialRecord], objectives: Sequence[Objective], last_epoch: int | None
) -> dict[str, float] | None:
    """The automatic reference point by metric, in the metrics' own signs; None without a finite milestone.

    Per objective: worst + 0.1 max(worst - best, 0.1 |worst|) over the milestones so far without outliers. Cumulative
    objectives are extrapolated to the last epoch first, so that the box holds trainings that run to the end.

    Args:
        trials: Any states; pruned and failed trials count as well.
        objectives: Objectives in the spec's order.
        last_epoch: Epochs of a full training; None extrapolates nothing. A complete trial's are its own.
    """
    columns: dict[str, list[float]] = {o.metric: [] for o in objectives}
    for trial in trials:
        for epoch in trial.epochs:
            values = point(epoch, objectives) if epoch.is_milestone else None
            for objective, value in zip(objectives, values or (), strict=False):
                if objective.metric in CUMULATIVE_METRICS:
                    end = extrapolated_metric(trial, epoch, objective.metric, last_epoch)
                    value = objective.signed(end)  # noqa: PLW2901
                columns[objective.metric].append(value)
    if not all(columns.values()):
        return None
    return {o.metric: o.signed(reference_coordinate(columns[o.metric])) for o in objectives}


def reference_of(study: StudyRecord) -> dict[str, float] | None:
    """The point that the study's hypervolume is measured from.

    The stored one, else the spec's, else a provisional one from the milestones so far, so that a running study has a
    hypervolume before its reference point is frozen.
    """
    given = study.reference_point or study.spec.get("reference_point")
    if isinstance(given, Mapping):
        return {str(metric): float(value) for metric, value in given.items()}
    return reference_point(study.trials, study.objectives, last_epoch(study.spec))
