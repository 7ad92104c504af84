"""Baselines as sentences, and as dotted lines in figures."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reports.phrases import listed, mapping, metric
from reports.plotting import Figure, cut, escape, short
from studies.records.records import Objective, StudyRecord
from studies.results import pareto
from studies.results.analysis import ArchivePoint
from studies.results.baselines import Baseline, baselines
from studies.results.confirmations import confirmation_of
from studies.results.feasibility import hypervolume
from studies.results.pareto import reference_of

COLOUR = "#8a7a96"
MOST_LABEL = 40  # most characters of a line's label


def baseline_lines(study: StudyRecord) -> list[str]:
    """Return each baseline with its objectives, such as `always the mean: val_mse 2.1`; nothing without any."""
    return [f"{_called(one)}: {_told(one)}" for one in baselines(study)]


def against_baselines(study: StudyRecord, taken: ArchivePoint) -> str:
    """Return a sentence that compares a model's first objective with each baseline; empty without baselines."""
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
    """Return test values of a confirmed model and the baselines, or the command that measures them."""
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


def with_lines(plain: Figure, found: Sequence[Baseline], name: str, *, of: str = "y", suffix: str = "") -> Figure:
    """Return a figure with a dotted line at each baseline's value on axis `of`; `suffix` is plotly's subplot."""
    drawn = [(one.called, value) for one in found if (value := short(one.values.get(name, float("nan")))) is not None]
    return with_lines_at(plain, drawn, of=of, suffix=suffix)


def with_lines_at(plain: Figure, drawn: Sequence[tuple[str, float]], *, of: str = "y", suffix: str = "") -> Figure:
    """Return a figure with a dotted line for each name and value; other arguments as for `with_lines`."""
    if not drawn:
        return plain
    layout = mapping(plain["layout"])
    before = layout.get("shapes")
    shapes = [*(before if isinstance(before, list) else []), *(_line(name, at, of, suffix) for name, at in drawn)]
    return {**plain, "layout": {**layout, "shapes": shapes}}


def hypervolumes(study: StudyRecord) -> list[tuple[str, float]]:
    """Return the hypervolume of each baseline alone, without those that lack an objective."""
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


def values_of(found: Sequence[Baseline], objective: Objective) -> list[float]:
    """Return the baselines' values of an objective, for the range of an axis."""
    return [one.values[objective.metric] for one in found if objective.metric in one.values]


def _called(one: Baseline) -> str:
    told = [one.model, "" if one.is_finished else "unfinished", f"breaks {one.broken}" if one.broken else ""]
    told = [part for part in told if part]
    return f"{one.name} ({', '.join(told)})" if told else one.name


def _told(one: Baseline) -> str:
    return ", ".join(f"{name} {metric(name, value)}" for name, value in one.values.items())


def _line(name: str, at: float, of: str, suffix: str) -> dict[str, object]:
    """Return a line across the figure; a shape's position on a logarithmic axis is the value itself."""
    other = "y" if of == "x" else "x"
    font = {"size": 10, "color": COLOUR}
    text: dict[str, object] = {"text": escape(cut(name, MOST_LABEL)), "textposition": "start", "font": font}
    if of == "x":  # along the line, downwards from its upper end, where no ticks are
        text |= {"textposition": "end", "textangle": 90, "xanchor": "left", "padding": 8}
    return {
        "type": "line",
        f"{of}ref": f"{of}{suffix}",
        f"{of}0": at,
        f"{of}1": at,
        f"{other}ref": f"{other}{suffix} domain",
        f"{other}0": 0,
        f"{other}1": 1,
        "line": {"color": COLOUR, "width": 1.5, "dash": "dot"},
        "label": text,
    }
