"""Records as text for a terminal."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from studies import analysis
from studies.constraints import value_of, wanted_in_words
from studies.records import NANO, StudyRecord, TrialRecord, ViewRecord

STOP_REASONS = {
    "budget_usd": "the dollars of the budget are used up",
    "budget_hours": "the hours of the budget are used up",
    "budget_trials": "all trials of the budget were run",
    "exhausted": "there is nothing left to try",
    "not_worthwhile": "the next $10 buy less than budget.least_percent_per_10_usd",
    "interrupted": "interrupted; `automl resume` goes on",
    "stopped": "stopped; `automl resume` goes on",
    "error": "an error",
}

VIEW_NAMES = {"optuna": "Optuna", "mlflow": "MLflow"}
NUMBERS_IN_WORDS = {"rank": "place", "ranks_that_go_on": "places_that_go_on"}
"""A rank is one process of a trial everywhere else; what is stored keeps its names."""

LEAST_REASON_COLUMNS = 12
LEAST_PARAMS_COLUMNS = 30
COLUMN_GAP = 3
PIPE_COLUMNS = 1000
LONGEST_CAUSE = 160


def console() -> Console:
    """Where text goes: as wide as the terminal, and without cut lines in a pipe or a file."""
    made = Console()
    return made if made.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE_COLUMNS)


def number(value: float | None) -> str:
    """A figure of five digits."""
    return "" if value is None else f"{value:.5g}"


def values_text(values: Mapping[str, float]) -> str:
    """Objectives in one line."""
    return ", ".join(f"{name} {number(value)}" for name, value in values.items())


def state_text(name: str, state: str, *, driven: bool) -> str:
    """A study's state, and what to do about one whose controller died."""
    if state == "running" and not driven:
        return f"running, but nobody drives it; automl resume {shlex.quote(name)} goes on"
    return state


def print_summary(console: Console, record: StudyRecord, *, report: str | None) -> None:
    """What became of a study."""
    states = analysis.summary(record)["trials"]
    assert isinstance(states, dict)  # noqa: S101 - the summary's form
    counted = ", ".join(f"{count} {state}" for state, count in states.items() if count and state != "queued")
    state = state_text(record.name, record.state, driven=record.driven)
    why = f": {STOP_REASONS.get(record.stop_reason or '', '')}" if record.stop_reason else ""
    rows = [
        ("study", f"{record.name} is {state}{why}"),
        ("trials", counted or "none"),
        ("queued", _queued(record)),
        ("failure", _first_failure(record)),
        ("constraints", _constraints(record)),
        ("learned from", ", ".join(analysis.earlier_names(record))),
        ("cost", _cost(record)),
        ("budget", _budget(record)),
        ("best", _best(record)),
        ("hypervolume", number(analysis.hypervolume(record))),
        ("outlook", _outlook(record)),
        ("views", _views(record)),
        ("report", report or ""),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value:
            grid.add_row(Text(name, style="dim"), Text(value))
    console.print(grid)
    print_running(console, record, datetime.now(UTC))
    print_archive(console, record)


def _queued(record: StudyRecord) -> str:
    """What people have put into the queue; what the sampler keeps ready is nobody's concern."""
    count = sum(trial.state == "queued" and trial.origin == "enqueue" for trial in record.trials)
    return f"{count} of `automl enqueue` to be tried next" if count else ""


def _outlook(record: StudyRecord) -> str:
    words = analysis.next_10_usd_in_words(record)
    return f"the next $10 buy {words} more hypervolume" if words else ""


def print_running(console: Console, record: StudyRecord, now: datetime) -> None:
    """The trials that train now, or that trained when their controller died."""
    running = [trial for trial in record.started if trial.state == "running" and trial.attempts]
    if not running:
        return
    title = "trials that ran when their controller died" if record.is_abandoned else "running trials"
    names = [objective.metric for objective in record.objectives]
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    for name in ("trial", "epochs", "ranks", "slots", "since", *names):
        table.add_column(name, no_wrap=True, justify="right")
    rows = [_running_cells(record, trial, now) for trial in running]
    left = console.width - _columns(["trial", "epochs", "ranks", "slots", "since", *names], rows) - COLUMN_GAP
    if left >= LEAST_PARAMS_COLUMNS:
        table.add_column("params", no_wrap=True)
    for trial, cells in zip(running, rows, strict=True):
        params = [_cut(_params_text(trial.params), left)] if left >= LEAST_PARAMS_COLUMNS else []
        table.add_row(*(Text(cell) for cell in (*cells, *params)))
    console.print(table)
    if left < LEAST_PARAMS_COLUMNS:
        for trial in running:
            console.print(Text(f"  trial {trial.number}: {_params_text(trial.params)}", style="dim"))


def _running_cells(record: StudyRecord, trial: TrialRecord, now: datetime) -> list[str]:
    attempt, values = trial.attempts[-1], trial.values(record.objectives)
    training = record.spec.get("training")
    epochs = training.get("epochs") if isinstance(training, Mapping) else None
    return [
        str(trial.number),
        f"{len(trial.epochs)}/{epochs}" if epochs else str(len(trial.epochs)),
        str(attempt.world_size),
        ",".join(map(str, attempt.slots)),
        f"{max((now - attempt.started_at).total_seconds(), 0.0):.0f} s",
        *(number(values.get(objective.metric)) for objective in record.objectives),
    ]


def _first_failure(record: StudyRecord) -> str:
    """Of a study in which every trial failed, why the first one did."""
    started = record.started
    if not started or any(trial.state != "failed" for trial in started):
        return ""
    first = started[0]
    reason = _cut(first.reason or str(first.failure), PIPE_COLUMNS)
    return f"trial {first.number}: {reason}; see automl explain {shlex.quote(record.name)} {first.number}"


def _views(record: StudyRecord) -> str:
    """Views that are late: while a study runs they are always some commits behind, which is news with an error only."""
    follows = record.state == "running" and record.driven
    late = [one for one in record.views if one.behind and (one.error or not follows) and not record.is_simulated]
    return f"{late_views_text(late)}; see automl sync {shlex.quote(record.name)}" if late else ""


def late_views_text(late: Sequence[ViewRecord]) -> str:
    """`the view of MLflow (the cause) is not up to date yet`."""
    causes = [f" ({_middle_cut(one.error, LONGEST_CAUSE)})" if one.error else "" for one in late]
    names = [VIEW_NAMES.get(one.view, one.view) + cause for one, cause in zip(late, causes, strict=True)]
    ahead, verb = ("the view", "is") if len(names) == 1 else ("the views", "are")
    return f"{ahead} of {' and '.join(names)} {verb} not up to date yet"


def _middle_cut(text: str, most: int) -> str:
    """A long error without its middle: its kind stands first, and what lies at its bottom last."""
    return text if len(text) <= most else f"{text[: most // 3]} … {text[-(most - most // 3 - 3) :]}"


def print_archive(console: Console, record: StudyRecord, most: int = 12) -> None:
    """The archive as a table; its points are models to export."""
    points = sorted(analysis.archive(record), key=lambda p: p.values[record.objectives[0].metric])
    if not points:
        return
    names = [objective.metric for objective in record.objectives]
    table = Table("model", "state", *names, box=box.SIMPLE, title="archive: models to take", title_justify="left")
    for point in points[:most]:
        table.add_row(f"{point.trial}@{point.epoch}", point.state, *(number(point.values[name]) for name in names))
    console.print(table)
    more = f"{len(points) - most} more in the report. " if len(points) > most else ""
    if record.is_simulated:
        console.print(f"{more}These models were simulated, so there is nothing to export.", highlight=False)
        return
    first = f"{points[0].trial}@{points[0].epoch}"
    console.print(f"{more}automl export {record.name} {first} --out model.pt", highlight=False, markup=False)


def money(usd: float) -> str:
    """Dollars with four decimals, small amounts with three digits that say something."""
    return f"${usd:.4f}" if abs(usd) >= 0.01 or usd == 0 else f"${usd:.3g}"


def _constraints(record: StudyRecord) -> str:
    """What a model has to keep, how many trials do, and which bound others violate, with the latest such value."""
    if not record.constraints:
        return ""
    if nothing := analysis.nothing_feasible(record):
        return nothing
    measured = [trial for trial in record.started if trial.epochs]
    kept = sum(analysis.is_feasible(record, trial) is True for trial in measured)
    violated = [
        f"{bound.name} {number(bound.bound)} violated by {len(trials)}, the latest trial {trials[-1].number} with "
        f"{number(value_of(bound, trials[-1].epochs[-1].metrics))}"
        for bound, trials in analysis.violators(record).items()
        if trials
    ]
    wanted = f"{wanted_in_words(record.constraints)}: kept by {kept} of {len(measured)} measured trials"
    return "; ".join([wanted, *violated])


def _cost(record: StudyRecord) -> str:
    kinds = ", ".join(f"{kind} {money(usd)}" for kind, usd in analysis.money_by_kind(record).items() if usd)
    over = f"; {money(record.overshoot_nano_usd / NANO)} over the budget" if record.overshoot_nano_usd else ""
    return f"{money(record.cost_nano_usd / NANO)} in {record.alive_seconds:.0f} s{f' ({kinds})' if kinds else ''}{over}"


def _budget(record: StudyRecord) -> str:
    lines = [
        f"{number(line.spent)} of {number(line.limit)} {name}"
        + (f" ({number(line.reserved)} reserved)" if line.reserved else "")
        for name, line in record.budget.items()
        if line.limit is not None
    ]
    return ", ".join(lines)


def _best(record: StudyRecord) -> str:
    """The best value of each objective over the archive, with the model that has it: seldom the same one."""
    points, best = analysis.archive(record), []
    for objective in record.objectives if points else ():
        metric = objective.metric
        point = min(points, key=lambda p: objective.signed(p.values[metric]))
        best.append(f"{metric} {number(point.values[metric])} ({point.trial}@{point.epoch})")
    return ", ".join(best)


def print_trials(console: Console, record: StudyRecord) -> None:
    """Every started trial as a row of one line; what does not fit is left out or cut: parameters, payment, reasons."""
    trials = record.started
    names = ["trial", "state", "epochs", "ranks", *(objective.metric for objective in record.objectives)]
    names += [*(["feasible"] if record.constraints else []), "paid"]
    rows, reasons = [_figures(record, trial) for trial in trials], list(map(analysis.reason_in_words, trials))
    has_cost = any(objective.metric == "cost_usd" for objective in record.objectives)
    if has_cost and console.width - _columns(names, rows) - COLUMN_GAP < LEAST_REASON_COLUMNS:
        names, rows = names[:-1], [row[:-1] for row in rows]  # the objective says nearly the same
    left = console.width - _columns(names, rows) - COLUMN_GAP
    reason_columns = min(max(map(len, reasons), default=0), left)
    params_columns = left - reason_columns - COLUMN_GAP
    with_params = params_columns >= LEAST_PARAMS_COLUMNS
    table = Table(box=box.SIMPLE)
    for name in names:
        table.add_column(name, no_wrap=True, justify="left" if name == "state" else "right")
    for name in ("params", "reason") if with_params else ("reason",):
        table.add_column(name, no_wrap=True)
    for cells, trial, reason in zip(rows, trials, reasons, strict=True):
        texts = [_cut(_params_text(trial.params), params_columns)] if with_params else []
        table.add_row(*(Text(cell) for cell in (*cells, *texts, _cut(reason, reason_columns))))
    console.print(table)
    hidden = [*([] if "paid" in names else ["paid"]), *([] if with_params else ["params"])]
    if rows and hidden:
        console.print(Text(f"a wider terminal shows {' and '.join(hidden)}; so does --format csv", style="dim"))


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns of the terminal that a table of these cells takes, with its margin."""
    return sum(max(map(len, column)) + COLUMN_GAP for column in zip(names, *rows, strict=True)) + 2


def _figures(record: StudyRecord, trial: TrialRecord) -> list[str]:
    values = trial.values(record.objectives)
    figures = [number(values.get(objective.metric)) for objective in record.objectives]
    paid = money(trial.paid_nano_usd / NANO)
    if record.constraints:
        figures.append({True: "yes", False: "no", None: ""}[analysis.is_feasible(record, trial)])
    return [str(trial.number), trial.state, str(len(trial.epochs)), str(trial.world_size), *figures, paid]


def _cut(text: str, columns: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= columns else line[: max(columns - 1, 0)] + "…"


def _params_text(params: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={number(v) if isinstance(v, float) else v}" for k, v in params.items() if k != "world_size")


def explain(record: StudyRecord, trial: TrialRecord) -> dict[str, object]:
    """Why a trial is in its state: its decisions with their numbers, its attempts, its failure."""
    return {
        "study": record.name,
        "trial": trial.number,
        "state": trial.state,
        "failure": trial.failure,
        "reason": trial.reason,
        "params": analysis.jsonable(trial.params),
        "values": analysis.jsonable(trial.values(record.objectives)),
        "epochs": len(trial.epochs),
        "cost_usd": trial.paid_nano_usd / NANO,
        "decisions": [
            {"epoch": d.epoch, "action": d.action, "reason": d.reason, "numbers": analysis.jsonable(d.numbers)}
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
        **_feasibility(record, trial),
    }


def _feasibility(record: StudyRecord, trial: TrialRecord) -> dict[str, object]:
    """What an explanation says of constraints, if there are any."""
    if not record.constraints:
        return {}
    return {
        "feasible": analysis.is_feasible(record, trial),
        "bounded": analysis.jsonable(analysis.bounded(record, trial)),
        "violated": analysis.violations(record, trial) or None,
    }


def print_explanation(console: Console, record: StudyRecord, trial: TrialRecord) -> None:
    """The same for a person."""

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style))

    why = analysis.reason_in_words(trial) or "it is under way"
    say(f"trial {trial.number} of {record.name} is {trial.state}: {why}", style="bold")
    say(f"  {_params_text(trial.params)}  world_size={trial.world_size}")
    values = values_text(trial.values(record.objectives))
    say(f"  {len(trial.epochs)} epochs, {money(trial.paid_nano_usd / NANO)}, {values}")
    if record.constraints and trial.epochs:
        kept = f"feasible: {values_text(analysis.bounded(record, trial))}"
        violated = analysis.violations(record, trial)
        say(f"  {f'infeasible: {violated}' if violated else kept}")
    for attempt in trial.attempts:
        ranks = "1 rank" if attempt.world_size == 1 else f"{attempt.world_size} ranks"
        start = f"  attempt {attempt.attempt}: {ranks}, from epoch {attempt.start_epoch + 1}"
        say(f"{start}, {attempt.outcome}{_rate_text(attempt.facts)}")
    for decision in trial.decisions:
        say(f"  epoch {decision.epoch}: {decision.action}: {decision.reason}")
        for name, value in decision.numbers.items():
            say(f"      {NUMBERS_IN_WORDS.get(name, name)} = {value}", style="dim")
    if trial.error:
        say("  last error:")
        say("    " + trial.error.replace("\n", "\n    "))


def _rate_text(facts: Mapping[str, Any]) -> str:
    if not facts:
        return ""
    base, scaled = number(facts["base_learning_rate"]), number(facts["scaled_learning_rate"])
    return (
        f"; learning rate {base} scaled to {scaled} ({facts['lr_scaling']}) for batches of {facts['effective_batch']}"
    )
