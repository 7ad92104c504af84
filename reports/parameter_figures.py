"""Plots objectives against parameters, and learning rates against batches."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.phrases import is_share, mapping, metric, number
from reports.plotting import (
    ARCHIVE,
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
    markers,
    objective_axis,
    sampled,
    short,
    spans,
    star_of,
)
from studies.records.records import Objective, StudyRecord, TrialRecord, known_space
from studies.results.importance import Effects
from studies.results.recommendation import Recommendation
from trainers.commands.command import COMMAND
from trainers.protocol import ParameterValue

MOST_DOTS = 1500  # most trials in a figure, an even sample: there is a figure for each parameter


def parameter_names(study: StudyRecord) -> list[str]:
    """Return the started trials' parameters: in the space's order, then others."""
    used = {name for trial in study.started for name in trial.params}
    declared = [name for name in known_space(study) if name in used]
    return declared + sorted(used - set(declared))


def parameter_panel(study: StudyRecord, name: str, objective: Objective) -> Figure:
    """Plot an objective against a parameter. Pruned trials are faint."""
    trained = sampled(_measured(study, objective), MOST_DOTS)
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
    """Return all choices as texts: the space's, then others that trials used."""
    given = declared.get("choices")
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    return list(dict.fromkeys(str(value) for value in [*listed, *used]))


def _choice_axis(name: str, choices: list[str]) -> dict[str, object]:
    """Return an axis with the choices at 0, 1, 2 and so on, so that their dots can be side by side."""
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
    """Return a small horizontal shift for a trial's dot, equal in every panel."""
    golden = (math.sqrt(5) - 1) / 2
    return round(0.3 * (trial * golden % 1 - 0.5), 3)


def _is_number(*values: object) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _number(value: ParameterValue) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


MOST_LINES = 300  # most trials in parallel coordinates; more lines hide each other
MOST_AXES = 9
LEAST_TRIALS = 10  # least number of trials for a figure
BANDS: tuple[tuple[str, str], ...] = (
    ("best fifth", "#0d6e63"),
    ("second fifth", "#4f9d6b"),
    ("third fifth", "#b39b2e"),
    ("fourth fifth", "#c9752c"),
    ("last fifth", "#b8434f"),
)
"""Names and colours of the trials' fifths by the objective, the best first."""


def surface(
    study: StudyRecord, objective: Objective, effects: Effects, taken: Recommendation | None = None
) -> Figure | None:
    """Plot the objective against its two most important numeric parameters.

    Only parameters of the recommended model (a star) count. Returns None without two of them, or with few trials.
    """
    names = [name for name in effects.numeric() if taken is None or name in taken.params][:2]
    if len(names) < 2:
        return None
    first, second = names
    trained = [t for t in _measured(study, objective) if _is_number(t.params.get(first), t.params.get(second))]
    if len(trained) < LEAST_TRIALS:
        return None
    found = effects.surface(first, second)
    values = [value for row in found.values for value in row]
    percent = {"tickformat": ".3~%"} if all(is_share(objective.metric, value) for value in values) else {}
    bar = {"title": {"text": escape(objective.metric), "side": "right"}, "thickness": 12, "outlinewidth": 0, **percent}
    expected = f"{in_template(objective.metric)} {hover_value(objective.metric, values, 'z')}"
    contour: Trace = {
        "type": "contour",
        "x": [short(x) for x in found.xs],
        "y": [short(y) for y in found.ys],
        "z": [[short(value) for value in row] for row in found.values],
        "colorscale": "Viridis",
        "reversescale": objective.direction == "minimize",
        "opacity": 0.75,
        "contours": {"coloring": "heatmap", "showlines": False},
        "colorbar": bar,
        "hovertemplate": f"expected {expected}<extra></extra>",
    }
    trained = list(sampled(trained, MOST_DOTS))
    dots: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [short(float(t.params[first] or 0)) for t in trained],
        "y": [short(float(t.params[second] or 0)) for t in trained],
        "text": [_dot_text(t, objective, (first, second)) for t in trained],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": "#ffffff", "size": 5, "line": {"color": "#17211e", "width": 1}},
    }
    x_axis, y_axis = (_axis_of(study, name, values) for name, values in ((first, found.xs), (second, found.ys)))
    data = [contour, dots]
    if taken is not None and _is_number(taken.params.get(first), taken.params.get(second)):
        data += star_of(taken, float(taken.params[first] or 0), float(taken.params[second] or 0))
    return figure(data, height=420, showlegend=False, xaxis=x_axis, yaxis=y_axis)


def parallel_coordinates(study: StudyRecord, objective: Objective, shares: Mapping[str, float]) -> Figure | None:
    """Draw each trial as a line through its most important parameters to the objective.

    Plotly's own parallel coordinates compile code, which the page's content security policy forbids.
    """
    trained = _measured(study, objective)
    names = list(shares)[:MOST_AXES] or parameter_names(study)[:MOST_AXES]
    if len(trained) < LEAST_TRIALS or len(names) < 2:
        return None
    ranked = sorted(trained, key=lambda t: objective.signed(t.epochs[-1].metrics[objective.metric]))
    scales = [_Scale(study, name, [t.params.get(name) for t in trained]) for name in reversed(names)]
    values = [t.epochs[-1].metrics[objective.metric] for t in trained]
    scales.append(_Scale(study, objective.metric, values, is_metric=True))
    data = [_band(ranked, place, scales, objective) for place in reversed(range(len(BANDS)))]  # the best lie on top
    margin = {"l": 60, "r": 30, "t": 12, "b": 8}  # slanted names reach beyond the first axis
    no_axis = axis("", range=[-0.1, 1.1], showticklabels=False, showgrid=False, zeroline=False)
    axes = {"xaxis": _names_axis(scales), "yaxis": no_axis}
    return figure(data, height=420, margin=margin, annotations=_ends(scales), **axes)


def _in_order(declared: object, given: set[str]) -> list[str]:
    known = [str(choice) for choice in declared if str(choice) in given] if isinstance(declared, list) else []
    return [*known, *sorted(given - set(known))]


class _Scale:
    """A vertical axis, from 0 (least value) to 1 (largest value)."""

    def __init__(
        self, study: StudyRecord, name: str, values: Sequence[ParameterValue | None], *, is_metric: bool = False
    ) -> None:
        given = [value for value in values if value is not None]
        self.name, self._is_metric = name, is_metric
        declared = mapping(known_space(study).get(name))
        self._numeric = declared.get("type") != "categorical" and all(_is_number(value) for value in given)
        wants_log = spans(float(value) for value in given) if is_metric else bool(declared.get("log"))
        self._log = self._numeric and wants_log and all(float(value) > 0 for value in given)
        self._choices = [] if self._numeric else _in_order(declared.get("choices"), {str(value) for value in given})
        numbers = [self._number(value) for value in given]
        self._low, self._high = min(numbers, default=0.0), max(numbers, default=1.0)

    def place(self, value: ParameterValue | None) -> float | None:
        """Return the value's position, or None for an inactive parameter."""
        if value is None or not math.isfinite(self._number(value)):
            return None
        width = self._high - self._low
        return short((self._number(value) - self._low) / width) if width > 0 else 0.5

    def ends(self) -> tuple[str, str]:
        if self._choices:
            return self._choices[0], self._choices[-1]
        low, high = (math.exp(v) if self._log else v for v in (self._low, self._high))
        return (
            (metric(self.name, low), metric(self.name, high)) if self._is_metric else (number(low, 3), number(high, 3))
        )

    def _number(self, value: ParameterValue) -> float:
        if self._choices:
            return float(self._choices.index(str(value)))
        return math.log(float(value or 0)) if self._log else float(value or 0)


def _band(ranked: Sequence[TrialRecord], place: int, scales: Sequence[_Scale], objective: Objective) -> Trace:
    name, colour = BANDS[place]
    count = len(ranked)
    mine = ranked[count * place // len(BANDS) : count * (place + 1) // len(BANDS)]
    room = MOST_LINES // len(BANDS)
    mine = [mine[i * len(mine) // room] for i in range(room)] if len(mine) > room else list(mine)
    xs: list[float | None] = []
    ys: list[float | None] = []
    texts: list[str | None] = []
    for trial in mine:
        told = _dot_text(trial, objective, ())
        for x, scale in enumerate(scales):
            is_last = x == len(scales) - 1
            value = trial.epochs[-1].metrics[objective.metric] if is_last else trial.params.get(scale.name)
            xs.append(x)
            ys.append(scale.place(value))
            shown = "" if is_last else f"<br>{escape(scale.name)} {escape(cut(number(value)))}"
            texts.append(f"{told}{shown}")
        xs.append(None)
        ys.append(None)
        texts.append(None)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": xs,
        "y": ys,
        "text": texts,
        "connectgaps": False,
        "line": {"color": colour, "width": 1.6 if place == 0 else 1},
        "opacity": 0.9 if place == 0 else 0.45,
        "hovertemplate": "%{text}<extra></extra>",
    }


def _names_axis(scales: Sequence[_Scale]) -> dict[str, object]:
    names = [escape(cut(scale.name, 16)) for scale in scales]
    ends = [-0.3, len(scales) - 0.7]
    return axis("", tickvals=list(range(len(scales))), ticktext=names, range=ends, zeroline=False, tickangle=-30)


def _ends(scales: Sequence[_Scale]) -> list[dict[str, object]]:
    return [
        {"x": x, "y": y, "text": escape(cut(text, 12)), "showarrow": False, "yanchor": anchor, "font": {"size": 11}}
        for x, scale in enumerate(scales)
        for y, text, anchor in zip((0.0, 1.0), scale.ends(), ("top", "bottom"), strict=True)
    ]


def _axis_of(study: StudyRecord, name: str, values: Sequence[float]) -> dict[str, object]:
    is_log = bool(mapping(known_space(study).get(name)).get("log")) and min(values) > 0
    return axis(escape(name), log=True, **log_ticks(values)) if is_log else axis(escape(name), nticks=6)


def _measured(study: StudyRecord, objective: Objective) -> list[TrialRecord]:
    return [trial for trial in study.started if math.isfinite(_value(trial, objective))]


def _dot_text(trial: TrialRecord, objective: Objective, names: Sequence[str]) -> str:
    value = trial.epochs[-1].metrics[objective.metric]
    lines = [f"trial {trial.number} {trial.state}", escape(f"{objective.metric} {metric(objective.metric, value)}")]
    return "<br>".join([*lines, *(f"{escape(name)} {escape(cut(number(trial.params[name])))}" for name in names)])


_POWERS = {"linear": 1.0, "sqrt": 0.5}
"""Power of the effective batch to which the learning rate is proportional, by scaling rule."""
FEWEST_BATCHES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trained:
    trial: TrialRecord
    batch: float
    rate: float


def learning_rates(study: StudyRecord, taken: Recommendation | None) -> Figure | None:
    """Plot learning rates by effective batch, with the scaling rule. None with fewer than two batches."""
    objective = study.objectives[0]
    with_rate = with_learning_rate(study)
    trained = (_trained(trial) for trial in study.started if trial.number in with_rate)
    known = [one for one in trained if one is not None]
    batches, rates = [one.batch for one in known], [one.rate for one in known]
    if len(set(batches)) < FEWEST_BATCHES:
        return None
    data: list[Trace] = []
    for state in DRAWN_STATES:
        mine = sampled([one for one in known if one.trial.state == state], MOST_DOTS)
        if mine:
            texts = [_text(one, objective) for one in mine]
            faint = {"opacity": 0.45} if state == "pruned" else {}
            xs, ys = [one.batch for one in mine], [one.rate for one in mine]
            data.append(markers(xs, ys, texts, name=state, color=COLOURS[state], **faint))
    through = _chosen(known, objective, taken)
    data += [] if through is None else _rule(through, min(batches), max(batches))
    x_axis = axis("effective batch (samples of a step)", log=True, **log_ticks(batches))
    y_axis = axis("learning rate", log=True, **log_ticks(rates))
    return figure(data, height=400, xaxis=x_axis, yaxis=y_axis)


def with_learning_rate(study: StudyRecord) -> frozenset[int | None]:
    """Return the trials that used their recorded learning rate. Boosted trees, for example, have none."""
    given = {trial.number for trial in study.started if "learning_rate" in trial.params}
    if given or study.spec.get("task") == COMMAND or "learning_rate" in known_space(study):
        return frozenset(given)
    own_loops = {trial.number for trial in study.started if any("models" in one.facts for one in trial.attempts)}
    return frozenset({trial.number for trial in study.started} - own_loops)


def _chosen(known: Sequence[_Trained], objective: Objective, taken: Recommendation | None) -> _Trained | None:
    for one in known:
        if taken is not None and one.trial.number == taken.point.trial:
            return one
    measured = [one for one in known if math.isfinite(_value(one.trial, objective))]
    return min(measured, key=lambda one: objective.signed(_value(one.trial, objective)), default=None)


def _rule(through: _Trained, least: float, largest: float) -> list[Trace]:
    rule = str(through.trial.attempts[-1].facts.get("lr_scaling", ""))
    if rule not in _POWERS:
        return []
    ends = [least, largest]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"{rule} rule through trial {through.trial.number}",
            "x": ends,
            "y": [short(through.rate * (end / through.batch) ** _POWERS[rule]) for end in ends],
            "line": {"color": ARCHIVE, "width": 2, "dash": "dash"},
            "hoverinfo": "skip",
        }
    ]


def _trained(trial: TrialRecord) -> _Trained | None:
    facts = trial.attempts[-1].facts if trial.attempts else {}
    batch, rate = facts.get("effective_batch"), facts.get("scaled_learning_rate")
    if not isinstance(batch, int | float) or not isinstance(rate, int | float) or min(batch, rate) <= 0:
        return None
    return _Trained(trial=trial, batch=float(batch), rate=float(f"{rate:.6g}"))


def _text(one: _Trained, objective: Objective) -> str:
    value = _value(one.trial, objective)
    lines = [f"trial {one.trial.number} {one.trial.state}"]
    lines += [f"{escape(objective.metric)} {escape(metric(objective.metric, value))}"] if math.isfinite(value) else []
    return "<br>".join([*lines, f"effective batch {number(one.batch)}", f"learning rate {number(one.rate)}"])
