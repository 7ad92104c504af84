"""Figures of a study as plain plotly data: trade-offs, bars and hypervolume."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from reports.baselines_on_page import hypervolumes, values_of, with_lines, with_lines_at
from reports.expected import expected_ends, expected_places
from reports.phrases import metric, plural, usd
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
    hover,
    markers,
    objective_axis,
    sampled,
    short,
    star_of,
)
from search_spaces.messages import significant
from studies.records.records import Objective, StudyRecord, TrialRecord
from studies.results import analysis, constraints
from studies.results.analysis import ArchivePoint
from studies.results.baselines import baselines
from studies.results.confirmations import confirmation_of
from studies.results.pareto import point, reference_of
from studies.results.recommendation import Recommendation, recommended

KIND_WORDS = {
    "start": "forming process groups, loading data, thawing",
    "train": "epochs that count",
    "lost": "work that a fault destroyed",
    "idle": "devices without a trial, their start included",
    "confirm": "trainings of automl confirm",
    "test": "measuring the chosen models at the end",
}
OVERHEAD_COLOUR = "#6d7fb3"
LEAST_SHOWN = 0.005  # smallest share of a parameter that has a bar of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar of a small chart. `share` is in percent of the longest bar, `detail` explains the name."""

    name: str
    text: str
    share: float
    colour: str
    note: str = ""
    detail: str = ""


def money_bars(study: StudyRecord) -> tuple[list[Bar], list[Bar]]:
    """Return the dollars by kind of charge, and by the state of the charged trials."""
    kinds = {name: value for name, value in analysis.money_by_kind(study).items() if value}
    outcomes = analysis.money_by_outcome(study)
    order = [s for s in ("complete", "pruned", "failed", "paused", "running") if s in outcomes]
    outcomes = {name: outcomes[name] for name in [*order, *(n for n in outcomes if n not in order)]}
    colours: Mapping[str, str] = {str(state): colour for state, colour in COLOURS.items()}
    by_kind = _bars(kinds, {"train": COLOURS["complete"], "lost": COLOURS["failed"]}, KIND_WORDS)
    states = [t.state for t in study.started]
    words = {state: plural(states.count(state), "trial") for state in order if state in states} | KIND_WORDS
    return by_kind, _bars(outcomes, colours, words)


def _bars(amounts: Mapping[str, float], colours: Mapping[str, str], words: Mapping[str, str]) -> list[Bar]:
    longest, total = max(amounts.values(), default=0.0), sum(amounts.values())
    return [
        Bar(
            name=name,
            detail=words.get(name, ""),
            text=usd(value),
            share=100 * value / longest if longest > 0 else 0.0,
            colour=colours.get(name, OVERHEAD_COLOUR),
            note=f"{100 * value / total:.0f} %" if total > 0 else "",
        )
        for name, value in amounts.items()
    ]


def importance_bars_of(shares: Mapping[str, float]) -> list[Bar]:
    """Return bars of the most important parameters. Importances near 0 share the last bar."""
    told = [name for name, share in shares.items() if share >= LEAST_SHOWN][:12]
    bars = [
        Bar(
            name=name,
            text=f"{100 * shares[name]:.0f} %",
            share=100 * shares[name] / max(shares.values()),
            colour=COLOURS["complete"],
        )
        for name in told
    ]
    if others := len(shares) - len(told):
        most = max(share for name, share in shares.items() if name not in told)
        text = f"at most {100 * most:.0f} %" if most >= LEAST_SHOWN else "less than 1 % each"
        bars.append(Bar(name=plural(others, "other parameter"), text=text, share=0.0, colour=COLOURS["pruned"]))
    return bars


MOST_MATRIX_OBJECTIVES = 4
MOST_DOTS = 3000
"""Most trials in a figure, an even sample besides the archive: more take a browser seconds to draw."""
INFEASIBLE = ", infeasible"
BEST_MODELS, BEST_TRIALS = "best models (any epoch)", "best finished trials"
"""Displayed names of the archive and the front."""
CONFIRMED, CONFIRMED_COLOUR = "confirmed with fresh seeds", "#7b3f98"


def as_plotly(plain: Figure) -> Any:
    """Convert a figure to a `plotly.graph_objects.Figure`."""
    import plotly.graph_objects as go

    return go.Figure(plain)


def trade_off(study: StudyRecord, archive: Sequence[ArchivePoint]) -> Figure:
    """Plot trials and best models: as a sorted list, a plane, or a plane per pair of objectives."""
    objectives, taken = study.objectives[:MOST_MATRIX_OBJECTIVES], recommended(study)
    if len(objectives) == 1:
        return _sorted_list(study, archive, taken)
    if len(objectives) == 2:
        return _plane(study, archive, taken)
    return _matrix(study, archive, objectives, taken)


def _last_points(study: StudyRecord) -> dict[str, list[tuple[TrialRecord, dict[str, float], str]]]:
    names = [f"{state}{suffix}" for suffix in (INFEASIBLE, "") for state in DRAWN_STATES]
    found: dict[str, list[tuple[TrialRecord, dict[str, float], str]]] = {name: [] for name in names}
    for trial in sampled(study.started, MOST_DOTS):
        if trial.epochs and point(trial.epochs[-1], study.objectives) is not None:
            values = trial.values(study.objectives)
            text = hover(trial, trial.epochs[-1].epoch, values)
            violated = constraints.violations(study, trial)
            name = f"{trial.state}{INFEASIBLE if violated else ''}"
            found[name].append((trial, values, f"{text}<br>{escape(violated)}" if violated else text))
    return {name: rows for name, rows in found.items() if rows}


def _look(name: str) -> dict[str, object]:
    faint: dict[str, object] = {"opacity": 0.55, "size": 6} if name.startswith("pruned") else {}
    return {**faint, "symbol": "circle-open"} if name.endswith(INFEASIBLE) else faint


def _archive_hovers(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[str]:
    trials = {t.number: t for t in study.started}
    return [hover(trials[p.trial], p.epoch, p.values) for p in archive]


def _sorted_list(study: StudyRecord, archive: Sequence[ArchivePoint], taken: Recommendation | None) -> Figure:
    objective = study.objectives[0]
    groups = _last_points(study)
    rows = [row for group in groups.values() for row in group]
    rows.sort(key=lambda row: (objective.signed(row[1][objective.metric]), row[0].number))
    places = {row[0].number: place for place, row in enumerate(rows, 1)}
    data: list[Trace] = []
    for name, mine in groups.items():
        xs, ys = [places[trial.number] for trial, *_ in mine], [short(row[1][objective.metric]) for row in mine]
        open_marks = {"symbol": "circle-open"} if name.endswith(INFEASIBLE) else {}
        texts, color = [text for *_, text in mine], COLOURS[mine[0][0].state]
        data.append(markers(xs, ys, texts, name=name, color=color, **open_marks))
    best = [short(p.values[objective.metric]) for p in archive]
    data.append(_stars([0] * len(best), best, _archive_hovers(study, archive)))
    data += star_of(taken, 0, _at(taken, objective))
    data += expected_places(study.started, places, archive, objective)
    found = baselines(study)
    values = [*(row[1][objective.metric] for row in rows), *best]
    y_axis = objective_axis(objective, [*values, *values_of(found, objective, values)])
    drawn = figure(data, xaxis=axis("place among all trials"), yaxis=y_axis)
    return with_lines(drawn, found, objective.metric, values)


def _stars(xs: Sequence[object], ys: Sequence[object], texts: Sequence[str], **more: object) -> Trace:
    trace = markers(xs, ys, texts, name=BEST_MODELS, color=ARCHIVE, symbol="diamond", size=8)
    return {**trace, **more}


def _at(taken: Recommendation | None, objective: Objective) -> float:
    return math.nan if taken is None else taken.point.values[objective.metric]


def _plane(study: StudyRecord, archive: Sequence[ArchivePoint], taken: Recommendation | None) -> Figure:
    first, second = study.objectives
    data = _clouds(study, first, second)
    hovers = _archive_hovers(study, archive)
    ordered = sorted(zip(archive, hovers, strict=True), key=lambda p: p[0].values[first.metric])
    xs = [short(p.values[first.metric]) for p, _ in ordered]
    ys = [short(p.values[second.metric]) for p, _ in ordered]
    # The staircase that the archive attains: each point's value holds until the next point.
    line = {"color": ARCHIVE, "width": 1.5, "shape": "hv" if first.direction == "minimize" else "vh"}
    data.append(_stars(xs, ys, [text for _, text in ordered], mode="lines+markers", line=line))
    data += expected_ends(study.started, archive, (first, second))
    confirmed = _confirmed(study, archive, first, second)
    data += confirmed
    data += _front_rings(study, first, second)
    data += star_of(taken, _at(taken, first), _at(taken, second))
    data += _reference(study, first, second)
    found = baselines(study)
    measured = [float(x) for trace in confirmed for x in trace["x"]]  # type: ignore[attr-defined]
    values = [*_drawn(study, archive, first), *measured]
    x_axis = objective_axis(first, [*values, *values_of(found, first, values)])
    y_axis = objective_axis(second, _drawn(study, archive, second))
    return with_lines(figure(data, height=480, xaxis=x_axis, yaxis=y_axis), found, first.metric, values, of="x")


def _clouds(study: StudyRecord, first: Objective, second: Objective, **more: object) -> list[Trace]:
    data = []
    for name, rows in _last_points(study).items():
        xs = [short(values[first.metric]) for _, values, _ in rows]
        ys = [short(values[second.metric]) for _, values, _ in rows]
        color = COLOURS[rows[0][0].state]
        data.append({**markers(xs, ys, [text for *_, text in rows], name=name, color=color, **_look(name)), **more})
    return data


def _confirmed(study: StudyRecord, archive: Sequence[ArchivePoint], first: Objective, second: Objective) -> list[Trace]:
    rows: list[tuple[float, float, float, str]] = []
    for one in archive:
        known = confirmation_of(study, one.trial, one.epoch)
        spread = known["metrics"].get(first.metric) if known else None
        if known and spread:
            told = f"{one.trial}@{one.epoch} on the {known['measured_on']} part, seeds: {known['seeds']}"
            text = f"{told}<br>{escape(first.metric)} {escape(metric(first.metric, spread['mean']))}"
            rows.append((spread["mean"], one.values[second.metric], spread["deviation"] or 0.0, text))
    if not rows:
        return []
    means, others, deviations, texts = zip(*rows, strict=True)
    xs, ys = [short(x) for x in means], [short(y) for y in others]
    trace = markers(xs, ys, list(texts), name=CONFIRMED, color=CONFIRMED_COLOUR, symbol="triangle-up", size=10)
    bars = {"type": "data", "array": [short(one) for one in deviations], "color": CONFIRMED_COLOUR, "thickness": 1.5}
    return [{**trace, "error_x": bars}]


def _front_rings(study: StudyRecord, first: Objective, second: Objective) -> list[Trace]:
    found = analysis.front(study)
    if not found:
        return []
    xs = [short(p.values[first.metric]) for p in found]
    ys = [short(p.values[second.metric]) for p in found]
    ring = {"symbol": "circle-open", "size": 13, "line": {"width": 1.5}}
    trace = markers(xs, ys, [], name=BEST_TRIALS, color=COLOURS["complete"], **ring)
    return [{**trace, "hoverinfo": "skip", "hovertemplate": None}]


def _reference(study: StudyRecord, first: Objective, second: Objective) -> list[Trace]:
    """Return the reference point, hidden until its legend entry is clicked, because it may be far away."""
    reference = reference_of(study)
    if reference is None:
        return []
    x, y = short(reference[first.metric]), short(reference[second.metric])
    style: Trace = {"symbol": "cross-thin", "size": 12, "line": {"width": 2, "color": COLOURS["queued"]}}
    trace = markers([x], [y], ["reference point"], name="reference point", color=COLOURS["queued"], **style)
    return [{**trace, "visible": "legendonly"}]


def _drawn(study: StudyRecord, archive: Sequence[ArchivePoint], objective: Objective) -> list[float]:
    lasts = [t.epochs[-1] for t in study.started if t.epochs]
    ends = [e.metrics[objective.metric] for e in lasts if point(e, study.objectives) is not None]
    return [*ends, *(p.values[objective.metric] for p in archive)]


def _matrix(
    study: StudyRecord, archive: Sequence[ArchivePoint], objectives: Sequence[Objective], taken: Recommendation | None
) -> Figure:
    """Draw a plane per pair of objectives, as SVG because browsers limit WebGL canvases."""
    pairs = list(combinations(objectives, 2))
    columns = min(len(pairs), 3)
    rows = -(-len(pairs) // columns)
    grid = {"rows": rows, "columns": columns, "pattern": "independent", "xgap": 0.27, "ygap": 0.22}
    layout: dict[str, Any] = {"grid": grid}
    data: list[Trace] = []
    texts, found = _archive_hovers(study, archive), baselines(study)
    for i, (first, second) in enumerate(pairs, 1):
        suffix = "" if i == 1 else str(i)
        place = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "showlegend": i == 1}
        data += [{**t, "legendgroup": t["name"]} for t in _clouds(study, first, second, **place)]
        xs = [short(p.values[first.metric]) for p in archive]
        ys = [short(p.values[second.metric]) for p in archive]
        data.append(_stars(xs, ys, texts, legendgroup=BEST_MODELS, **place))
        data += star_of(taken, _at(taken, first), _at(taken, second), legendgroup="recommended", **place)
        values = _drawn(study, archive, first)
        layout[f"xaxis{suffix}"] = objective_axis(first, [*values, *values_of(found, first, values)])
        layout[f"yaxis{suffix}"] = objective_axis(second, _drawn(study, archive, second))
    drawn = figure(data, height=120 + 300 * rows, **layout)
    for i, (first, _) in enumerate(pairs, 1):
        values = _drawn(study, archive, first)
        drawn = with_lines(drawn, found, first.metric, values, of="x", suffix="" if i == 1 else str(i))
    return drawn


def bar_chart(bars: Sequence[Bar]) -> Figure:
    """Draw bars, with the first on top, for viewers without the page."""
    places = list(range(len(bars)))
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "x": [short(bar.share) for bar in bars],
        "y": places,
        "text": [escape(f"{bar.text} ({bar.note})" if bar.note else bar.text) for bar in bars],
        "hovertext": [escape(f"{bar.name}: {bar.detail}" if bar.detail else bar.name) for bar in bars],
        "hovertemplate": "%{hovertext}<br>%{text}<extra></extra>",
        "marker": {"color": [bar.colour for bar in bars]},
        "cliponaxis": False,
    }
    names = [escape(cut(bar.name)) for bar in bars]
    y_axis = axis("", autorange="reversed", zeroline=False, tickvals=places, ticktext=names)
    x_axis = axis("", range=[0, 125], showticklabels=False, showgrid=False, zeroline=False)
    return figure([trace], height=100 + 32 * len(bars), showlegend=False, xaxis=x_axis, yaxis=y_axis)


def hypervolume(study: StudyRecord) -> Figure:
    """Plot the best models' hypervolume by dollars, in percent of its present value, with baselines."""
    curve = analysis.hypervolume_curve(study)
    known = curve[-1].hypervolume
    trace: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "found",
        "x": [short(p.cost_usd) for p in curve],
        "y": [short(100 * p.hypervolume / known) for p in curve],
        "customdata": [short(p.hypervolume) for p in curve],
        "line": {"color": ARCHIVE, "width": 2, "shape": "hv"},
        "fill": "tozeroy",
        "fillcolor": "rgba(194, 89, 27, 0.10)",
        "hovertemplate": "$%{x:.4g}<br>%{y:.4g} % of the best known<br>hypervolume %{customdata:.4g}<extra></extra>",
    }
    drawn = figure(
        [trace],
        height=320,
        showlegend=False,
        xaxis=axis("dollars of the search", tickprefix="$", rangemode="tozero"),
        yaxis=axis("hypervolume, % of the best known", ticksuffix=" %", rangemode="tozero"),
    )
    return with_lines_at(drawn, [(name, 100 * value / known) for name, value in hypervolumes(study) if value > 0])


def hypervolume_in_words(study: StudyRecord) -> str:
    """Describe the figure: `half of the money reached 93 % of it; usual trees alone 61 %`."""
    curve = analysis.hypervolume_curve(study)
    if len(study.objectives) == 1 or not curve or not curve[-1].hypervolume > 0:
        return ""
    known, half = curve[-1].hypervolume, curve[-1].cost_usd / 2
    by_half = max(one.hypervolume for one in curve if one.cost_usd <= half)
    alone = [f"{name} alone {significant(100 * value / known, 3)} %" for name, value in hypervolumes(study)]
    return "; ".join([f"half of the money reached {100 * by_half / known:.3g} % of it", *alone])
