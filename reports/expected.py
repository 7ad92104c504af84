"""Draws forecasts, compares them with later measurements, and estimates the savings of pruning."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from reports.phrases import interval, plural, usd
from reports.phrases import metric as shown
from reports.plotting import ARCHIVE, COLOURS, Figure, Trace, axis, escape, figure, short
from search_spaces.messages import significant
from studies.money.budget import without_start
from studies.records.records import INTERVAL, NANO, DecisionRecord, Forecast, Objective, StudyRecord, TrialRecord
from studies.results.analysis import ArchivePoint
from studies.results.pareto import last_epoch, point
from trainers.commands.command import COMMAND

MOST_BANDS = 6  # most bands in a figure of learning curves, for the best forecasts: more bands hide each other
MOST_ENDS = 12  # most expected ends in a trade-off, for the same reason
PERCENT = f"{100 * INTERVAL:.0f} %"
COLOUR, FILL = COLOURS["running"], "rgba(59, 130, 196, 0.14)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The search's forecast of a trial's metric at an epoch."""

    epoch: int
    median: float
    low: float
    high: float


def ahead(trial: TrialRecord, metric: str) -> list[Expected]:
    """Return the latest forecasts beyond the trial's last epoch; empty for a finished trial."""
    made = _latest(trial)
    forecast = made.forecasts.get(metric) if made is not None else None
    return [] if forecast is None else [one for one in _of(forecast) if one.epoch > len(trial.epochs)]


def bands(trials: Iterable[TrialRecord], objective: Objective, floor: float | None) -> list[Trace]:
    """Draw forecasts of the most promising unfinished trials. The axis begins at `floor`."""
    known = [(trial, expected) for trial in trials if (expected := ahead(trial, objective.metric))]
    known.sort(key=lambda one: objective.signed(one[1][-1].median))
    known = known[:MOST_BANDS]
    if not known:
        return []
    xs: list[int | None] = []
    edges: list[float | None] = []
    line_xs: list[int | None] = []
    medians: list[float | None] = []
    texts: list[str | None] = []
    for trial, expected in known:
        last = trial.epochs[-1]
        start = last.metrics.get(objective.metric, math.nan)
        epochs = [one.epoch for one in expected]
        xs += [last.epoch, *epochs, *reversed(epochs), last.epoch, None]
        highs = [_shown(one.high, floor) for one in expected]
        lows = [_shown(one.low, floor) for one in reversed(expected)]
        edges += [_shown(start, floor), *highs, *lows, _shown(start, floor), None]
        line_xs += [last.epoch, *epochs, None]
        medians += [_shown(start, floor), *(_shown(one.median, floor) for one in expected), None]
        texts += [f"trial {trial.number}", *(_text(trial, objective.metric, one) for one in expected), None]
    group = {"legendgroup": "forecast", "type": "scatter", "connectgaps": False}
    band: Trace = {
        **group, "mode": "lines", "name": f"forecast, {PERCENT} interval", "x": xs, "y": edges, "fill": "toself",
        "fillcolor": FILL, "line": {"width": 0, "color": COLOUR}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    line: Trace = {
        **group, "mode": "lines+markers", "name": f"forecast, {PERCENT} interval", "x": line_xs, "y": medians,
        "text": texts, "line": {"color": COLOUR, "width": 1.2, "dash": "dot"}, "marker": {"size": 4, "color": COLOUR},
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    return [band, line]


def expected_ends(
    trials: Sequence[TrialRecord], archive: Sequence[ArchivePoint], objectives: tuple[Objective, Objective]
) -> list[Trace]:
    """Draw forecast final values of unfinished trials that may become best models."""
    known = _promising(trials, archive, objectives)
    texts = ["<br>".join(_text(trial, o.metric, e) for o, e in zip(objectives, ends, strict=True))
             for trial, ends in known]  # fmt: skip
    first, second = ([ends[place] for _, ends in known] for place in (0, 1))
    return [_uncertain(texts, x=first, y=second)] if known else []


def expected_places(
    trials: Sequence[TrialRecord],
    places: Mapping[int | None, int],
    archive: Sequence[ArchivePoint],
    objective: Objective,
) -> list[Trace]:
    """Draw forecast final values of one objective, at the trials' positions in the sorted list."""
    known = [one for one in _promising(trials, archive, (objective,)) if one[0].number in places]
    texts = [_text(trial, objective.metric, ends[0]) for trial, ends in known]
    if not known:
        return []
    return [{**_uncertain(texts, y=[ends[0] for _, ends in known]), "x": [places[trial.number] for trial, _ in known]}]


def _promising(
    trials: Sequence[TrialRecord], archive: Sequence[ArchivePoint], objectives: Sequence[Objective]
) -> list[tuple[TrialRecord, list[Expected]]]:
    """Return the unfinished trials that may become best models, with forecasts, by the first objective."""
    known = [(trial, ends) for trial in trials if (ends := _ends(trial, objectives))]
    known = [one for one in known if _may_enter(one[1], archive, objectives)]
    return sorted(known, key=lambda one: objectives[0].signed(one[1][0].median))[:MOST_ENDS]


def _uncertain(texts: Sequence[str], **ends: Sequence[Expected]) -> Trace:
    trace: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": f"expected at the last epoch ({PERCENT})",
        "text": list(texts),
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": "square-open", "size": 7, "color": COLOUR, "line": {"width": 1.5}},
    }
    for name, each in ends.items():
        trace[name] = [short(one.median) for one in each]
        trace[f"error_{name}"] = {
            "type": "data",
            "symmetric": False,
            "array": [short(one.high - one.median) for one in each],
            "arrayminus": [short(one.median - one.low) for one in each],
            "color": COLOUR,
            "thickness": 1,
            "width": 3,
        }
    return trace


def _latest(trial: TrialRecord) -> DecisionRecord | None:
    if trial.state in ("complete", "failed") or not trial.epochs:
        return None
    return next((one for one in reversed(trial.decisions) if one.forecasts), None)


def _of(forecast: Forecast) -> list[Expected]:
    return [
        Expected(epoch=epoch, median=forecast.median(place), low=low, high=high)
        for place, epoch in enumerate(forecast.epochs)
        for low, high in [forecast.interval(place)]
    ]


def _ends(trial: TrialRecord, objectives: Sequence[Objective]) -> list[Expected]:
    """Return forecast values at a trial's last epoch, with known values where training changes nothing."""
    if _latest(trial) is None or point(trial.epochs[-1], tuple(objectives)) is None:
        return []
    last, found, is_forecast = trial.epochs[-1], list[Expected](), False
    for objective in objectives:
        value, expected = last.metrics[objective.metric], ahead(trial, objective.metric)
        is_forecast |= bool(expected)
        known = Expected(epoch=last.epoch, median=value, low=value, high=value)
        found.append(expected[-1] if expected else known)
    return found if is_forecast else []


def _may_enter(ends: Sequence[Expected], archive: Sequence[ArchivePoint], objectives: Sequence[Objective]) -> bool:
    """Return whether the best corner of the forecast intervals beats each best model in an objective."""
    corner = [
        one.signed(end.low if one.direction == "minimize" else end.high)
        for one, end in zip(objectives, ends, strict=True)
    ]
    return all(
        any(best < one.signed(kept.values[one.metric]) for one, best in zip(objectives, corner, strict=True))
        for kept in archive
    )


def _shown(value: float, floor: float | None) -> float | None:
    return short(value if floor is None else max(value, floor))


def _text(trial: TrialRecord, name: str, one: Expected) -> str:
    ends = interval(name, one.median, one.low, one.high)
    median, low, high = (escape(shown(name, value)) for value in (one.median, *ends))
    span = f" ({low} to {high})" if one.low != one.high else ""
    return f"trial {trial.number} at epoch {one.epoch}: {escape(name)} {median} expected{span}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A measured forecast. `quantile` is the probability that it gave to smaller values."""

    trial: int
    made_at: int
    epoch: int
    metric: str
    quantile: float

    def is_inside(self, probability: float) -> bool:
        """Return whether the measurement is inside the central interval of this probability."""
        return abs(2 * self.quantile - 1) <= probability


def checked(study: StudyRecord) -> list[Checked]:
    """Return forecasts that were measured later, the last for each epoch, without certain values."""
    return [
        one
        for trial in study.started
        for made in {made.epoch: made for made in trial.decisions if made.forecasts}.values()
        for one in _checked(trial, made)
    ]


def share_inside(checks: Sequence[Checked], probability: float) -> float:
    """Return the share of measurements inside their central interval. `checks` must not be empty."""
    return sum(one.is_inside(probability) for one in checks) / len(checks)


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
_TELLS_NOTHING = 0.2  # largest deviation by chance at which the share inside the intervals is judged
_PROBABILITIES = tuple(round(0.05 * place, 2) for place in range(1, 20))
_COLOURS = (ARCHIVE, COLOURS["running"], COLOURS["complete"], COLOURS["paused"])


def calibration(study: StudyRecord) -> Figure | None:
    """Plot the share of measurements inside forecast intervals; above the diagonal, forecasts are too cautious."""
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
    """Describe for each objective the share of measurements inside their forecast intervals."""
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
    """Judge forecasts within two standard errors over trials, because a trial's values are correlated."""
    chance = 2 * math.sqrt(INTERVAL * (1 - INTERVAL) / trials)
    if abs(share - INTERVAL) <= chance:
        if chance > _TELLS_NOTHING:
            return "; there are too few trials to judge whether the forecasts were as certain as they should be"
        return ", so the forecasts were about as certain as they should be"
    found = "more cautious than they need be" if share > INTERVAL else "more certain than they should be"
    return f", so the forecasts were {found}"


RANDOM_CONTINUATION = "random continuation"  # prefix of the reason of a continuation by chance


@dataclass(frozen=True, kw_only=True, slots=True)
class Savings:
    """Epochs and dollars saved by stopping trials early."""

    stopped: int  # number of trials stopped or paused by a decision before the last epoch
    epochs: int  # epochs that these trials did not train
    usd: float  # price of these epochs in dollars, at each trial's mean price of an epoch
    continued: int
    found: int  # number of continued trials with a best model after the epoch of the avoided stop

    @property
    def missed(self) -> float | None:
        """Return the probable number of stopped trials with best models; None without a sample."""
        return self.stopped * self.found / self.continued if self.continued else None


def savings(study: StudyRecord, archive: Sequence[ArchivePoint]) -> Savings | None:
    """Return the savings of pruning; None without stopped trials or a known number of epochs."""
    planned = last_epoch(study.spec)
    if planned is None:
        return None
    stopped = [trial for trial in study.started if _was_stopped(trial, planned)]
    if not stopped:
        return None
    chances = [(trial, list(filter(is_by_chance, trial.decisions))) for trial in study.started]
    by_chance = [(trial, decisions[0]) for trial, decisions in chances if decisions]
    latest = {point.trial: point.epoch for point in sorted(archive, key=lambda one: one.epoch)}
    per_epoch = _usd_per_program_epoch(study) if study.spec.get("task") == COMMAND else _usd_per_epoch
    return Savings(
        stopped=len(stopped),
        epochs=sum(planned - trial.epochs[-1].epoch for trial in stopped),
        usd=sum((planned - trial.epochs[-1].epoch) * per_epoch(trial) for trial in stopped),
        continued=len(by_chance),
        found=sum(latest.get(trial.number or 0, 0) > first.epoch for trial, first in by_chance),
    )


def savings_lines(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[str]:
    """Describe the savings of pruning and the models it may have missed."""
    found = savings(study, archive)
    if found is None:
        return []
    spent = study.cost_nano_usd / NANO
    trials = f"{plural(found.stopped, 'trial')} {'was' if found.stopped == 1 else 'were'}"
    cost = f"Training them to the end would have cost {usd(found.usd)} more, for {plural(found.epochs, 'epoch')}"
    times = (
        f", {significant(found.usd / spent, 2)} times what the study has cost" if spent > 0 and found.usd > 0 else ""
    )
    lines = [f"{trials} stopped before the last epoch. {cost}{times}."]
    if not found.continued:
        return [*lines, "No trial went on by chance, so it is unknown what the stopped trials would have found."]
    sample = f"Of {plural(found.continued, 'trial')} that went on by chance although they looked poor"
    if not found.found:
        return [*lines, f"{sample}, none gave one of the best models."]
    missed = f"At that rate the stopped trials would have given about {max(1, round(found.missed or 0))} more."
    return [*lines, f"{sample}, {found.found} gave one of the best models. {missed}"]


def _was_stopped(trial: TrialRecord, planned: int) -> bool:
    """Return whether a decision ended the trial at its last epoch, before the planned end."""
    if trial.state not in ("pruned", "paused") or not trial.epochs or trial.epochs[-1].epoch >= planned:
        return False
    return any(one.action != "continue" and one.epoch >= trial.epochs[-1].epoch for one in trial.decisions)


def is_by_chance(decision: DecisionRecord) -> bool:
    """Return whether a trial continued by chance alone."""
    return decision.action == "continue" and decision.reason.startswith(RANDOM_CONTINUATION)


def _usd_per_epoch(trial: TrialRecord) -> float:
    return sum(one.cost_nano_usd for one in trial.epochs) / NANO / len(trial.epochs)


def _usd_per_program_epoch(study: StudyRecord) -> Callable[[TrialRecord], float]:
    """Return a function like `_usd_per_epoch` that leaves out the starts of programs.

    A trial of one epoch costs at most what the median trial of more epochs costs per epoch.
    """
    means = {
        trial.number: fmean(without_start([one.cost_nano_usd for one in trial.epochs])) / NANO
        for trial in study.started
        if len(trial.epochs) > 1
    }
    usual = median(means.values()) if means else math.inf
    return lambda trial: means.get(trial.number, min(_usd_per_epoch(trial), usual))
