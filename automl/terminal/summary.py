"""Prints the summary of `automl status` and `automl launch`, and tables of trials and models."""

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from automl.terminal.output import PIPE_COLUMNS
from automl.terminal.picture import GANG_COLUMNS, Picture, gang_cells, picture_of
from automl.terminal.texts import cut, late_views_text, params_text
from reports.baselines_on_page import baseline_lines
from reports.content import MORE, archive_rows, baseline_rows, known_lines, more_names, trial_lines
from reports.figures import hypervolume_in_words
from reports.phrases import budget_amount, plural, study_sentence, usd, value_in_words
from reports.recommending import command_of, confirmed_value, judged_of, last_quarter_in_words, recommendation_lines
from search_spaces.messages import listed
from studies.records.records import NANO, StudyRecord, TrialRecord
from studies.results import analysis, constraints
from studies.results.analysis import never_tried, never_tried_in_words
from studies.results.baselines import baselines
from studies.results.constraints import Bound, value_of, wanted_in_words
from studies.results.recommendation import ranked_points, recommended, takeable
from trainers.protocol import ParameterValue


def print_summary(console: Console, record: StudyRecord, *, report: str | None) -> None:
    """Print a study's state, money and best values, its running trials and best models."""
    picture = picture_of(record, time.time())
    rows = [
        *(("recommended" if not place else "", line) for place, line in enumerate(recommendation_lines(record))),
        *(("baselines" if not place else "", line) for place, line in enumerate(baseline_lines(record))),
        ("study", study_sentence(record)),
        ("error", cut(record.error or "", PIPE_COLUMNS)),
        ("slots", _slots(record)),
        ("trials", picture.trials),
        ("queued", _queued(record)),
        ("failure", _first_failure(record)),
        ("constraints", _constraints(record)),
        ("never tried", never_tried_in_words(record)),
        ("learned from", ", ".join(analysis.earlier_names(record))),
        ("cost", _cost(record)),
        ("budget", _budget(record)),
        ("best", picture.figures["best"]),
        ("hypervolume", hypervolume_in_words(record)),
        ("last quarter", last_quarter_in_words(record)),
        ("views", _views(record)),
        ("report", report or ""),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value:
            grid.add_row(Text(name, style="dim"), Text(value))
    console.print(grid)
    print_running(console, record, picture)
    print_archive(console, record)


def document_of(record: StudyRecord, *, report: str | None) -> dict[str, object]:
    """Return `analysis.summary` with `recommendation`, `baselines` and `never_tried`."""
    found = recommended(record)
    plain = None if found is None else analysis.jsonable(found.plain())
    compared = {"baselines": [one.plain() for one in baselines(record)], "never_tried": never_tried(record)}
    own = {name: analysis.jsonable(value) for name, value in compared.items()}
    return analysis.summary(record, report=report) | {"recommendation": plain} | own


def _slots(record: StudyRecord) -> str:
    """Return the existing slots, and the most that an autoscaler may add."""
    if record.most_slots is None or record.slots_there is None or not record.driven:
        return ""
    there = f"{record.slots_there} of up to {record.most_slots} are there"
    return f"{there}; the cluster's autoscaler is asked for the slots that trials still need"


def _queued(record: StudyRecord) -> str:
    if not record.enqueued:
        return ""
    from automl.stored.requests import what_keeps_waiting  # loads the spec's sections

    names, waits = listed(trial.name for trial in record.enqueued), what_keeps_waiting(record)
    return f"{len(record.enqueued)} enqueued, to be tried next ({names}){f'; {waits}' if waits else ''}"


def _first_failure(record: StudyRecord) -> str:
    started = record.started
    if not started or any(trial.state != "failed" for trial in started):
        return ""
    first = started[0]
    reason = cut(first.reason or str(first.failure), PIPE_COLUMNS)
    return f"trial {first.number}: {reason}; see automl explain {shlex.quote(record.name)} {first.number}"


def _views(record: StudyRecord) -> str:
    """Return a note on late copies. While a study runs, only failed copies count as late."""
    follows = record.state == "running" and record.driven
    late = [one for one in record.views if one.behind and (one.error or not follows) and not record.not_trained_here]
    return f"{late_views_text(late)}; see automl sync {shlex.quote(record.name)}" if late else ""


def _constraints(record: StudyRecord) -> str:
    if not record.constraints:
        return ""
    if nothing := constraints.nothing_feasible(record):
        return nothing
    violated = [_violation(bound, trials) for bound, trials in constraints.violators(record).items() if trials]
    wanted = f"{wanted_in_words(record.constraints)}: kept by {constraints.feasible_in_words(record)}"
    return "; ".join([wanted, *violated])


def _violation(bound: Bound, trials: Sequence[TrialRecord]) -> str:
    """Describe the violations of a bound, with the latest value, never rounded to the bound."""
    value = value_of(bound, trials[-1].epochs[-1].metrics)
    was, limit = value_in_words(bound.metric, value), value_in_words(bound.metric, bound.bound)
    if was == limit:
        was, limit = bound.told_apart(value)
    return f"{bound.name} {limit} violated by {len(trials)}, the latest trial {trials[-1].number} with {was}"


def _cost(record: StudyRecord) -> str:
    kinds = ", ".join(f"{kind} {usd(amount)}" for kind, amount in analysis.money_by_kind(record).items() if amount)
    over = f"; {usd(record.overshoot_nano_usd / NANO)} over the budget" if record.overshoot_nano_usd else ""
    return f"{usd(record.cost_nano_usd / NANO)} in {record.alive_seconds:.0f} s{f' ({kinds})' if kinds else ''}{over}"


def _budget(record: StudyRecord) -> str:
    lines = []
    for name, line in record.budget.items():
        if line.limit is not None:
            of_limit = plural(round(line.limit), "trial") if name == "trials" else budget_amount(name, line.limit)
            reserved = f" ({budget_amount(name, line.reserved)} reserved)" if line.reserved else ""
            lines.append(f"{budget_amount(name, line.spent)} of {of_limit}{reserved}")
    return ", ".join(lines)


COLUMN_GAP = 3
LEAST_PARAMS_COLUMNS = 30  # least useful width of the column of parameters, in characters
LEAST_REASON_COLUMNS = 12
_HEADINGS = {"world_size": "ranks", "cost_usd": "paid"}  # headings of columns with another heading than their name


def print_trials(console: Console, record: StudyRecord, trials: Sequence[TrialRecord] | None = None) -> None:
    """Print all or some trials, then baselines. A narrow terminal shows no payments and parameters."""
    trials = (*record.started, *record.enqueued) if trials is None else trials
    names = ["trial", "state", "epochs", "world_size", *(f"values.{one.metric}" for one in record.objectives)]
    names += [*(["confirmed"] if record.confirmations else []), *(["feasible"] if record.constraints else [])]
    lines = [*trial_lines(record, trials), *known_lines(record)]
    params: list[Mapping[str, ParameterValue]] = [*(one.params for one in trials), *({} for _ in known_lines(record))]
    reasons = [line["reason"].full or line["reason"].text for line in lines]

    def rows(names: Sequence[str]) -> list[list[str]]:
        return [[line[name].text if name in line else "" for name in names] for line in lines]

    has_cost = any(objective.metric == "cost_usd" for objective in record.objectives)
    with_paid = [*names, "cost_usd"]
    is_wide = console.width - width_of(_heads(with_paid), rows(with_paid)) - COLUMN_GAP >= LEAST_REASON_COLUMNS
    names = with_paid if is_wide or not has_cost else names  # the cost objective shows nearly the same
    heads, cells = _heads(names), rows(names)
    left = console.width - width_of(heads, cells) - COLUMN_GAP
    reason_columns = min(max(map(len, reasons), default=0), left)
    params_columns = left - reason_columns - COLUMN_GAP
    with_params = params_columns >= LEAST_PARAMS_COLUMNS
    table = Table(box=box.SIMPLE)
    for head in heads:
        table.add_column(Text(head), no_wrap=True, justify="left" if head == "state" else "right")
    for head in ("params", "reason") if with_params else ("reason",):
        table.add_column(head, no_wrap=True)
    for row, own, reason in zip(cells, params, reasons, strict=True):
        texts = [cut(params_text(own), params_columns)] if with_params else []
        table.add_row(*(Text(cell) for cell in (*row, *texts, cut(reason, reason_columns))))
    console.print(table)
    hidden = [*([] if "cost_usd" in names else ["paid"]), *([] if with_params else ["params"])]
    if cells and hidden:
        console.print(Text(f"a wider terminal shows {' and '.join(hidden)}; so does --format csv", style="dim"))


def _heads(names: Sequence[str]) -> list[str]:
    return [_HEADINGS.get(name, name.removeprefix("values.")) for name in names]


def width_of(names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of a table in characters, including the margin."""
    return sum(max(map(len, column)) + COLUMN_GAP for column in zip(names, *rows, strict=True)) + 2


def print_running(console: Console, record: StudyRecord, picture: Picture) -> None:
    """Print the running trials, or the trials that ran when their controller died, if there are any."""
    if not picture.gangs:
        return
    title = "trials that ran when their controller died" if record.is_abandoned else "running trials"
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    metrics = [one.metric for one in record.objectives]
    names, rows = (*GANG_COLUMNS, *metrics), [gang_cells(one, picture.planned, metrics) for one in picture.gangs]
    for name in names:
        table.add_column(Text(name), no_wrap=True, justify="right")
    left = console.width - width_of(names, rows) - COLUMN_GAP
    params = {trial.name: params_text(trial.params) for trial in record.started}
    if left >= LEAST_PARAMS_COLUMNS:
        table.add_column("params", no_wrap=True)
        rows = [(*row, cut(params[row[0]], left)) for row in rows]
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    if left < LEAST_PARAMS_COLUMNS:
        for gang in picture.gangs:
            console.print(Text(f"  trial {gang.trial}: {params[gang.trial]}", style="dim"))


MOST_ROWS = 12


def print_archive(console: Console, record: StudyRecord) -> None:
    """Print the best models, the recommended model first, then the baselines."""
    points = ranked_points(record, analysis.archive(record))
    if not points:
        return
    models, names = archive_rows(record, points), analysis.measured_names(record)
    best_of_trials = [one for one in models if one.is_best_of_trial]
    rows = [*best_of_trials[:MOST_ROWS], *baseline_rows(record)]
    with_confirmed, has_models = any(one.confirmed for one in (*models, *rows)), bool(takeable(record))
    heads = ["model", "state", *names, *([f"test {judged_of(record)}"] if record.has_test_values else [])]
    title = "archive: models to take" if has_models else "best epochs: no model was kept"
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    more = [MORE[name] for name in more_names(record)]
    for name in (*heads, *more, *([f"confirmed {names[0]}"] if with_confirmed else [])):
        table.add_column(Text(name))
    for one in rows:
        is_gone = has_models and not one.is_kept and not one.baseline and not record.not_trained_here
        state = f"{one.state}{', model not kept' if is_gone else ', recommended' if one.is_recommended else ''}"
        cells = [one.baseline or one.name, state, *(value.text for value in one.values)]
        cells += [one.test] if record.has_test_values else []
        cells += [value.text for value in one.more] or [""] * len(more)
        table.add_row(
            *map(Text, [*cells, *([one.confirmed] if with_confirmed else [])]), style="dim" if one.baseline else None
        )
    console.print(table)
    left = len(points) - len(best_of_trials[:MOST_ROWS])
    what = "more saved epoch" if has_models else "more epoch"
    told = f"{plural(left, what)} in the report. " if left else ""
    if record.not_trained_here:
        console.print(f"{told}The study {record.not_trained_here}, so there is nothing to export.", highlight=False)
        return
    best = recommended(record)
    command = command_of(record, points[0] if best is None else best.point)
    which = "first" if best is None else "recommended"
    told += f"To export the {which} model: {command}" if command else ""
    console.print(Text(told))


def confirmed_table(confirmed: Mapping[str, Any]) -> Table:
    """Return a table of confirmed metrics and the values that the search measured."""
    title = Text(
        f"{confirmed['study']}: each point with {plural(confirmed['seeds'], 'fresh seed')}", style="table.title"
    )
    made = Table(box=box.SIMPLE, title=title, title_justify="left")
    for name in ("model", "metric", "the search saw", "validation", "test"):
        made.add_column(name, no_wrap=True, justify="right")
    for row in confirmed["trials"]:
        for number, name in enumerate(dict.fromkeys([*row["search"], *row["validation"]])):
            saw = row["search"].get(name)
            cells = (
                f"{row['trial']}@{row['epoch']}" if number == 0 else "",
                name,
                value_in_words(name, saw),
                *(confirmed_value({"metrics": row[part]}, name) for part in ("validation", "test")),
            )
            made.add_row(*map(Text, cells))
    return made
