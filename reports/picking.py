"""Which model for so many dollars, or under so many milliseconds: the limits that the page asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.content import measured_names
from reports.wording import metric
from studies.analysis import ArchivePoint
from studies.records import StudyRecord

_UNITS = {"_usd": "$", "_ms": "ms", "_seconds": "s", "_bytes": "bytes"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A limit of a metric that people may set.

    Attributes:
        name: Name of the metric.
        column: Place of the metric among those that the table of models shows, from 0.
        side: "most" or "least".
        unit: Unit of the number that is typed, empty without one.
        hint: Range of the metric among the models.
    """

    name: str
    column: int
    side: str
    unit: str
    hint: str


def limits(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[Limit]:
    """Return the limits, one for each metric of the table but the first objective; none with fewer than two models."""
    if len(archive) < 2:
        return []
    directions = {objective.metric: objective.direction for objective in study.objectives}
    trials = {trial.number: trial for trial in study.started}
    models = [trials[point.trial].epochs[point.epoch - 1].metrics for point in archive]
    found = []
    for column, name in enumerate(measured_names(study)):
        values = [value for metrics in models if math.isfinite(value := metrics.get(name, math.nan))]
        if column and len(set(values)) > 1:
            found.append(
                Limit(
                    name=name,
                    column=column,
                    side="least" if directions.get(name) == "maximize" else "most",
                    unit=next((unit for end, unit in _UNITS.items() if name.endswith(end)), ""),
                    hint=f"{metric(name, min(values))} to {metric(name, max(values))}",
                )
            )
    return found
