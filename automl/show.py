"""Records as text for a terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from studies import analysis
from studies.records import NANO, StudyRecord, TrialRecord

STOP_REASONS = {
    "budget_usd": "the dollars of the budget are used up",
    "budget_hours": "the hours of the budget are used up",
    "budget_trials": "all trials of the budget were run",
    "exhausted": "there is nothing left to try",
    "interrupted": "interrupted; `automl resume` goes on",
    "stopped": "stopped; `automl resume` goes on",
    "error": "an error",
}


LEAST_PARAMS_COLUMNS = 30
COLUMN_GAP = 3
PIPE_COLUMNS = 1000


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


def print_summary(console: Console, record: StudyRecord, *, report: str | None) -> None:
    """What became of a study."""
    states = analysis.summary(record)["trials"]
    assert isinstance(states, dict)  # noqa: S101 - the summary's form
    counted = ", ".join(f"{count} {state}" for state, count in states.items() if count and state != "queued")
    why = f": {STOP_REASONS.get(record.stop_reason or '', '')}" if record.stop_reason else ""
    rows = [
        ("study", f"{record.name} is {record.state}{why}"),
        ("trials", counted or "none"),
        ("cost", _cost(record)),
        ("budget", _budget(record)),
        ("best", _best(record)),
        ("hypervolume", number(analysis.hypervolume(record))),
        ("report", report or ""),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value:
            grid.add_row(Text(name, style="dim"), Text(value))
    console.print(grid)
    print_archive(console, record)


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
    first = f"{points[0].trial}@{points[0].epoch}"
    console.print(f"{more}automl export {record.name} {first} --out model.pt", highlight=False, markup=False)


def money(usd: float) -> str:
    """Dollars with four decimals, small amounts with three digits that say something."""
    return f"${usd:.4f}" if abs(usd) >= 0.01 or usd == 0 else f"${usd:.3g}"


def _cost(record: StudyRecord) -> str:
    kinds = ", ".join(f"{kind} {money(usd)}" for kind, usd in analysis.money_by_kind(record).items() if usd)
    over = f"; {money(record.overshoot_nano_usd / NANO)} over the budget" if record.overshoot_nano_usd else ""
    return f"{money(record.cost_nano_usd / NANO)} in {record.alive_seconds:.0f} s ({kinds}){over}"


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
    """Every started trial as a row of one line; what does not fit is cut, parameters before reasons."""
    names = ["trial", "state", "epochs", "ranks", *(objective.metric for objective in record.objectives)]
    rows = [_figures(record, trial) for trial in record.started]
    taken = sum(max(map(len, column)) + COLUMN_GAP for column in zip(names, *rows, strict=True))
    left = console.width - taken - COLUMN_GAP - 2
    reason_columns = min(max((len(trial.reason) for trial in record.started), default=0), left)
    params_columns = left - reason_columns - COLUMN_GAP
    with_params = params_columns >= LEAST_PARAMS_COLUMNS
    table = Table(box=box.SIMPLE)
    for name in names:
        table.add_column(name, no_wrap=True, justify="left" if name == "state" else "right")
    for name in ("params", "reason") if with_params else ("reason",):
        table.add_column(name, no_wrap=True)
    for cells, trial in zip(rows, record.started, strict=True):
        texts = [_cut(_params_text(trial.params), params_columns)] if with_params else []
        table.add_row(*(Text(cell) for cell in (*cells, *texts, _cut(trial.reason, reason_columns))))
    console.print(table)
    if rows and not with_params:
        console.print(Text("a wider terminal shows the parameters; so does --format csv", style="dim"))


def _figures(record: StudyRecord, trial: TrialRecord) -> list[str]:
    values = trial.values(record.objectives)
    figures = [number(values.get(objective.metric)) for objective in record.objectives]
    return [str(trial.number), trial.state, str(len(trial.epochs)), str(trial.world_size), *figures]


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
    }


def print_explanation(console: Console, record: StudyRecord, trial: TrialRecord) -> None:
    """The same for a person."""

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style))

    say(f"trial {trial.number} of {record.name} is {trial.state}: {trial.reason or 'it is under way'}", style="bold")
    say(f"  {_params_text(trial.params)}  world_size={trial.world_size}")
    values = values_text(trial.values(record.objectives))
    say(f"  {len(trial.epochs)} epochs, ${trial.paid_nano_usd / NANO:.6f}, {values}")
    for attempt in trial.attempts:
        ranks = "1 rank" if attempt.world_size == 1 else f"{attempt.world_size} ranks"
        start = f"  attempt {attempt.attempt}: {ranks}, from epoch {attempt.start_epoch + 1}"
        say(f"{start}, {attempt.outcome}{_rate_text(attempt.facts)}")
    for decision in trial.decisions:
        say(f"  epoch {decision.epoch}: {decision.action}: {decision.reason}")
        for name, value in decision.numbers.items():
            say(f"      {name} = {value}", style="dim")
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
