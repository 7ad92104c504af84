"""Comparison of the forecasts behind decisions with later measurements: a figure and a sentence."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reports.phrases import plural
from reports.plotting import ARCHIVE, COLOURS, Figure, Trace, axis, escape, figure
from studies.records.forecasts import INTERVAL
from studies.records.records import DecisionRecord, StudyRecord, TrialRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A forecast and its measurement; `quantile` is the probability that the forecast gave to a smaller value."""

    trial: int
    made_at: int
    epoch: int
    metric: str
    quantile: float

    def is_inside(self, probability: float) -> bool:
        """Return whether the measurement lies in the central interval of this probability."""
        return abs(2 * self.quantile - 1) <= probability


def checked(study: StudyRecord) -> list[Checked]:
    """Return the forecasts whose epochs were measured, the last one of each epoch, except values known for certain."""
    return [one for trial in study.started for made in _latest(trial) for one in _checked(trial, made)]


def share_inside(checks: Sequence[Checked], probability: float) -> float:
    """Return the share of measurements within their central interval; `checks` must not be empty."""
    return sum(one.is_inside(probability) for one in checks) / len(checks)


def _latest(trial: TrialRecord) -> Iterable[DecisionRecord]:
    return {made.epoch: made for made in trial.decisions if made.forecasts}.values()


def _checked(trial: TrialRecord, made: DecisionRecord) -> Iterator[Checked]:
    for metric, forecast in made.forecasts.items():
        for place, epoch in enumerate(forecast.epochs):
            if not made.epoch < epoch <= len(trial.epochs):
                continue
            value = trial.epochs[epoch - 1].metrics.get(metric)
            quantile = None if value is None else forecast.quantile_of(place, value)
            if quantile is not None:
                yield Checked(
                    trial=trial.number or 0, made_at=made.epoch, epoch=epoch, metric=metric, quantile=quantile
                )


FEWEST_CHECKS = 10  # fewest measurements of an objective for a judgement of its forecasts
_TELLS_NOTHING = 0.2  # largest deviation by chance at which the share of values inside the intervals is still judged
_PROBABILITIES = tuple(round(0.05 * place, 2) for place in range(1, 20))
_COLOURS = (ARCHIVE, COLOURS["running"], COLOURS["complete"], COLOURS["paused"])


def calibration(study: StudyRecord) -> Figure | None:
    """Return the share of measurements inside forecast intervals; above the diagonal these are too cautious."""
    found = _by_metric(study)
    if not found:
        return None
    even: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "as it should be",
        "x": [0, 1],
        "y": [0, 1],
        "line": {"color": COLOURS["queued"], "width": 1, "dash": "dash"},
        "hoverinfo": "skip",
    }
    lines = [_line(metric, checks, colour) for (metric, checks), colour in zip(found.items(), _COLOURS, strict=False)]
    percent: dict[str, Any] = {"tickformat": ".0%", "range": [0, 1.02]}
    return figure(
        [even, *lines],
        height=340,
        xaxis=axis("probability of the interval", **percent),
        yaxis=axis("share that came true", **percent),
    )


def calibration_lines(study: StudyRecord) -> list[str]:
    """Return for each objective the number of measurements inside their forecasts, as sentences."""
    return [_sentence(metric, checks) for metric, checks in _by_metric(study).items()]


def _by_metric(study: StudyRecord) -> dict[str, list[Checked]]:
    every = checked(study)
    found = {one.metric: [each for each in every if each.metric == one.metric] for one in study.objectives}
    return {metric: checks for metric, checks in found.items() if len(checks) >= FEWEST_CHECKS}


def _line(metric: str, checks: Sequence[Checked], colour: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape(metric),
        "x": list(_PROBABILITIES),
        "y": [round(share_inside(checks, one), 4) for one in _PROBABILITIES],
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 5},
        "hovertemplate": "%{y:.0%} lay inside the %{x:.0%} interval<extra></extra>",
    }


def _sentence(metric: str, checks: Sequence[Checked]) -> str:
    inside = sum(one.is_inside(INTERVAL) for one in checks)
    trials = len({one.trial for one in checks})
    share = inside / len(checks)
    return (
        f"{metric}: of {plural(len(checks), 'value')} that were forecast and measured later, in "
        f"{plural(trials, 'trial')} that went on, {inside} ({100 * share:.0f} %) lay inside the {100 * INTERVAL:.0f} % "
        f"interval{_judged(share, trials)}."
    )


def _judged(share: float, trials: int) -> str:
    """Judge the forecasts within two standard errors. Counts trials: values of one trial are correlated."""
    chance = 2 * math.sqrt(INTERVAL * (1 - INTERVAL) / trials)
    if abs(share - INTERVAL) <= chance:
        if chance > _TELLS_NOTHING:
            return "; there are too few trials to judge whether the forecasts were as certain as they should be"
        return ", so the forecasts were about as certain as they should be"
    found = "more cautious than they need be" if share > INTERVAL else "more certain than they should be"
    return f", so the forecasts were {found}"
