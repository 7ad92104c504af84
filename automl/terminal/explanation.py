"""`automl explain`: a trial's decisions with their numbers, its attempts and its failure."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from automl.terminal.texts import number_text, params_text, values_text
from reports.answers_on_page import answer_lines
from reports.parameter_figures import with_learning_rate
from reports.phrases import interval, metric, plural, trial_reason, usd
from studies.records.records import (
    INTERVAL,
    NANO,
    NEXT_10_USD_PERCENT,
    DecisionRecord,
    StudyRecord,
    TrialRecord,
    as_plain,
)
from studies.results import analysis, constraints

NUMBERS_IN_WORDS = {"rank": "place", "ranks_that_go_on": "places_that_go_on"}
"""Displayed names of a decision's numbers, because a rank is a process elsewhere."""

RESUMING = "resuming"
"""Fact of an attempt: parts of its state that could not resume. The value ends a sentence about the attempt."""


def explain(record: StudyRecord, trial: TrialRecord) -> dict[str, object]:
    """Return the document of `automl explain --json`."""
    return {
        "study": record.name,
        "trial": trial.number,
        "state": trial.state,
        "failure": trial.failure,
        "reason": trial.reason,
        "params": analysis.jsonable(trial.params),
        "is_advised": trial.is_advised,
        "values": analysis.jsonable(trial.values(record.objectives)),
        "epochs": len(trial.epochs),
        "cost_usd": trial.paid_nano_usd / NANO,
        "decisions": [
            {
                "epoch": d.epoch,
                "action": d.action,
                "reason": d.reason,
                "numbers": analysis.jsonable(d.numbers),
                "forecasts": as_plain(d.forecasts) or {},
            }
            for d in trial.decisions
        ],
        "attempts": [
            {
                "attempt": a.attempt,
                "world_size": a.world_size,
                "start_epoch": a.start_epoch,
                "outcome": a.outcome,
                "facts": analysis.jsonable(a.facts),
            }
            for a in trial.attempts
        ],
        "error": trial.error,
        "answers": {one.epoch: dict(one.answers) for one in record.tests if one.trial == trial.number and one.answers},
        **_feasibility(record, trial),
    }


def _feasibility(record: StudyRecord, trial: TrialRecord) -> dict[str, object]:
    """Return feasibility and constrained metrics; empty without constraints."""
    if not record.constraints:
        return {}
    return {
        "feasible": constraints.is_trial_feasible(record, trial),
        "bounded": analysis.jsonable(constraints.bounded(record, trial)),
        "violated": constraints.violations(record, trial) or None,
    }


def print_explanation(console: Console, record: StudyRecord, trial: TrialRecord) -> None:
    """Print the explanation of a trial's state."""

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style))

    say(f"trial {trial.number} of {record.name} is {trial.state}: {trial_reason(trial, record.name)}", style="bold")
    say(f"  {params_text(trial.params)}  world_size={trial.world_size}")
    if trial.is_advised:
        say("  the advisor proposed these parameters")
    say(f"  {_figures(record, trial)}")
    if record.constraints and trial.epochs:
        kept = f"feasible: {values_text(constraints.bounded(record, trial))}"
        violated = constraints.violations(record, trial)
        say(f"  {f'infeasible: {violated}' if violated else kept}")
    has_rate = trial.number in with_learning_rate(record)
    for attempt in trial.attempts:
        start = (
            f"  attempt {attempt.attempt}: {plural(attempt.world_size, 'rank')}, from epoch {attempt.start_epoch + 1}"
        )
        rate = _rate_text(attempt.facts) if has_rate else ""
        say(f"{start}, {attempt.outcome}{rate}")
        if RESUMING in attempt.facts:
            say(f"    attempt {attempt.attempt} {attempt.facts[RESUMING]}")
    for decision in trial.decisions:
        say(f"  epoch {decision.epoch}: {decision.action}: {decision.reason}")
        for line in _number_lines(decision):
            say(f"      {line}", style="dim")
    for one in record.tests:
        for line in answer_lines(record, one.trial, one.epoch) if one.trial == trial.number else []:
            say(f"  after epoch {one.epoch}: {line}")
    if trial.error:
        say("  last error:")
        say("    " + trial.error.replace("\n", "\n    "))


def resuming_note(record: StudyRecord) -> str | None:
    """Return a line about the first attempt that could not restore its whole state, or None."""
    found = [
        (str(attempt.facts[RESUMING]), trial.number, attempt.attempt)
        for trial in record.started
        for attempt in trial.attempts
        if RESUMING in attempt.facts
    ]
    if not found:
        return None
    what, trial_number, number = min(found, key=lambda one: one[0].startswith("would"))
    return f"trial {trial_number}, attempt {number} {what}"


def _figures(record: StudyRecord, trial: TrialRecord) -> str:
    paid, values = usd(trial.paid_nano_usd / NANO), values_text(trial.values(record.objectives))
    parts = [plural(len(trial.epochs), "epoch"), f"{paid} paid", values]
    return ", ".join(part for part in parts if part)


def _number_lines(decision: DecisionRecord) -> list[str]:
    lines = []
    for name, value in decision.numbers.items():
        if name == NEXT_10_USD_PERCENT:
            known = "unknown while the hypervolume is 0" if value is None else analysis.growth_in_words(float(value))
            lines.append(f"{name} = {known}")
        else:
            shown = number_text(value) if isinstance(value, float) else value
            lines.append(f"{NUMBERS_IN_WORDS.get(name, name)} = {shown}")
    return [*lines, *_forecast_lines(decision)]


def _forecast_lines(decision: DecisionRecord) -> list[str]:
    lines = []
    for name, forecast in decision.forecasts.items():
        low, high = interval(name, forecast.median(-1), *forecast.interval(-1))
        span = f", {100 * INTERVAL:.0f} % interval {metric(name, low)} to {metric(name, high)}" if low < high else ""
        lines.append(f"{name} at epoch {forecast.epochs[-1]}: {metric(name, forecast.median(-1))} expected{span}")
    return lines


def _rate_text(facts: Mapping[str, Any]) -> str:
    if not facts:
        return ""
    base, scaled = number_text(facts["base_learning_rate"]), number_text(facts["scaled_learning_rate"])
    if facts["lr_scaling"] == "none":  # a user's own loop may have other batches
        return f"; learning rate {base}, not scaled"
    return (
        f"; learning rate {base} scaled to {scaled} ({facts['lr_scaling']}) for batches of {facts['effective_batch']}"
    )
