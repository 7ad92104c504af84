"""Learning curves: every trial's objective by epoch, with marks where trials were paused, pruned or failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.plotting import (
    COLOURS,
    DRAWN_STATES,
    Figure,
    Trace,
    axis,
    escape,
    figure,
    in_template,
    objective_axis,
    short,
)
from studies.analysis import ArchivePoint, reason_in_words
from studies.records import CUMULATIVE_METRICS, Objective, StudyRecord, TrialRecord

MOST_CURVES = 200
"""Most curves in a figure: with more the browser is slow, and the curves hide each other."""
ENDS = {
    "complete": "circle",
    "pruned": "x-thin",
    "failed": "hexagram-open",
    "running": "triangle-right",
    "paused": "circle-open",
}


def learned(study: StudyRecord) -> list[Objective]:
    """Return the objectives that have a learning curve: they change with the epoch, and are no sums over epochs."""
    return [
        o
        for o in study.objectives
        if o.metric not in CUMULATIVE_METRICS
        and any(len({e.metrics.get(o.metric) for e in t.epochs}) > 1 for t in study.started)
    ]


def chosen(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[TrialRecord]:
    """Return the trials whose curves are drawn: all, or those of the archive and an even sample of the others."""
    trained = [t for t in study.started if t.epochs]
    if len(trained) <= MOST_CURVES:
        return trained
    numbers = {p.trial for p in archive}
    kept = [t for t in trained if t.number in numbers][:MOST_CURVES]
    others = [t for t in trained if t.number not in numbers]
    room = MOST_CURVES - len(kept)
    sample = [others[i * len(others) // room] for i in range(min(room, len(others)))]
    return sorted(kept + sample, key=lambda t: t.number or 0)


def learning_curves(trials: Iterable[TrialRecord], objective: Objective) -> Figure:
    """Return the curves, coloured by state. All lines of a state are one trace, with gaps between trials."""
    trials = list(trials)
    data: list[Trace] = []
    for state in DRAWN_STATES:
        mine = [t for t in trials if t.state == state]
        if mine:
            data += [_lines(mine, objective, state), _ends(mine, objective, state)]
    pauses = _pauses(trials, objective)
    values = [e.metrics.get(objective.metric) for t in trials for e in t.epochs]
    return figure(
        [*data, *pauses],
        height=440,
        xaxis=axis("epoch", rangemode="tozero"),
        yaxis=objective_axis(objective, values),
    )


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
    value = f"{in_template(objective.metric)} %{{y:.4g}}"
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
    """A mark at each trial's last epoch; its shape shows the trial's state."""
    color = COLOURS[trials[0].state]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{state}: last epoch",
        "legendgroup": state,
        "showlegend": False,
        "x": [t.epochs[-1].epoch for t in trials],
        "y": [short(t.epochs[-1].metrics.get(objective.metric, float("nan"))) for t in trials],
        "text": [f"trial {t.number} {state}<br>{escape(reason_in_words(t))}" for t in trials],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": ENDS[state], "color": color, "size": 7, "line": {"color": color, "width": 1.5}},
    }


def _pauses(trials: list[TrialRecord], objective: Objective) -> list[Trace]:
    """A mark at each epoch at which a trial was paused, whether or not it continued later."""
    found = [(t, d) for t in trials for d in t.decisions if d.action == "pause" and 1 <= d.epoch <= len(t.epochs)]
    if not found:
        return []
    marker = {"symbol": "line-ns-open", "color": COLOURS["paused"], "size": 10, "line": {"width": 2}}
    trace: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": "paused here",
        "x": [d.epoch for _, d in found],
        "y": [short(t.epochs[d.epoch - 1].metrics.get(objective.metric, float("nan"))) for t, d in found],
        "text": [f"trial {t.number} paused<br>{escape(d.reason)}" for t, d in found],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": marker,
    }
    return [trace]
