"""Learning rates by effective batch, with the scaling rule."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.phrases import metric, number
from reports.plotting import (
    ARCHIVE,
    COLOURS,
    DRAWN_STATES,
    Figure,
    Trace,
    axis,
    escape,
    figure,
    log_ticks,
    markers,
    sampled,
    short,
)
from studies.records.records import Objective, StudyRecord, TrialRecord
from studies.records.suggested_parameters import known_space
from studies.results.recommendation import Recommendation
from trainers.commands.command import COMMAND

_POWERS = {"linear": 1.0, "sqrt": 0.5}
"""Power of the effective batch with which the learning rate grows, by scaling rule."""
FEWEST_BATCHES = 2
MOST_DOTS = 1500


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trained:
    trial: TrialRecord
    batch: float
    rate: float


def learning_rates(study: StudyRecord, taken: Recommendation | None) -> Figure | None:
    """Return learning rates by effective batch with the scaling rule as a line; None with fewer than two batches."""
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


def has_learning_rate(study: StudyRecord, trial: TrialRecord) -> bool:
    """Return whether a trial is in `with_learning_rate`, which computes it for all trials."""
    return trial.number in with_learning_rate(study)


def with_learning_rate(study: StudyRecord) -> frozenset[int | None]:
    """Return the trials that train with their facts' learning rate: no boosted trees, no functions without it."""
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


def _value(trial: TrialRecord, objective: Objective) -> float:
    return trial.epochs[-1].metrics.get(objective.metric, math.nan) if trial.epochs else math.nan


def _text(one: _Trained, objective: Objective) -> str:
    value = _value(one.trial, objective)
    lines = [f"trial {one.trial.number} {one.trial.state}"]
    lines += [f"{escape(objective.metric)} {escape(metric(objective.metric, value))}"] if math.isfinite(value) else []
    return "<br>".join([*lines, f"effective batch {number(one.batch)}", f"learning rate {number(one.rate)}"])
