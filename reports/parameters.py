"""Parameters against an objective: one small panel for each parameter, at every trial's last epoch."""

from __future__ import annotations

import math

from reports.plotting import (
    COLOURS,
    DRAWN_STATES,
    Figure,
    Trace,
    axis,
    cut,
    escape,
    figure,
    in_template,
    log_ticks,
    objective_axis,
    short,
    spans,
)
from reports.wording import mapping
from studies.records import Objective, StudyRecord, TrialRecord
from trainers.protocol import ParameterValue


def parameter_names(study: StudyRecord) -> list[str]:
    """Names of all parameters that a started trial has, those of the spec's space first and in its order."""
    used = {name for trial in study.started for name in trial.params}
    declared = [name for name in mapping(study.spec.get("space")) if name in used]
    return declared + sorted(used - set(declared))


def parameter_panels(study: StudyRecord, objective: Objective) -> dict[str, Figure]:
    """A panel for each parameter, by name; pruned trials are drawn faintly, since they did not train as long."""
    trained = [t for t in study.started if math.isfinite(_value(t, objective))]
    log = spans(_value(t, objective) for t in trained)
    return {name: _panel(study, name, objective, trained, log) for name in parameter_names(study)}


def _value(trial: TrialRecord, objective: Objective) -> float:
    return float(trial.epochs[-1].metrics.get(objective.metric, math.nan)) if trial.epochs else math.nan


def _panel(study: StudyRecord, name: str, objective: Objective, trained: list[TrialRecord], log: bool) -> Figure:
    declared = mapping(mapping(study.spec.get("space")).get(name))
    active = [t for t in trained if name in t.params]
    numeric = declared.get("type") != "categorical" and all(_is_number(t.params[name]) for t in active)
    data: list[Trace] = []
    for state in DRAWN_STATES:
        mine = [t for t in active if t.state == state]
        if mine:
            data.append(_dots(name, objective, mine, numeric))
    if numeric:
        values = [_number(t.params[name]) for t in active]
        log_x = bool(declared.get("log")) and bool(values) and min(values) > 0
        x_axis = axis(escape(name), log=log_x, **(log_ticks(values) if log_x else {"nticks": 5}))
    else:
        x_axis = axis(escape(name), type="category", categoryorder="category ascending")
    y_axis = objective_axis(objective, log=log) | {"title": {"text": ""}, "nticks": 5}
    return figure(data, height=230, showlegend=False, xaxis=x_axis, yaxis=y_axis)


def _dots(name: str, objective: Objective, trials: list[TrialRecord], numeric: bool) -> Trace:
    state = trials[0].state
    xs = [short(_number(t.params[name])) if numeric else escape(cut(str(t.params[name]), 24)) for t in trials]
    shown = f"{in_template(name)} %{{x}}<br>{in_template(objective.metric)} %{{y:.4g}}"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": state,
        "x": xs,
        "y": [short(_value(t, objective)) for t in trials],
        "customdata": [t.number for t in trials],
        "hovertemplate": f"trial %{{customdata}} {state}<br>{shown}<extra></extra>",
        "marker": {"color": COLOURS[state], "size": 6, "opacity": 0.45 if state == "pruned" else 0.9},
    }


def _is_number(value: ParameterValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: ParameterValue) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
