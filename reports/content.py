"""Texts and tables of a study's page, as plain values for the template."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from reports.parameter_figures import parameter_names, with_learning_rate
from reports.phrases import (
    CENT,
    NOTHING,
    budget_amount,
    counted,
    duration,
    listed,
    mapping,
    metric,
    number,
    plural,
    study_sentence,
    trial_reason,
    usd,
    value_in_words,
)
from reports.plotting import cut
from reports.recommending import (
    command_of,
    confirmed_on_part,
    judged_of,
    last_quarter_in_words,
    named_value,
    plus_minus,
    tested_value,
    value_of,
)
from studies.records.plain_rows import flattened
from studies.records.records import NANO, StudyRecord, TrialRecord
from studies.results import analysis, constraints
from studies.results.analysis import ArchivePoint
from studies.results.baselines import baseline_trials, baselines
from studies.results.constraints import wanted_in_words
from studies.results.importance import Effects
from studies.results.pareto import last_epoch, reference_of
from studies.results.recommendation import best_points, ranked_points, recommended, standard_error, takeable

LONGEST_CELL, LONGEST_REASON = 48, 90
LEARNED = ("effective_batch", "base_learning_rate", "scaled_learning_rate")
"""Facts of the last attempt that are columns, for trials that train with a learning rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A table cell. `sort` is its sort key, `full` the whole text if `text` was cut."""

    text: str
    sort: str
    numeric: bool = False
    kind: str = ""
    full: str = ""

    @property
    def css(self) -> str:
        """CSS classes of the table cell."""
        return f"number {self.kind}".strip() if self.numeric else self.kind


Line = Mapping[str, Cell]  # cells of a trial by column; an unknown value has no cell


def trial_lines(study: StudyRecord, trials: Iterable[TrialRecord]) -> list[Line]:
    """Return the cells of `trial_rows`, with reasons, measured metrics and learned facts."""
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
            line["feasible"] = Cell(text="no", sort="no", full=constraints.violations(study, trial), kind="infeasible")
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
    """Return the table cell of a value. A cost below a cent also shows the training time `seconds`, if it is known."""
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


LOW_ENDING_SCHEDULES = frozenset({"cosine", "one_cycle", "one-cycle", "onecycle"})
MOST_MATTERING = 2  # most parameters that the headline names for an objective
LEAST_MATTERING = 0.05  # smallest share of a parameter that the headline names
_HEADINGS = {
    "cost_usd": "paid",
    "world_size": "workers",
    "effective_batch": "effective batch",
    "base_learning_rate": "base rate",
    "scaled_learning_rate": "scaled rate",
}
"""Headings of the trials' table, by column."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A number at the top of the page, with a label and a note."""

    label: str
    value: str
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureRow:
    """Trials that failed for the same reason, with the command that shows a traceback."""

    count: str
    failure: str
    reason: str
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRow:
    """A saved model or a `baseline` in a table. `early`: before the end of its learning-rate schedule."""

    trial: int | None
    epoch: int | None
    state: str
    values: Sequence[Cell]
    confirmed: str = ""
    command: str = ""
    is_kept: bool = False
    early: bool = False
    is_recommended: bool = False
    baseline: str = ""
    test: str = ""  # judged objective on the test part
    more: Sequence[Cell] = ()  # by `more_names`
    is_best_of_trial: bool = True  # the recommended or best epoch of its trial

    @property
    def name(self) -> str:
        """Name for commands, such as `12@9`; empty for an untrained baseline."""
        return "" if self.trial is None else f"{self.trial}@{self.epoch}"


def lead(study: StudyRecord, archive: Sequence[ArchivePoint]) -> str:
    """Describe the study in one or two sentences."""
    cost = usd(study.cost_nano_usd / NANO)
    limit = study.budget["usd"].limit if "usd" in study.budget else None
    money = f"{cost} of {usd(limit)}" if limit is not None else cost
    if not study.started:
        return f"No trial has started yet. The study has cost {money}.{f' {ending(study)}' if study.error else ''}"
    source = f"{len({p.trial for p in archive})} of {plural(len(study.started), 'trial')}"
    kept = "worth keeping" if takeable(study) else "worth keeping, none of which was kept"
    found = f"{plural(len(archive), 'model')} {kept}, from {source}" if archive else "no model worth keeping"
    verb = "has so far found" if study.state == "running" else "found"
    words = last_quarter_in_words(study)
    gain = f" The last quarter of the money {words}." if words else ""
    return f"The search {verb} {found}, for {money}. {ending(study)}{gain}"


def ending(study: StudyRecord) -> str:
    """Describe a study's state, its reason and its error."""
    error = f" The error: {cut(study.error.rstrip('.'), 200)}." if study.error and study.state != "running" else ""
    return f"{study_sentence(study, 'It')}.{error}"


def earlier_line(study: StudyRecord) -> str:
    """Name the earlier studies from which the search learned; empty without any."""
    names = analysis.earlier_names(study)
    return f"The search had learned from {listed(names)}." if names else ""


def constraints_line(study: StudyRecord) -> str:
    """Describe the constraints, and how many trials satisfy them; empty without constraints."""
    if not study.constraints:
        return ""
    counted = constraints.nothing_feasible(study) or f"kept by {constraints.feasible_in_words(study)}"
    return f"A model counts if it keeps {wanted_in_words(study.constraints)}: {counted}."


def bests(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[tuple[str, str, str]]:
    """Return each objective's name and direction, best value, and model with this value."""
    found = []
    for objective, best in best_points(study, archive):
        others = [named_value(study, best, o.metric) for o in study.objectives if o != objective]
        word = "Lowest" if objective.direction == "minimize" else "Highest"
        where = f"trial {best.trial} after epoch {best.epoch}" + (f", {listed(others)}" if others else "")
        if told := confirmed_on_part(study, best.trial, best.epoch):
            where += f"; {study.objectives[0].metric} confirmed: {told}"
        found.append((f"{word} {objective.metric}", value_of(study, best, objective.metric), where))
    return found


def facts(study: StudyRecord) -> list[Fact]:
    """Return the numbers for the top of the page."""
    cost = study.cost_nano_usd / NANO
    notes = {name: _of_limit(study, name) for name in analysis.BUDGET_LINES}
    counts = counted(t.state for t in study.trials)
    if study.state != "running":
        counts = counts.replace(" queued", " never started")
    over = study.overshoot_nano_usd / NANO
    money_note = notes["usd"] + (f", {usd(over)} over" if over > 0 else "")
    reference = reference_of(study)
    volume = analysis.hypervolume(study)
    away = ", ".join(f"{name} {metric(name, value)}" for name, value in (reference or {}).items())
    return [
        Fact(label="Spent", value=usd(cost), note=money_note),
        Fact(label="Time", value=duration(study.alive_seconds), note=notes["hours"]),
        Fact(label="Trials started", value=number(len(study.started)), note=counts or notes["trials"]),
        Fact(
            label="Hypervolume",
            value=NOTHING if volume is None else number(volume),
            note=f"reference point: {away}" if away else "no reference point yet",
        ),
    ]


def mattered_lines(known: Mapping[str, Effects], taken: Mapping[str, object] | None = None) -> list[str]:
    """Name the recommended model's most important parameters, in a sentence for each objective."""
    lines = []
    for name, found in known.items():
        most = [one for one in found.shares if taken is None or one in taken][:MOST_MATTERING]
        words = [
            f"{one} ({found.shares[one]:.0%}, from {low:.0%} to {high:.0%})"
            for one in most
            if found.shares[one] >= LEAST_MATTERING
            for low, high in (found.bands[one],)
        ]
        if words:
            lines.append(f"What mattered most for {name}: {listed(words)}.")
    return lines


def _of_limit(study: StudyRecord, name: str) -> str:
    line = study.budget.get(name)
    if line is None or line.limit is None:
        return "no limit"
    words = budget_amount(name, line.limit)
    if name == "hours" and study.confirmations:
        return f"of {words} for the search; automl confirm, which has no limit of hours, is included"
    share = f" ({number(100 * line.spent / line.limit, 2)} %)" if line.limit > 0 else ""
    return f"of {words}{share}"


def failure_rows(study: StudyRecord) -> list[FailureRow]:
    """Return at most eight reasons of failed trials, the most frequent first."""
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


MORE: Mapping[str, str] = {"wall_seconds": "trained in", "latency_ms": "predicts in", "model_parameters": "parameters"}
"""Headings of metrics that are shown for each model, if no objective or constraint shows them."""


def more_names(study: StudyRecord) -> list[str]:
    """Return the measured metrics of `MORE` that no other column shows."""
    last = [trial.epochs[-1].metrics for trial in study.started if trial.epochs]
    shown = set(analysis.measured_names(study))
    if "cost_usd" in shown and all(one.get("cost_usd", 0.0) < CENT for one in last):
        shown.add("wall_seconds")
    return [name for name in MORE if name not in shown and any(name in one for one in last)]


def archive_rows(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[ModelRow]:
    """Return rows of the best models, the recommended model first."""
    planned = last_epoch(study.spec)
    schedule = mapping(study.spec.get("training")).get("schedule")
    with_rate = frozenset() if study.not_trained_here else with_learning_rate(study)
    rows = []
    taken, names, seen = recommended(study), more_names(study), set[int]()
    ranked = ranked_points(study, archive)
    for found in sorted(ranked, key=lambda one: taken is None or one != taken.point):
        trial = study.started[found.trial]
        low = str(trial.params.get("schedule", schedule)) in LOW_ENDING_SCHEDULES and _is_trained_by_us(study, trial)
        metrics = trial.epochs[found.epoch - 1].metrics
        rows.append(
            ModelRow(
                trial=found.trial,
                epoch=found.epoch,
                state=found.state,
                values=_values(study, metrics, standard_error(study, judged_of(study), found.trial, found.epoch)),
                test=tested_value(study, found.trial, found.epoch),
                more=[cell(name, metrics[name]) if name in metrics else _MISSING for name in names],
                is_best_of_trial=found.trial not in seen,
                confirmed=confirmed_on_part(study, found.trial, found.epoch),
                command=command_of(study, found),
                is_kept=bool(found.checkpoint),
                is_recommended=taken is not None and found == taken.point,
                early=low and planned is not None and found.epoch < planned and trial.number in with_rate,
            )
        )
        seen.add(found.trial)
    return rows


def _is_trained_by_us(study: StudyRecord, trial: TrialRecord) -> bool:
    """Return whether our trainer followed its schedule. False for functions and endless streams."""
    if any("models" in one.facts for one in trial.attempts):
        return False
    counted = [one.facts["samples"] for one in trial.attempts if "samples" in one.facts]
    of_all = mapping(study.spec.get("training")).get("samples_per_epoch", "auto")
    return not counted or any(counted) or trial.params.get("samples_per_epoch", of_all) != "auto"


def baseline_rows(study: StudyRecord) -> list[ModelRow]:
    """Return rows of the baselines. Trained baselines are also in the trials' table."""
    return [
        ModelRow(
            trial=one.trial,
            epoch=one.epoch,
            state="baseline",
            values=_values(study, one.measured),
            confirmed="" if one.trial is None else confirmed_on_part(study, one.trial, one.epoch),
            baseline=one.called,
            test="" if one.trial is None or one.epoch is None else tested_value(study, one.trial, one.epoch),
        )
        for one in baselines(study)
    ]


_MISSING = Cell(text=NOTHING, sort="", numeric=True)


def _values(study: StudyRecord, metrics: Mapping[str, float], stderr: float | None = None) -> list[Cell]:
    """Return a cell per objective and constrained metric, with a known 95 % interval of the deciding objective."""
    names, seconds, judged = analysis.measured_names(study), metrics.get("wall_seconds"), judged_of(study)
    cells = {name: cell(name, metrics[name], seconds) for name in names if name in metrics}
    if stderr is not None and judged in cells:
        text = f"{cells[judged].text}{plus_minus(judged, stderr, metrics[judged])}"
        cells[judged] = replace(cells[judged], text=text)
    return [cells.get(name, _MISSING) for name in names]


def trial_table(study: StudyRecord) -> tuple[list[tuple[str, bool]], list[list[Cell]]]:
    """Return columns (heading, whether numeric), and rows of baselines, then of started trials."""
    params = [f"params.{name}" for name in parameter_names(study)]
    names = ["trial", "state", *(f"values.{name}" for name in analysis.measured_names(study))]
    names += [*(["feasible"] if study.constraints else []), "epochs", "cost_usd", *params]
    names += [*([] if "params.world_size" in params else ["world_size"]), *LEARNED, "reason"]
    lines = trial_lines(study, study.started)
    numeric = {name: all(line[name].numeric for line in lines if name in line) for name in names}
    empty = {name: Cell(text=NOTHING, sort="", numeric=numeric[name]) for name in names}
    bare = {name: name.removeprefix("values.").removeprefix("params.") for name in names}
    heads = [(_HEADINGS.get(name, bare[name]), numeric[name]) for name in names]
    known = known_lines(study) if lines else []
    return heads, [[line.get(name, empty[name]) for name in names] for line in (*known, *lines)]
