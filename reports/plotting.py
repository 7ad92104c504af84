"""Shared parts of figures.

A figure is plotly.js data, `{"data": [...], "layout": {...}}`. The page's theme colours axes and texts; figures colour
only traces, from a palette that is legible on white and black.
"""

import html
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from reports.phrases import is_share, mapping, metric, number
from studies.records.records import Objective, TrialRecord, TrialState
from studies.results.recommendation import Recommendation, name_of

Figure: TypeAlias = dict[str, object]
Trace: TypeAlias = dict[str, object]
Value = TypeVar("Value")

COLOURS: Mapping[TrialState, str] = {
    "queued": "#8d9a96",
    "running": "#3b82c4",
    "paused": "#c08a1e",
    "complete": "#12877a",
    "pruned": "#97a39f",
    "failed": "#cc3d4c",
}
ARCHIVE = "#c2591b"
DRAWN_STATES: tuple[TrialState, ...] = ("pruned", "failed", "paused", "running", "complete")
"""States in the order of drawing: the most important is on top."""
MOST_HOVER_PARAMS = 14
TOP, TOP_WITH_TITLE = 12, 92
"""Space above a figure in pixels. A title needs a line, and two lines of legend in a narrow card."""


def escape(text: object) -> str:
    """Escape a text for plotly, which renders some HTML. Line breaks become spaces."""
    return html.escape(str(text), quote=False).replace("\n", " ")


def wrapped(text: str) -> str:
    """Escape a hover text and wrap it, because plotly does not."""
    return "<br>".join(escape(line) for line in textwrap.wrap(text, 70))


def in_template(name: str) -> str:
    """Escape a name for a hover template, where `%{` would start a variable."""
    return escape(name).replace("%", "&#37;")


def short(value: float) -> float | None:
    """Round a number to six significant digits, to keep the page small. NaN and infinity become None."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def hover(trial: TrialRecord, epoch: int, values: Mapping[str, float]) -> str:
    """Return the escaped hover text of a point, with trial, state, objectives and parameters."""
    lines = [f"<b>{trial.number}@{epoch}</b> {trial.state}"]
    lines += [f"{escape(name)} {escape(metric(name, value))}" for name, value in values.items()]
    params = list(trial.params.items())
    lines += [f"{escape(name)} = {escape(cut(number(value)))}" for name, value in params[:MOST_HOVER_PARAMS]]
    if len(params) > MOST_HOVER_PARAMS:
        lines.append(f"and {len(params) - MOST_HOVER_PARAMS} more")
    return "<br>".join(lines)


def cut(text: str, most: int = 48) -> str:
    """Cut a text to `most` characters, with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def spans(values: Iterable[float | None], factor: float = 20.0) -> bool:
    """Return whether values need a logarithmic axis: they are positive and differ by `factor`."""
    given = [v for v in values if v is not None and math.isfinite(v)]
    return bool(given) and min(given) > 0 and max(given) / min(given) >= factor


def axis(title: str, *, log: bool = False, **more: object) -> dict[str, object]:
    """Return an axis whose title is never cut off."""
    kind = {"type": "log"} if log else {}
    text = {"text": title, "standoff": 8}
    ticks = {"exponentformat": "e", "minexponent": 6, "separatethousands": True}
    return {"title": text, "automargin": True, **ticks, **kind, **more}


def objective_axis(objective: Objective, values: Iterable[float | None]) -> dict[str, object]:
    """Return an axis with an objective's direction and unit, logarithmic if `values` need it."""
    title = escape(objective.metric) + (" (larger is better)" if objective.direction == "maximize" else "")
    given = [v for v in values if v is not None and math.isfinite(v)]
    if spans(given):
        return axis(title, log=True, **log_ticks(given, objective.metric))
    are_shares = bool(given) and all(is_share(objective.metric, value) for value in given)
    unit = {"tickprefix": "$"} if objective.metric.endswith("_usd") else {"tickformat": ".4~%"} if are_shares else {}
    return axis(title) | unit


def hover_value(name: str, values: Iterable[float | None], of: str = "y") -> str:
    """Return a metric's value for a hover template, with fractions in percent."""
    given = [v for v in values if v is not None and math.isfinite(v)]
    form = ".4~%" if given and all(is_share(name, value) for value in given) else ".4g"
    prefix, suffix = ("$" if name.endswith("_usd") else ""), (" ms" if name.endswith("_ms") else "")
    return f"{prefix}%{{{of}:{form}}}{suffix}"


def log_ticks(values: Sequence[float], name: str = "") -> dict[str, object]:
    """Return ticks for a logarithmic axis, because plotly would write single digits."""
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = (1.0,) if high / low >= 300 else (1.0, 3.0) if high / low >= 10 else (1.0, 2.0, 3.0, 5.0, 7.0)
    every = max(1, len(decades) // 8)
    ticks = [float(f"{step}e{decade}") for decade in decades[::every] for step in steps]
    return {"tickvals": ticks, "ticktext": [metric(name, tick) for tick in ticks]}


def sampled(values: Sequence[Value], most: int) -> Sequence[Value]:
    """Return an even sample of at most `most` values, in order."""
    return values if len(values) <= most else [values[i * len(values) // most] for i in range(most)]


def markers(
    xs: Sequence[object], ys: Sequence[object], texts: Sequence[str], *, name: str, color: str, **marker: object
) -> Trace:
    """Return a plotly trace of points with hover texts."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(xs),
        "y": list(ys),
        "text": list(texts),
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": color, "size": 7, **marker},
    }


def titled(plain: Figure, title: str) -> Figure:
    """Return a figure with a title, for viewers without headings."""
    layout = mapping(plain["layout"])
    text = {"text": escape(title), "x": 0, "xref": "paper", "y": 1, "yref": "container", "yanchor": "top"}
    margin = {**mapping(layout["margin"]), "t": TOP_WITH_TITLE}
    height = int(str(layout["height"])) + TOP_WITH_TITLE - TOP  # the drawing keeps its height
    return {**plain, "layout": {**layout, "height": height, "margin": margin, "title": {**text, "pad": {"t": 12}}}}


def figure(data: list[Trace], *, height: int = 420, **layout: object) -> Figure:
    """Return a figure without a title: the page has headings."""
    base: dict[str, object] = {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": TOP, "b": 8},
        "hovermode": "closest",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.01, "xanchor": "left", "x": 0},
    }
    return {"data": data, "layout": {**base, **layout}}


def star_of(taken: Recommendation | None, x: float, y: float, **more: object) -> list[Trace]:
    """Return a star for the recommended model; empty without such a model."""
    if taken is None:
        return []
    style = {"symbol": "star", "size": 15, "line": {"color": "#ffffff", "width": 1}}
    text = f"recommended: {name_of(taken.point)}"
    return [{**markers([short(x)], [short(y)], [text], name="recommended", color=ARCHIVE, **style), **more}]
