"""Shows baselines as sentences, and as lines in figures."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reports.phrases import listed, mapping, metric
from reports.plotting import Figure, cut, escape, short, spans
from studies.records.records import Objective, StudyRecord
from studies.results import pareto
from studies.results.analysis import ArchivePoint
from studies.results.baselines import Baseline, baselines
from studies.results.confirmations import confirmation_of
from studies.results.constraints import hypervolume
from studies.results.pareto import reference_of

COLOUR = "#8a7a96"
MOST_LABEL = 50  # most characters of a line's name
_DASHES = ("dot", "dash", "dashdot")


def baseline_lines(study: StudyRecord) -> list[str]:
    """Return a line for each baseline, such as `always the mean: val_mse 2.1`."""
    return [
        f"{_called(one)}: {', '.join(f'{name} {metric(name, value)}' for name, value in one.values.items())}"
        for one in baselines(study)
    ]


def against_baselines(study: StudyRecord, taken: ArchivePoint) -> str:
    """Return a sentence that compares a model's first objective with the baselines; empty without baselines."""
    name = study.objectives[0].metric
    found = [one for one in baselines(study) if name in one.values]
    if not found:
        return ""
    itself = [one for one in found if one.trial == taken.trial]
    others = [f"{metric(name, one.values[name])} of {_called(one)}" for one in found if one not in itself]
    if itself:
        against = f", against {listed(others)}" if others else ""
        return f"Its trial is the baseline {itself[0].called!r} itself{against}."
    confirmed = confirmation_of(study, taken.trial, taken.epoch)
    searched = f"{name} is {metric(name, taken.values[name])}, against {listed(others)}."
    return searched if confirmed is None else f"In the search {searched}{_tested(study, confirmed, found)}"


def _tested(study: StudyRecord, itself: Mapping[str, Any], found: Sequence[Baseline]) -> str:
    """Return the test values of a confirmed model and the baselines, or the command that measures them."""
    name, trained = study.objectives[0].metric, [one for one in found if one.trial is not None]
    if name not in itself["metrics"] or not trained:
        return ""
    told = []
    for one in trained:
        known = confirmation_of(study, one.trial or 0, one.epoch)
        if known is None or known["measured_on"] != itself["measured_on"] or name not in known["metrics"]:
            return f" `automl confirm {shlex.quote(study.name)} {one.model}` measures {one.name} with fresh seeds, too."
        told.append(f"{metric(name, known['metrics'][name]['mean'])} of {one.name}")
    mean = metric(name, itself["metrics"][name]["mean"])
    return f" On the {itself['measured_on']} part, with fresh seeds, it is {mean}, against {listed(told)}."


def with_lines(
    plain: Figure,
    found: Sequence[Baseline],
    name: str,
    values: Iterable[float | None],
    *,
    of: str = "y",
    suffix: str = "",
) -> Figure:
    """Add a line at each baseline's value on axis `of`. `suffix` names plotly's subplot.

    A baseline far from the models' `values` is an arrow at the edge, with its number.
    """
    drawn, arrows = [], []
    for one in found:
        value = short(one.values.get(name, math.nan))
        if value is None:
            continue
        if (side := _far_side(value, values)) is None:
            drawn.append((one.called, value))
        else:
            arrows.append((f"{one.called} ({metric(name, value)})", side))
    return _with_arrows(with_lines_at(plain, drawn, of=of, suffix=suffix), arrows, of, suffix)


def with_lines_at(plain: Figure, drawn: Sequence[tuple[str, float]], *, of: str = "y", suffix: str = "") -> Figure:
    """Add a line for each given name and value.

    Without a legend, the names are at the lines. For the other arguments see `with_lines`.
    """
    layout = mapping(plain["layout"])
    lines = [_line(name, at, place, of, suffix) for place, (name, at) in enumerate(drawn)]
    if layout.get("showlegend") is False:
        font = {"size": 10, "color": COLOUR}
        lines = [{**one, "label": {"text": one["name"], "textposition": "start", "font": font}} for one in lines]
    return _extended(plain, "shapes", lines)


def _extended(plain: Figure, name: str, more: Sequence[Mapping[str, object]]) -> Figure:
    layout = mapping(plain["layout"])
    before = layout.get(name)
    return (
        {**plain, "layout": {**layout, name: [*(before if isinstance(before, list) else []), *more]}} if more else plain
    )


def _far_side(value: float, values: Iterable[float | None]) -> int | None:
    """Return 1 for a value far above all others, 0 for a value far below, else None."""
    known = [one for one in values if one is not None and math.isfinite(one)]
    if not known or min(known) == max(known):
        return None
    low, high, span = min(known), max(known), max(known) - min(known)
    return 1 if value > high + span and not spans([*known, value]) else 0 if value < low - span else None


def _with_arrows(plain: Figure, arrows: Sequence[tuple[str, int]], of: str, suffix: str) -> Figure:
    """Add a text in the upper right corner for each baseline outside the drawn range."""
    signs = "←→" if of == "x" else "↓↑"
    told = [f"{escape(cut(name, MOST_LABEL))} {signs[side]}" for name, side in arrows]
    corner = {
        "xref": f"x{suffix} domain",
        "yref": f"y{suffix} domain",
        "x": 1,
        "y": 1,
        "xanchor": "right",
        "yanchor": "top",
    }
    font = {"size": 11, "color": COLOUR}
    text = {**corner, "text": "<br>".join(told), "align": "right", "showarrow": False, "font": font}
    return _extended(plain, "annotations", [text] if told else [])


def hypervolumes(study: StudyRecord) -> list[tuple[str, float]]:
    """Return the hypervolume of each baseline that has all objectives."""
    reference = reference_of(study)
    if reference is None:
        return []
    found = []
    for one in baselines(study):
        if one.trial is not None:
            alone = hypervolume(replace(study, trials=(study.started[one.trial],)), reference)
            found.append((one.called, alone or 0.0))
        elif len(one.values) == len(study.objectives):
            point = [o.signed(one.values[o.metric]) for o in study.objectives]
            bound = [o.signed(reference[o.metric]) for o in study.objectives]
            found.append((one.name, pareto.hypervolume([point], bound)))
    return found


def values_of(found: Sequence[Baseline], objective: Objective, values: Iterable[float | None]) -> list[float]:
    """Return the baselines' values of an objective that are not far from `values`, for an axis's range."""
    known = [one.values[objective.metric] for one in found if objective.metric in one.values]
    return [one for one in known if _far_side(one, values) is None]


def _called(one: Baseline) -> str:
    told = [one.model, "" if one.is_finished else "unfinished", f"breaks {one.broken}" if one.broken else ""]
    told = [part for part in told if part]
    return f"{one.name} ({', '.join(told)})" if told else one.name


def _line(name: str, at: float, place: int, of: str, suffix: str) -> dict[str, object]:
    """Return a line across the figure. Plotly places shapes at the value itself, even on a logarithmic axis."""
    other = "y" if of == "x" else "x"
    return {
        "type": "line",
        f"{of}ref": f"{of}{suffix}",
        f"{of}0": at,
        f"{of}1": at,
        f"{other}ref": f"{other}{suffix} domain",
        f"{other}0": 0,
        f"{other}1": 1,
        "line": {"color": COLOUR, "width": 1.5, "dash": _DASHES[place % len(_DASHES)]},
        "name": escape(cut(name, MOST_LABEL)),
        "showlegend": not suffix,
    }
