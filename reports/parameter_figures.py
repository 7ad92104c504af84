"""Parameters by objective: a small panel for each parameter, with every trial's last epoch."""

import math
from collections.abc import Mapping, Sequence

from reports.phrases import mapping, number
from reports.plotting import (
    COLOURS,
    DRAWN_STATES,
    Figure,
    Trace,
    axis,
    cut,
    escape,
    figure,
    hover_value,
    in_template,
    log_ticks,
    objective_axis,
    sampled,
    short,
)
from studies.records.records import Objective, StudyRecord, TrialRecord
from studies.records.suggested_parameters import known_space
from trainers.protocol import ParameterValue

MOST_DOTS = 1500  # most trials in a panel, an even sample of them: there are as many panels as parameters


def parameter_names(study: StudyRecord) -> list[str]:
    """Return the parameter names of started trials, those with a known domain first, in its order."""
    used = {name for trial in study.started for name in trial.params}
    declared = [name for name in known_space(study) if name in used]
    return declared + sorted(used - set(declared))


def parameter_panel(study: StudyRecord, name: str, objective: Objective) -> Figure:
    """Return the panel of one parameter; pruned trials are faint, since they trained for fewer epochs."""
    trained = sampled([t for t in study.started if math.isfinite(_value(t, objective))], MOST_DOTS)
    y_axis = objective_axis(objective, [_value(t, objective) for t in trained]) | {"title": {"text": ""}}
    return _panel(study, name, objective, trained, y_axis)


def _value(trial: TrialRecord, objective: Objective) -> float:
    return float(trial.epochs[-1].metrics.get(objective.metric, math.nan)) if trial.epochs else math.nan


def _panel(
    study: StudyRecord, name: str, objective: Objective, trained: Sequence[TrialRecord], y_axis: dict[str, object]
) -> Figure:
    declared = mapping(known_space(study).get(name))
    active = [t for t in trained if name in t.params]
    numeric = declared.get("type") != "categorical" and all(_is_number(t.params[name]) for t in active)
    choices = [] if numeric else _choices(declared, [t.params[name] for t in active])
    data: list[Trace] = []
    for state in DRAWN_STATES:
        mine = [t for t in active if t.state == state]
        if mine:
            data.append(_dots(name, objective, mine, choices))
    x_axis = _number_axis(name, declared, active) if numeric else _choice_axis(name, choices)
    return figure(data, height=230, showlegend=False, xaxis=x_axis, yaxis=y_axis)


def _number_axis(name: str, declared: Mapping[str, object], active: list[TrialRecord]) -> dict[str, object]:
    values = [_number(t.params[name]) for t in active]
    if declared.get("log") and values and min(values) > 0:
        return axis(escape(name), log=True, **log_ticks(values))
    if declared.get("type") == "int" and values and max(values) - min(values) <= 10:
        return axis(escape(name), dtick=1, tickformat="d")
    return axis(escape(name), nticks=5)


def _choices(declared: Mapping[str, object], used: list[ParameterValue]) -> list[str]:
    """Return all choices as text: the choices of the spec's space in order, then others."""
    given = declared.get("choices")
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    return list(dict.fromkeys(str(value) for value in [*listed, *used]))


def _choice_axis(name: str, choices: list[str]) -> dict[str, object]:
    """Return an axis with the choices at 0, 1, 2 and so on, so that dots of equal choices can lie side by side."""
    texts = [escape(cut(choice, 24)) for choice in choices]
    ends = [-0.5, max(len(choices), 1) - 0.5]
    return axis(escape(name), tickvals=list(range(len(choices))), ticktext=texts, range=ends, zeroline=False)


def _dots(name: str, objective: Objective, trials: list[TrialRecord], choices: list[str]) -> Trace:
    state = trials[0].state
    values = [t.params[name] for t in trials]
    xs: list[float | None] = [short(_number(v)) for v in values]
    if choices:
        xs = [choices.index(str(v)) + _aside(t.number or 0) for v, t in zip(values, trials, strict=True)]
    shown = hover_value(objective.metric, [_value(t, objective) for t in trials])
    texts = [f"trial {t.number} {state}<br>{escape(name)} {escape(cut(number(t.params[name])))}" for t in trials]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": state,
        "x": xs,
        "y": [short(_value(t, objective)) for t in trials],
        "text": texts,
        "hovertemplate": f"%{{text}}<br>{in_template(objective.metric)} {shown}<extra></extra>",
        "marker": {"color": COLOURS[state], "size": 6, "opacity": 0.45 if state == "pruned" else 0.9},
    }


def _aside(trial: int) -> float:
    """Return a small horizontal shift of a dot, the same for a trial in every panel."""
    golden = (math.sqrt(5) - 1) / 2
    return round(0.3 * (trial * golden % 1 - 0.5), 3)


def _is_number(value: ParameterValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: ParameterValue) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
