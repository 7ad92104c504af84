"""Draws learning curves: objectives by epoch, with marks for decisions and ends."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.baselines_on_page import values_of, with_lines
from reports.expected import bands, is_by_chance
from reports.phrases import trial_reason
from reports.plotting import (
    ARCHIVE,
    COLOURS,
    DRAWN_STATES,
    Figure,
    Trace,
    axis,
    figure,
    hover_value,
    in_template,
    objective_axis,
    short,
    spans,
    wrapped,
)
from studies.records.records import DecisionRecord, Objective, StudyRecord, TrialRecord
from studies.results.analysis import ArchivePoint
from studies.results.baselines import Baseline
from trainers.protocol import CUMULATIVE_METRICS

PAUSED, THAWED, BY_CHANCE = "paused here", "thawed here", "went on by chance"
MOST_CURVES = 200  # most curves in a figure: with more the browser is slow, and the curves hide each other
ENDS = {
    "complete": "circle",
    "pruned": "x-thin",
    "failed": "hexagram-open",
    "running": "triangle-right",
    "paused": "circle-open",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Look of the mark for one kind of decision."""

    name: str
    symbol: str
    colour: str
    size: int


MARKS = (
    Mark(name=PAUSED, symbol="line-ns-open", colour=COLOURS["paused"], size=10),
    Mark(name=THAWED, symbol="triangle-up-open", colour=COLOURS["running"], size=9),
    Mark(name=BY_CHANCE, symbol="diamond-open", colour=ARCHIVE, size=9),
)


def learned(study: StudyRecord) -> list[Objective]:
    """Return the objectives with a learning curve: they change with the epoch, and are not sums over epochs."""
    return [
        o
        for o in study.objectives
        if o.metric not in CUMULATIVE_METRICS
        and any(len({e.metrics.get(o.metric) for e in t.epochs}) > 1 for t in study.started)
    ]


def chosen(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[TrialRecord]:
    """Return the trials to draw: all, or the best models' trials and a sample of the others."""
    trained = [t for t in study.started if t.epochs]
    if len(trained) <= MOST_CURVES:
        return trained
    numbers = {p.trial for p in archive}
    kept = [t for t in trained if t.number in numbers][:MOST_CURVES]
    others = [t for t in trained if t.number not in numbers]
    room = MOST_CURVES - len(kept)
    sample = [others[i * len(others) // room] for i in range(min(room, len(others)))]
    return sorted(kept + sample, key=lambda t: t.number or 0)


def learning_curves(trials: Iterable[TrialRecord], objective: Objective, baselines: Sequence[Baseline] = ()) -> Figure:
    """Draw learning curves, one plotly trace per state, and a line for each baseline."""
    trials = list(trials)
    data: list[Trace] = []
    for state in DRAWN_STATES:
        mine = [t for t in trials if t.state == state]
        if mine:
            data += [_lines(mine, objective, state), _ends(mine, objective, state)]
    marks = [trace for mark in MARKS for trace in _marks(trials, objective, mark)]
    own = [e.metrics.get(objective.metric) for t in trials for e in t.epochs]
    values = [*own, *values_of(baselines, objective, own)]
    floor = min(v for v in values if v is not None and v > 0) / 3 if spans(values) else None
    drawn = figure(
        [*bands(trials, objective, floor), *data, *marks],
        height=440,
        xaxis=axis("epoch", rangemode="tozero"),
        yaxis=objective_axis(objective, values),
    )
    return with_lines(drawn, baselines, objective.metric, own)


def _lines(trials: list[TrialRecord], objective: Objective, state: str) -> Trace:
    xs: list[int | None] = []
    ys: list[float | None] = []
    numbers: list[int | None] = []
    for trial in trials:
        for epoch in trial.epochs:
            xs.append(epoch.epoch)
            ys.append(short(epoch.metrics.get(objective.metric, float("nan"))))
            numbers.append(trial.number)
        xs.append(None)
        ys.append(None)
        numbers.append(None)
    faint = state == "pruned"
    value = f"{in_template(objective.metric)} {hover_value(objective.metric, ys)}"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": state,
        "legendgroup": state,
        "x": xs,
        "y": ys,
        "customdata": numbers,
        "line": {"color": COLOURS[trials[0].state], "width": 1 if faint else 1.4},
        "opacity": 0.5 if faint else 0.85,
        "connectgaps": False,
        "hovertemplate": f"trial %{{customdata}}, epoch %{{x}}<br>{value}<extra></extra>",
    }


def _ends(trials: list[TrialRecord], objective: Objective, state: str) -> Trace:
    color = COLOURS[trials[0].state]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{state}: last epoch",
        "legendgroup": state,
        "showlegend": False,
        "x": [t.epochs[-1].epoch for t in trials],
        "y": [short(t.epochs[-1].metrics.get(objective.metric, float("nan"))) for t in trials],
        "text": [f"trial {t.number} {state}<br>{wrapped(trial_reason(t))}" for t in trials],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": ENDS[state], "color": color, "size": 7, "line": {"color": color, "width": 1.5}},
    }


def _marks(trials: Iterable[TrialRecord], objective: Objective, mark: Mark) -> list[Trace]:
    found = [(trial, one) for trial in trials for one in _decisions(trial, mark.name)]
    if not found:
        return []
    trace: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": mark.name,
        "x": [one.epoch for _, one in found],
        "y": [short(t.epochs[one.epoch - 1].metrics.get(objective.metric, float("nan"))) for t, one in found],
        "text": [f"trial {t.number} {mark.name}, epoch {one.epoch}<br>{wrapped(one.reason)}" for t, one in found],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": mark.symbol, "color": mark.colour, "size": mark.size, "line": {"width": 2}},
    }
    return [trace]


def _decisions(trial: TrialRecord, name: str) -> list[DecisionRecord]:
    """Return a trial's decisions of one kind. A "continue" of a paused trial is a thaw."""
    found = []
    before: DecisionRecord | None = None
    for one in trial.decisions:
        is_thaw = one.action == "continue" and before is not None and before.action == "pause"
        kind = PAUSED if one.action == "pause" else THAWED if is_thaw else BY_CHANCE if is_by_chance(one) else ""
        if kind == name and 1 <= one.epoch <= len(trial.epochs):
            found.append(one)
        before = one
    return found
