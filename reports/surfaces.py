"""An objective over its most important parameters: a surface over two, and parallel coordinates."""

import math
from collections.abc import Mapping, Sequence

from reports.parameter_figures import parameter_names
from reports.phrases import is_share, mapping, metric, number
from reports.plotting import (
    Figure,
    Trace,
    axis,
    cut,
    escape,
    figure,
    hover_value,
    in_template,
    log_ticks,
    sampled,
    short,
    spans,
    star_of,
)
from studies.records.records import Objective, StudyRecord, TrialRecord
from studies.records.suggested_parameters import known_space
from studies.results.importance import Effects
from studies.results.recommendation import Recommendation
from trainers.protocol import ParameterValue

MOST_LINES = 300  # most trials in parallel coordinates: more lines hide each other
MOST_AXES = 9
MOST_DOTS = 1500
LEAST_TRIALS = 10  # fewer say too little for a figure
BANDS: tuple[tuple[str, str], ...] = (
    ("best fifth", "#0d6e63"),
    ("second fifth", "#4f9d6b"),
    ("third fifth", "#b39b2e"),
    ("fourth fifth", "#c9752c"),
    ("last fifth", "#b8434f"),
)
"""Names and colours of the groups of trials, from the best to the worst fifth by the objective."""


def surface(
    study: StudyRecord, objective: Objective, effects: Effects, taken: Recommendation | None = None
) -> Figure | None:
    """Return the objective over its two most important numeric parameters, with the trials.

    They are parameters of the recommended model, which a star marks: other branches of the space lost. None without two
    of them, and with few trials that have both.
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
    """Return a line for each trial through its most important parameters to the objective, in five colours.

    plotly's own parallel coordinates need WebGL and compile code, which the page's content security policy forbids.
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
    axes = {"xaxis": _names_axis(scales), "yaxis": _no_axis()}
    return figure(data, height=420, margin=margin, annotations=_ends(scales), **axes)


def _in_order(declared: object, given: set[str]) -> list[str]:
    known = [str(choice) for choice in declared if str(choice) in given] if isinstance(declared, list) else []
    return [*known, *sorted(given - set(known))]


class _Scale:
    """A vertical axis: places of values between the least (0) and the largest (1)."""

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
        """Return the value's place from 0 to 1; None for an inactive parameter."""
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


def _no_axis() -> dict[str, object]:
    return axis("", range=[-0.1, 1.1], showticklabels=False, showgrid=False, zeroline=False)


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
    return [
        trial
        for trial in study.started
        if trial.epochs and math.isfinite(trial.epochs[-1].metrics.get(objective.metric, math.nan))
    ]


def _dot_text(trial: TrialRecord, objective: Objective, names: Sequence[str]) -> str:
    value = trial.epochs[-1].metrics[objective.metric]
    lines = [f"trial {trial.number} {trial.state}", escape(f"{objective.metric} {metric(objective.metric, value)}")]
    return "<br>".join([*lines, *(f"{escape(name)} {escape(cut(number(trial.params[name])))}" for name in names)])


def _is_number(*values: object) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
