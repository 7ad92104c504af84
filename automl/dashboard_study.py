"""Adds learning curves, best models, a timeline and decisions to Optuna Dashboard, as plots and notes."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import optuna

from reports.curve_figures import chosen, learned, learning_curves
from reports.figures import as_plotly, trade_off
from reports.phrases import plural, trial_reason, usd
from reports.plotting import COLOURS, DRAWN_STATES, Figure, Trace, axis, figure, titled, wrapped
from reports.recommending import confirmed_on_part, recommendation_lines
from studies.records.records import NANO, StudyRecord, TrialRecord
from studies.results import analysis

MOST_BARS = 200  # most trials in the timeline, the latest. More bars would be too thin to distinguish.
MOST_NOTES = 300
"""Most trials with notes, confirmed and latest trials first: the dashboard reads all notes for each trial."""
HEADING = "**Decisions**"  # first line of this project's notes. A note with another beginning is a user's, and stays.


def show(storage: Any, study: StudyRecord) -> None:
    """Save plots and notes in Optuna's tables."""
    import optuna_dashboard  # emits warnings on import, which the dashboard's application silences

    mirrored = optuna.load_study(study_name=study.name, storage=storage)
    for name, plain in _plots(study):
        identity = "automl-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in name)
        optuna_dashboard.save_plotly_graph_object(mirrored, as_plotly(plain), graph_object_id=identity)
    _note(mirrored, _about(study))
    ids = {trial.number: trial._trial_id for trial in mirrored.get_trials(deepcopy=False)}  # noqa: SLF001
    confirmed = {one.trial for one in study.confirmations}
    told = [one for one in study.started if one.decisions or one.number in confirmed]
    for trial in sorted(told, key=lambda one: one.number in confirmed)[-MOST_NOTES:]:
        if trial.number in ids:
            _note(_Noted(storage, mirrored, ids[trial.number]), reasons(study, trial))


def _plots(study: StudyRecord) -> Iterator[tuple[str, Figure]]:
    archive = analysis.archive(study)
    if archive:
        yield "archive", titled(trade_off(study, archive), "Archive: the best models, at any epoch of a trial")
    yield "timeline", titled(timeline(study.started, time.time()), "Timeline: training and pauses")
    trials = chosen(study, archive)
    for objective in learned(study):
        yield objective.metric, titled(learning_curves(trials, objective), f"{objective.metric} by epoch")


_MARKDOWN = re.compile(r"[\\`*\[\]<>&!$~|#]")


def _escaped(text: str) -> str:
    """Escape a text for Markdown: exceptions may contain HTML and links."""
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}", " ".join(text.split()))


def _about(study: StudyRecord) -> str:
    cost, trials_text = usd(study.cost_nano_usd / NANO), plural(len(study.started), "trial")
    paragraphs = [
        *map(_escaped, recommendation_lines(study)),
        f"{trials_text}, {study.state}, {cost} so far.",
        "Budget and forecasts: `automl report`, `automl explain`.",
    ]
    return "\n\n".join(paragraphs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Period in which a trial trained or was paused, in seconds since 1970."""

    trial: int
    state: str
    begin: float
    end: float
    text: str


def stretches(trial: TrialRecord, now: float) -> list[Stretch]:
    """Return a trial's periods, in order. The current period ends at `now`."""
    found: list[Stretch] = []
    attempts = trial.attempts
    for attempt, following in zip(attempts, [*attempts[1:], None], strict=True):
        begin, end = attempt.started_at.timestamp(), attempt.ended_at.timestamp() if attempt.ended_at else now
        name = f"trial {trial.number}"
        found.append(_stretch(trial, trial.state, begin, end, f"{name}, attempt {attempt.attempt}: {attempt.outcome}"))
        if attempt.outcome in {"paused", "cut"}:  # a trial cut before its first step is paused again
            ended = following.started_at if following else trial.ended_at
            until = now if ended is None else ended.timestamp()
            before = len(trial.epochs) if following is None else following.start_epoch
            made = [one for one in trial.decisions if one.action == "pause" and one.epoch <= before]
            said = f" at epoch {made[-1].epoch}: {made[-1].reason}" if made else ""
            found.append(_stretch(trial, "paused", end, until, f"{name} paused{said}"))
    return found


def _stretch(trial: TrialRecord, state: str, begin: float, end: float, text: str) -> Stretch:
    return Stretch(trial=trial.number or 0, state=state, begin=begin, end=max(begin, end), text=wrapped(text))


def timeline(trials: Sequence[TrialRecord], now: float) -> Figure:
    """Draw when the latest trials trained or were paused, until `now`."""
    every = [one for trial in trials[-MOST_BARS:] for one in stretches(trial, now)]
    drawn = [state for state in DRAWN_STATES if any(one.state == state for one in every)]
    height = 160 + 4 * min(len(trials), MOST_BARS)
    return figure(
        [_bars([one for one in every if one.state == state], state, COLOURS[state]) for state in drawn],
        height=height,
        barmode="overlay",
        xaxis=axis("", type="date"),
        yaxis=axis("trial", autorange="reversed"),
    )


def _bars(shown: Sequence[Stretch], state: str, colour: str) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "name": state,
        "y": [one.trial for one in shown],
        "base": [datetime.fromtimestamp(one.begin, tz=UTC).isoformat(timespec="milliseconds")[:-6] for one in shown],
        "x": [1000 * (one.end - one.begin) for one in shown],
        "text": [one.text for one in shown],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour, "opacity": 0.4 if state == "paused" else 1.0},
    }


def reasons(study: StudyRecord, trial: TrialRecord) -> str:
    """Return Markdown with a trial's decisions, state, and confirmed values."""
    told = [_escaped(f"epoch {one.epoch}: {one.action}: {one.reason}") for one in trial.decisions]
    lines = [HEADING, "", *(f"* {one}" for one in told)]
    lines += ["", _escaped(f"{trial.state}: {trial_reason(trial, study.name)}")]
    if trial.number is not None and (confirmed := confirmed_on_part(study, trial.number)):
        lines += ["", _escaped(f"confirmed {study.objectives[0].metric}: {confirmed}")]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Noted:
    """Trial for Optuna Dashboard's note functions. Optuna's own trial class would call the sampler."""

    storage: Any
    study: optuna.Study
    _trial_id: int


def _note(noted: optuna.Study | _Noted, text: str) -> None:
    import optuna_dashboard

    before = optuna_dashboard.get_note(noted)
    is_own = isinstance(noted, optuna.Study) or not before or before.startswith(HEADING)
    if is_own and before != text:
        optuna_dashboard.save_note(noted, text)
