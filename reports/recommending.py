"""The model to take, in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence

from reports.wording import metric, number
from studies.analysis import ArchivePoint
from studies.recommendation import Recommendation, name_of, recommended
from studies.records import Objective, StudyRecord

_SHARES = ("error", "accuracy")
"""Endings of the names of metrics that are shares."""


def recommendation_lines(study: StudyRecord) -> list[str]:
    """Return what to take, what its neighbours offer instead, and its parameters; nothing without a kept model."""
    found = recommended(study)
    if found is None:
        return []
    objectives = study.objectives
    told = ", ".join(f"{one.metric} {value_in_words(one.metric, found.point.values[one.metric])}" for one in objectives)
    lines = [f"Take {name_of(found.point)}: {told}{_confirmed(found, objectives)}."]
    neighbours = [
        f"{name_of(one)} has {_against(one, found.point, objectives)}."
        for one in (found.better, found.worse)
        if one is not None
    ]
    if neighbours:
        lines.append(" ".join(neighbours))
    params = ", ".join(f"{name} {number(value)}" for name, value in found.params.items())
    return [*lines, f"Its parameters: {params}."] if params else lines


def value_in_words(name: str, value: float) -> str:
    """Return a metric's value: shares as percent, dollars, durations and milliseconds with their units."""
    if name.endswith(_SHARES) and 0 <= value <= 1:
        return f"{100 * value:.3g} %"
    if name.endswith("_ms"):
        return f"{number(value, 3)} ms"
    return metric(name, value)


def _confirmed(found: Recommendation, objectives: Sequence[Objective]) -> str:
    """Return what was measured with fresh seeds, of the objectives that were."""
    if found.confirmed is None:
        return ""
    told = []
    for objective in objectives:
        one = found.confirmed["metrics"].get(objective.metric)
        if one is not None:
            spread = "" if one["deviation"] is None else f" ± {value_in_words(objective.metric, one['deviation'])}"
            told.append(f"{objective.metric} {value_in_words(objective.metric, one['mean'])}{spread}")
    if not told:
        return ""
    seeds = found.confirmed["seeds"]
    trainings = "another training" if seeds == 1 else f"{seeds} other trainings"
    return f" (confirmed by {trainings}, on the {found.confirmed['measured_on']} part: {', '.join(told)})"


def _against(other: ArchivePoint, taken: ArchivePoint, objectives: Sequence[Objective]) -> str:
    """Return the first objective of another point, and by how much it differs in the others."""
    first, *rest = objectives
    told = f"{first.metric} {value_in_words(first.metric, other.values[first.metric])}"
    for_what = [_ratio(one.metric, other.values[one.metric], taken.values[one.metric]) for one in rest]
    return f"{told} for {', '.join(for_what)}" if for_what else told


def _ratio(name: str, value: float, base: float) -> str:
    """Return how a value compares with another one, such as `39 % more cost_usd`."""
    if value == base:
        return f"the same {name}"
    if value <= 0 or base <= 0:
        return f"{name} {value_in_words(name, value)}"
    ratio = value / base
    if ratio >= 2:
        return f"{ratio:.2g} times the {name}"
    percent = 100 * abs(ratio - 1)
    return f"{percent:.2g} % {'more' if ratio > 1 else 'less'} {name}"
