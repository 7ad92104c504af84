"""Texts and tables of the page: plain values for the template, from a study."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.hypervolume import outlook
from reports.learning_rates import with_learning_rate
from reports.parameters import parameter_names
from reports.plotting import cut
from reports.recommending import command_of, confirmed_on_part, value_in_words, value_of
from reports.wording import NOTHING, duration, listed, mapping, metric, number, plural, usd
from search_spaces.wording import significant
from studies import analysis, feasibility
from studies.analysis import ArchivePoint
from studies.baselines import Baseline, baseline_trials, baselines
from studies.constraints import columns, wanted_in_words
from studies.recommendation import best_points, ranked_points, takeable
from studies.records import NANO, StudyRecord, TrialRecord
from studies.reference_point import last_epoch, reference_of

LOW_ENDING_SCHEDULES = frozenset({"cosine", "one_cycle", "one-cycle", "onecycle"})
MOST_MATTERING = 2
"""Most parameters that the headline names for an objective."""
LEAST_MATTERING = 0.05
"""Smallest share of a parameter that the headline names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One number of the headline, its label, and a note that it can be compared with."""

    label: str
    value: str
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A table cell; `sort` is what its column is sorted by, `full` the whole text where it was cut."""

    text: str
    sort: str
    numeric: bool = False
    kind: str = ""
    full: str = ""

    @property
    def css(self) -> str:
        """Classes of the cell in the page."""
        return f"number {self.kind}".strip() if self.numeric else self.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureRow:
    """Trials that failed for the same reason: their count, the reason, and the command that shows a traceback."""

    count: str
    failure: str
    reason: str
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveRow:
    """An archive point as its table shows it.

    `early` means before the end of a schedule that ends low; `confirmed` is the first objective with fresh seeds.
    """

    point: ArchivePoint
    values: Sequence[Cell]
    command: str
    early: bool
    confirmed: str = ""


def lead(study: StudyRecord, archive: Sequence[ArchivePoint]) -> str:
    """Return the study in one or two plain sentences."""
    cost = usd(study.cost_nano_usd / NANO)
    limit = study.budget["usd"].limit if "usd" in study.budget else None
    money = f"{cost} of {usd(limit)}" if limit is not None else cost
    if not study.started:
        return f"No trial has started yet. The study has cost {money}.{f' {ending(study)}' if study.error else ''}"
    source = f"{len({p.trial for p in archive})} of {plural(len(study.started), 'trial')}"
    kept = "worth keeping" if takeable(study) else "worth keeping, none of which was kept"
    found = f"{plural(len(archive), 'model')} {kept}, from {source}" if archive else "no model worth keeping"
    verb = "has so far found" if study.state == "running" else "found"
    return f"The search {verb} {found}, for {money}. {ending(study)}{next_10_usd_line(study)}"


def ending(study: StudyRecord) -> str:
    """Return why the study is in its state, as a sentence."""
    if study.is_abandoned:
        return f"Its controller has died; `automl resume {shlex.quote(study.name)}` continues it."
    if study.state == "running":
        return "It is still running."
    why = study.why_ended
    verb = {"drained": "It is paused", "closed": "It ended", "failed": "It failed"}[study.state]
    error = f" The error: {cut(study.error.rstrip('.'), 200)}." if study.error else ""
    return (f"{verb} because {why}." if why else f"{verb}.") + error


def next_10_usd_line(study: StudyRecord) -> str:
    """Return what more money would buy, as a sentence; empty with a search that does not forecast it."""
    words = analysis.next_10_usd_in_words(study)
    return f" The next $10 would buy {words} more hypervolume." if words else ""


def earlier_line(study: StudyRecord) -> str:
    """Return the earlier studies that the search learned from, as a sentence; empty without any."""
    names = analysis.earlier_names(study)
    return f"The search had learned from {listed(names)}." if names else ""


def constraints_line(study: StudyRecord) -> str:
    """Return the constraints and how many trials keep them, as sentences; empty without constraints."""
    if not study.constraints:
        return ""
    counted = feasibility.nothing_feasible(study) or f"kept by {feasibility.feasible_in_words(study)}"
    return f"A model counts if it keeps {wanted_in_words(study.constraints)}: {counted}."


def bests(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[tuple[str, str, str]]:
    """Return for each objective its name with its direction, the best value, and the model that has it."""
    found = []
    for objective, best in best_points(study, archive):
        others = [f"{o.metric} {value_of(study, best, o.metric)}" for o in study.objectives if o != objective]
        word = "Lowest" if objective.direction == "minimize" else "Highest"
        where = f"trial {best.trial} after epoch {best.epoch}" + (f", with {listed(others)}" if others else "")
        if told := confirmed_on_part(study, best.trial, best.epoch):
            where += f"; {study.objectives[0].metric} confirmed: {told}"
        found.append((f"{word} {objective.metric}", value_of(study, best, objective.metric), where))
    return found


def facts(study: StudyRecord) -> list[Fact]:
    """Return the headline: dollars, time, trials, and what more dollars would buy, or else the hypervolume."""
    cost = study.cost_nano_usd / NANO
    notes = {name: _of_limit(study, name) for name in analysis.BUDGET_LINES}
    states = [t.state for t in study.trials]
    order = ("complete", "pruned", "failed", "running", "paused", "queued")
    words = {"queued": "queued" if study.state == "running" else "never started"}
    counts = [f"{states.count(s)} {words.get(s, s)}" for s in order if s in states]
    over = study.overshoot_nano_usd / NANO
    money_note = notes["usd"] + (f", {usd(over)} over" if over > 0 else "")
    reference = reference_of(study)
    volume = analysis.hypervolume(study)
    away = ", ".join(f"{name} {metric(name, value)}" for name, value in (reference or {}).items())
    return [
        Fact(label="Spent", value=usd(cost), note=money_note),
        Fact(label="Time", value=duration(study.alive_seconds), note=notes["hours"]),
        Fact(label="Trials started", value=number(len(study.started)), note=", ".join(counts) or notes["trials"]),
        _more_money(study)
        or Fact(
            label="Hypervolume",
            value=NOTHING if volume is None else number(volume),
            note=f"reference point: {away}" if away else "no reference point yet",
        ),
    ]


def _more_money(study: StudyRecord) -> Fact | None:
    """What further dollars would buy; None with a search that gives no estimate."""
    ahead = outlook(study)
    if ahead is None:
        return None
    note = (
        f"is how much better the best models together would get (their hypervolume) for {usd(ahead.usd)} more, by the "
        f"search's forecast; the last {usd(ahead.usd)} made it {significant(ahead.last_percent, 2)} %"
    )
    return Fact(label="More money", value=f"+{significant(ahead.percent, 2)} %", note=note)


def mattered_lines(shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return which parameters mattered most, as a sentence for each objective where that is known.

    Args:
        shares: Share of each parameter, by objective, in what single parameters explain, 0 to 1.
    """
    lines = []
    for name, found in shares.items():
        most = sorted(found, key=lambda one: -found[one])[:MOST_MATTERING]
        words = [f"{one} ({found[one]:.0%})" for one in most if found[one] >= LEAST_MATTERING]
        if words:
            lines.append(f"What mattered most for {name}: {listed(words)}.")
    return lines


def _of_limit(study: StudyRecord, name: str) -> str:
    line = study.budget.get(name)
    if line is None or line.limit is None:
        return "no limit"
    words = {"usd": usd(line.limit), "hours": duration(line.limit * 3600), "trials": number(line.limit)}[name]
    if name == "hours" and study.confirmations:
        return f"of {words} for the search; automl confirm, which has no limit of hours, is included"
    share = f" ({number(100 * line.spent / line.limit, 2)} %)" if line.limit > 0 else ""
    return f"of {words}{share}"


def failure_rows(study: StudyRecord) -> list[FailureRow]:
    """Return the reasons for which trials failed, the most frequent one first; at most eight."""
    groups: dict[tuple[str, str], list[int]] = {}
    for trial in study.started:
        if trial.state == "failed":
            groups.setdefault((trial.failure or "failed", cut(trial.reason, 200)), []).append(trial.number or 0)
    return [
        FailureRow(
            count=plural(len(numbers), "trial"),
            failure=failure.replace("_", " "),
            reason=reason,
            command=f"automl explain {shlex.quote(study.name)} {numbers[0]}",
        )
        for (failure, reason), numbers in sorted(groups.items(), key=lambda group: -len(group[1]))[:8]
    ]


def archive_rows(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[ArchiveRow]:
    """Return the archive, the best of the first objective first, with the command that exports each model."""
    trials = {t.number: t for t in study.started}
    planned = last_epoch(study.spec)
    schedule = mapping(study.spec.get("training")).get("schedule")
    with_rate = with_learning_rate(study)
    rows = []
    for found in ranked_points(study, archive):
        trial = trials[found.trial]
        low = str(trial.params.get("schedule", schedule)) in LOW_ENDING_SCHEDULES and _is_trained_by_us(study, trial)
        rows.append(
            ArchiveRow(
                point=found,
                values=[_value_cell(name, trial.epochs[found.epoch - 1].metrics) for name in measured_names(study)],
                command=command_of(study, found),
                early=low
                and planned is not None
                and found.epoch < planned
                and trial.number in with_rate
                and not study.is_simulated,
                confirmed=confirmed_on_part(study, found.trial, found.epoch),
            )
        )
    return rows


def _is_trained_by_us(study: StudyRecord, trial: TrialRecord) -> bool:
    """Whether the loop of our trainer, which follows the schedule, trained it: training functions and commands do not.

    They have no samples that our trainer counted; nor have streams, whose schedule comes down only where
    `samples_per_epoch` tells how long an epoch is. Functions tell their models.
    """
    if any("models" in one.facts for one in trial.attempts):
        return False
    counted = [one.facts["samples"] for one in trial.attempts if "samples" in one.facts]
    of_all = mapping(study.spec.get("training")).get("samples_per_epoch", "auto")
    return not counted or any(counted) or trial.params.get("samples_per_epoch", of_all) != "auto"


def baseline_rows(study: StudyRecord) -> list[tuple[Baseline, Sequence[Cell]]]:
    """Return the baselines with the cells of their metrics, for the table of the models."""
    return [
        (one, [_metric_cell(name, one.measured.get(name)) for name in measured_names(study)])
        for one in baselines(study)
    ]


def trial_table(study: StudyRecord) -> tuple[list[tuple[str, bool]], list[list[Cell]]]:
    """Return the columns (heading, whether numeric) and the rows of all started trials."""
    names = parameter_names(study)
    heads = [("trial", True), ("state", False), *((name, True) for name in measured_names(study))]
    heads += [("feasible", False)] if study.constraints else []
    heads += [("epochs", True), ("paid", True)]
    heads += [(name, all(_cell(trial.params.get(name)).numeric for trial in study.started)) for name in names]
    ranks = [] if "world_size" in names else ["workers"]
    heads += [(name, True) for name in (*ranks, "effective batch", "base rate", "scaled rate")]
    compared, with_rate = baseline_trials(study), with_learning_rate(study)
    rows = [
        _trial_row(study, trial, names, compared.get(trial.number or 0), has_rate=trial.number in with_rate)
        for trial in study.started
    ]
    heads.append(("reason", False))
    known = [one for one in baselines(study) if one.trial is None]
    return heads, [*(_known_row(study, one, len(heads)) for one in known if rows), *rows]


def _known_row(study: StudyRecord, one: Baseline, columns: int) -> list[Cell]:
    """The row of a baseline that needs no training."""
    values = [_metric_cell(name, one.measured.get(name)) for name in measured_names(study)]
    row = [
        Cell(text="", sort="-1", numeric=True),
        Cell(text="baseline", sort="baseline", kind="state-baseline"),
        *values,
    ]
    return [*row, *[Cell(text="", sort="")] * (columns - len(row) - 1), _reason_cell(one.name)]


def measured_names(study: StudyRecord) -> list[str]:
    """Return the metrics that the tables show: objectives, and the other metrics that constraints bound."""
    return [column.metric for column in columns(study.objectives, study.constraints)]


def _trial_row(
    study: StudyRecord, trial: TrialRecord, names: Sequence[str], baseline: str | None, *, has_rate: bool
) -> list[Cell]:
    known = trial.attempts[-1].facts if trial.attempts and has_rate else {}
    last = trial.epochs[-1].metrics if trial.epochs else {}
    state = trial.state + (f": {trial.failure}" if trial.failure else "")
    reason = analysis.reason_in_words(trial)
    learned = ("effective_batch", "base_learning_rate", "scaled_learning_rate")
    return [
        _cell(trial.number),
        Cell(text=state, sort=state, kind=f"state-{trial.state}"),
        *(_metric_cell(name, last.get(name)) for name in measured_names(study)),
        *([_feasible_cell(study, trial)] if study.constraints else []),
        _cell(len(trial.epochs)),
        _metric_cell("cost_usd", trial.paid_nano_usd / NANO),
        *(_cell(trial.params.get(name)) for name in names),
        *([] if "world_size" in names else [_cell(trial.world_size)]),
        *(_cell(known.get(name)) for name in learned),
        _reason_cell(f"baseline: {baseline}; {reason}" if baseline else reason),
    ]


def _feasible_cell(study: StudyRecord, trial: TrialRecord) -> Cell:
    feasible = feasibility.is_feasible(study, trial)
    if feasible is None:
        return Cell(text=NOTHING, sort="")
    word, why = ("yes", "") if feasible else ("no", feasibility.violations(study, trial))
    return Cell(text=word, sort=word, full=why, kind="" if feasible else "infeasible")


def _reason_cell(reason: str) -> Cell:
    return Cell(text=cut(reason, 90), sort=reason, full=reason if len(reason) > 90 else "", kind="reason")


def _cell(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(text=number(value), sort=_sortable(value), numeric=True)
    if value is None:
        return Cell(text=NOTHING, sort="", numeric=True)
    text = number(value)
    return Cell(text=cut(text), sort=text, full=text if len(text) > 48 else "")


def _metric_cell(name: str, value: float | None) -> Cell:
    text = NOTHING if value is None else metric(name, value)
    return Cell(text=text, sort="" if value is None else _sortable(value), numeric=True)


def _value_cell(name: str, metrics: Mapping[str, float]) -> Cell:
    """The cell of a model's metric: as in a sentence, with the seconds beside dollars below a cent."""
    value = metrics.get(name)
    text = NOTHING if value is None else value_in_words(name, value, metrics.get("wall_seconds"))
    return Cell(text=text, sort="" if value is None else _sortable(value), numeric=True)


def _sortable(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else ""
