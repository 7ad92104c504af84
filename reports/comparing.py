"""Compares several studies on one HTML page, with a common reference point."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reports.page import as_json, page_parts, replace_file
from reports.page_templates import packed, redacted, template
from reports.phrases import NOTHING, duration, listed, mapping, number, percent, usd
from reports.plotting import Figure, Trace, axis, escape, figure, hover, objective_axis, short
from reports.recommending import value_of
from search_spaces.messages import UserError
from studies.records.records import NANO, Objective, StudyRecord
from studies.results import analysis, pareto
from studies.results.analysis import ArchivePoint, CurvePoint
from studies.results.pareto import reference_of
from studies.results.recommendation import name_of, recommended

COLOURS = ("#12877a", "#c2591b", "#3b82c4", "#a04fa5", "#c08a1e", "#6d7fb3", "#cc3d4c", "#5a6964")
"""Colours of the studies. A ninth study has the first colour and a dashed line."""
MOST_DIFFERENCES = 40  # most rows of the table of differences between specs


class ComparisonError(UserError, ValueError):
    """The studies cannot be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A study in the table. `bests` has a text per objective, `share` is the hypervolume."""

    name: str
    state: str
    spent: str
    time: str
    trials: str
    bests: Sequence[str]
    share: str
    taken: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A differing spec key, with the value of each study."""

    key: str
    values: Sequence[str]


def write_comparison(studies: Sequence[StudyRecord], out: Path) -> Path:
    """Write the comparison's page, like `reports.page.write_report`."""
    return replace_file(out, render_comparison(studies))


def render_comparison(studies: Sequence[StudyRecord]) -> str:
    """Return the comparison's page as text."""
    compared = comparable([redacted(study) for study in studies])
    objectives = compared[0].objectives
    curves = [analysis.hypervolume_curve(study) for study in compared]
    archives = [analysis.archive(study) for study in compared]
    found = differences(compared)
    drawn = {"gains": _gains(compared, curves)} if _best(curves) > 0 else {}
    if any(archives):
        drawn["models"] = _models(compared, archives)
    return template("comparison.html").render(
        names=[study.name for study in compared],
        objectives=objectives,
        reference=reference_of(compared[0]),
        rows=[_row(*one, _best(curves)) for one in zip(compared, curves, archives, strict=True)],
        differences=found[:MOST_DIFFERENCES],
        left_out=max(len(found) - MOST_DIFFERENCES, 0),
        drawn=drawn,
        data=packed(as_json(drawn)),
        **page_parts(),
    )


def comparable(studies: Sequence[StudyRecord]) -> list[StudyRecord]:
    """Give studies one order of objectives and the worst reference point. Raises ComparisonError."""
    first = studies[0]
    for study in studies[1:]:
        if set(study.objectives) != set(first.objectives):
            raise ComparisonError(
                f"report: {first.name} is for {_in_words(first.objectives)} and {study.name} for "
                f"{_in_words(study.objectives)}. Only studies with the same objectives can be compared"
            )
    known = [reference for study in studies if (reference := reference_of(study)) is not None]
    worst = {
        one.metric: max((reference[one.metric] for reference in known), key=one.signed) for one in first.objectives
    } if known else None  # fmt: skip
    return [replace(study, objectives=first.objectives, reference_point=worst) for study in studies]


def _in_words(objectives: Sequence[Objective]) -> str:
    return listed([f"{one.metric} ({one.direction}d)" for one in objectives])


def differences(studies: Sequence[StudyRecord]) -> list[Difference]:
    """Return the differing spec keys by name, with keys of the space last."""
    flat = [_flat(study.spec) for study in studies]
    keys = sorted({key for one in flat for key in one} - {"study"}, key=lambda key: (key.startswith("space."), key))
    rows = [(key, [one.get(key) for one in flat]) for key in keys]
    return [Difference(key=key, values=_texts(values)) for key, values in rows if len(set(map(_exact, values))) > 1]


def _flat(spec: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in spec.items():
        inner = mapping(value)
        found |= _flat(inner, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


def _exact(value: object) -> float | str:
    """Return a key for comparisons: numbers of any type are equal, but true is not 1."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _texts(values: Sequence[object]) -> list[str]:
    """Return differing values as texts: rounded, or in full if they would look equal."""
    rounded = [number(value) for value in values]
    if len(set(rounded)) == len(set(map(_exact, values))):
        return rounded
    return [NOTHING if value is None else repr(value) for value in values]


def _best(curves: Sequence[Sequence[CurvePoint]]) -> float:
    return max((curve[-1].hypervolume for curve in curves if curve), default=0.0)


def _row(study: StudyRecord, curve: Sequence[CurvePoint], archive: Sequence[ArchivePoint], best: float) -> Row:
    taken = recommended(study)
    return Row(
        name=study.name,
        state=study.state,
        spent=usd(study.cost_nano_usd / NANO),
        time=duration(study.alive_seconds),
        trials=number(len(study.started)),
        bests=[_best_in_words(study, archive, one) for one in study.objectives],
        share=percent(curve[-1].hypervolume / best) if curve and best > 0 else NOTHING,
        taken=name_of(taken.point) if taken else NOTHING,
    )


def _best_in_words(study: StudyRecord, archive: Sequence[ArchivePoint], objective: Objective) -> str:
    if not archive:
        return NOTHING
    name = objective.metric
    return value_of(study, min(archive, key=lambda point: objective.signed(point.values[name])), name)


def _look(place: int) -> dict[str, object]:
    return {"color": COLOURS[place % len(COLOURS)], "width": 2, "dash": "dash" if place >= len(COLOURS) else "solid"}


def _gains(studies: Sequence[StudyRecord], curves: Sequence[Sequence[CurvePoint]]) -> Figure:
    best = _best(curves)
    data: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": escape(study.name),
            "x": [short(p.cost_usd) for p in curve],
            "y": [short(100 * p.hypervolume / best) for p in curve],
            "line": {**_look(place), "shape": "hv"},
            "hovertemplate": "$%{x:.4g}<br>%{y:.4g} % of the best known<extra></extra>",
        }
        for place, (study, curve) in enumerate(zip(studies, curves, strict=True))
    ]
    x_axis = axis("dollars of the search", tickprefix="$", rangemode="tozero")
    y_axis = axis("hypervolume, % of the best known", ticksuffix=" %", rangemode="tozero")
    return figure(data, height=360, showlegend=True, xaxis=x_axis, yaxis=y_axis)


def _models(studies: Sequence[StudyRecord], archives: Sequence[Sequence[ArchivePoint]]) -> Figure:
    """Plot the best models by the first two objectives; for one objective, in a row per study."""
    first, *rest = studies[0].objectives
    second = rest[0] if rest else None
    data: list[Trace] = []
    for place, (study, archive) in enumerate(zip(studies, archives, strict=True)):
        ordered = sorted(archive, key=lambda p: p.values[first.metric])
        name = escape(study.name)
        on_line = _best_in_plane(ordered, first, second) if second else ordered
        line = {**_look(place), "shape": "hv" if first.direction == "minimize" else "vh"}
        mode = "lines+markers" if second else "markers"
        data.append(_diamonds(study, place, on_line, first, second) | {"mode": mode, "line": line, "legendgroup": name})
        if beside := [point for point in ordered if point not in on_line]:
            drawn = _diamonds(study, place, beside, first, second)
            data.append(drawn | {"mode": "markers", "showlegend": False, "legendgroup": name})
    x_axis = objective_axis(first, [p.values[first.metric] for archive in archives for p in archive])
    y_axis = (
        objective_axis(second, [p.values[second.metric] for archive in archives for p in archive])
        if second
        else axis("", showticklabels=False)
    )
    return figure(data, height=440, showlegend=True, xaxis=x_axis, yaxis=y_axis)


def _best_in_plane(points: Sequence[ArchivePoint], first: Objective, second: Objective) -> list[ArchivePoint]:
    values = [(first.signed(p.values[first.metric]), second.signed(p.values[second.metric])) for p in points]
    return [points[i] for i in pareto.archive(values)]


def _diamonds(
    study: StudyRecord, place: int, points: Sequence[ArchivePoint], first: Objective, second: Objective | None
) -> Trace:
    told = [hover(study.started[p.trial], p.epoch, p.values) for p in points]
    return {
        "type": "scatter",
        "name": escape(study.name),
        "x": [short(p.values[first.metric]) for p in points],
        "y": [short(p.values[second.metric]) if second else place for p in points],
        "text": [f"{escape(study.name)}<br>{text}" for text in told],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": _look(place)["color"], "size": 8, "symbol": "diamond"},
    }
