"""A trial's columns as texts for terminal, report and pages, by the names of the CSV."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from reports.learning_rates import with_learning_rate
from reports.phrases import number, value_in_words
from reports.plotting import cut
from reports.recommending import confirmed_on_part
from reports.state_wording import trial_reason
from studies.records.plain_rows import flattened
from studies.records.records import StudyRecord, TrialRecord
from studies.results import analysis, feasibility
from studies.results.baselines import baseline_trials, baselines

LONGEST_CELL, LONGEST_REASON = 48, 90
LEARNED = ("effective_batch", "base_learning_rate", "scaled_learning_rate")
"""Facts of a trial's last attempt that are columns, of trials that train with a learning rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A table cell; `sort` is its sort key, `full` the whole text if it was cut."""

    text: str
    sort: str
    numeric: bool = False
    kind: str = ""
    full: str = ""

    @property
    def css(self) -> str:
        """CSS classes of the cell."""
        return f"number {self.kind}".strip() if self.numeric else self.kind


Line = Mapping[str, Cell]  # cells of a trial by column; an unknown value has no cell


def trial_lines(study: StudyRecord, trials: Iterable[TrialRecord]) -> list[Line]:
    """Return the cells of `trial_rows`, with reasons in words, `values.` of bounded metrics, and `learned` facts."""
    named, with_rate = baseline_trials(study), with_learning_rate(study)
    lines: list[Line] = []
    for trial in trials:
        row = analysis.trial_row(study, trial, named)
        last = trial.epochs[-1].metrics if trial.epochs else {}
        row["values"] = {name: last.get(name) for name in analysis.measured_names(study)}
        known = trial.attempts[-1].facts if trial.attempts and trial.number in with_rate else {}
        row |= {name: known.get(name) for name in LEARNED}
        _, (flat,) = flattened([row], ())
        line = {name: cell(name, value) for name, value in flat.items() if value is not None}
        baseline = None if trial.number is None else named.get(trial.number)
        line["trial"] = Cell(text=trial.name, sort=trial.name, numeric=True)
        line["state"] = _state(trial.state)
        line["reason"] = _reason(trial_reason(trial, study.name, baseline))
        if trial.number is not None and (told := confirmed_on_part(study, trial.number)):
            line["confirmed"] = Cell(text=f"@{line['confirmed.epoch'].text}: {told}", sort=told)
        if row.get("feasible") is False:
            line["feasible"] = Cell(text="no", sort="no", full=feasibility.violations(study, trial), kind="infeasible")
        lines.append(line)
    return lines


def known_lines(study: StudyRecord) -> list[Line]:
    """Return the cells of untrained baselines, by column."""
    return [
        {"state": _state("baseline"), "reason": _reason(one.name)}
        | {f"values.{name}": cell(name, value) for name, value in one.measured.items()}
        for one in baselines(study)
        if one.trial is None
    ]


def cell(name: str, value: object, seconds: float | None = None) -> Cell:
    """Return the cell of a column's value; `seconds` are shown beside dollars below a cent."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        metric_name = name.partition(".")[2] if name.startswith(("values.", "bounded.")) else name
        told = number(value) if name.startswith("params.") else value_in_words(metric_name, value, seconds)
        return Cell(text=told, sort=repr(float(value)) if math.isfinite(value) else "", numeric=True)
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) and name == "feasible" else number(value)
    return Cell(text=cut(text, LONGEST_CELL), sort=text, full=text if len(text) > LONGEST_CELL else "")


def _state(state: str) -> Cell:
    return Cell(text=state, sort=state, kind=f"state-{state}")


def _reason(reason: str) -> Cell:
    short = cut(reason, LONGEST_REASON)
    return Cell(text=short, sort=reason, full=reason if short != reason else "", kind="reason")
