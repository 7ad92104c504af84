"""Which model for so many dollars, or under so many milliseconds: the limits that the page asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.wording import is_share, number, usd
from studies.analysis import ArchivePoint
from studies.constraints import columns
from studies.records import StudyRecord

_UNITS: Mapping[str, Mapping[str, float]] = {
    "_usd": {"$": 1.0},
    "_ms": {"ms": 1.0},
    "_seconds": {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 0.001},
    "_bytes": {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0},
    "model_parameters": {"M": 1e6, "": 1.0},
}
"""By the ending of a metric's name: units with their size in the metric's own unit, the largest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A limit of a metric that people may set.

    Attributes:
        name: Name of the metric.
        column: Place of the metric among those that the table of models shows, from 0.
        side: "most" or "least".
        unit: Unit of the number that is typed, empty without one.
        scale: Size of that unit in the metric's own unit, such as 0.01 for percent of a share.
        hint: Range of the metric among the models, in that unit.
    """

    name: str
    column: int
    side: str
    unit: str
    scale: float
    hint: str


def limits(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[Limit]:
    """Return the limits, one for each metric of the table but the first objective; none with fewer than two models."""
    if len(archive) < 2:
        return []
    trials = {trial.number: trial for trial in study.started}
    models = [trials[point.trial].epochs[point.epoch - 1].metrics for point in archive]
    found = []
    for column, one in enumerate(columns(study.objectives, study.constraints)):
        values = [value for metrics in models if math.isfinite(value := metrics.get(one.metric, math.nan))]
        if column and len(set(values)) > 1:
            unit, scale = _unit(one.metric, values)
            shown = usd if unit == "$" else number
            found.append(
                Limit(
                    name=one.metric,
                    column=column,
                    side="least" if one.direction == "maximize" else "most",
                    unit=unit,
                    scale=scale,
                    hint=f"{shown(min(values) / scale)} to {shown(max(values) / scale)}",
                )
            )
    return found


def _unit(name: str, values: Sequence[float]) -> tuple[str, float]:
    """The unit in which a limit is typed, with its size: the largest one of which a value has at least one."""
    sizes = next((sizes for ending, sizes in _UNITS.items() if name.endswith(ending)), None)
    if sizes is None:
        return ("%", 0.01) if all(is_share(name, value) for value in values) else ("", 1.0)
    largest, units = max(map(abs, values)), list(sizes.items())
    return next((one for one in units if one[1] <= largest), units[-1])
