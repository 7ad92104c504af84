"""The trials of a study that train now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from automl.terminal.tables import COLUMN_GAP, LEAST_PARAMS_COLUMNS, width_of
from automl.terminal.texts import cut, metric_text, params_text
from studies.records import StudyRecord, TrialRecord


def print_running(console: Console, record: StudyRecord, now: datetime) -> None:
    """Print the trials that train now, or that trained when their controller died; nothing if there are none."""
    running = [trial for trial in record.started if trial.state == "running" and trial.attempts]
    if not running:
        return
    title = "trials that ran when their controller died" if record.is_abandoned else "running trials"
    names = ["trial", "epochs", "ranks", "slots", "since", *(objective.metric for objective in record.objectives)]
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    for name in names:
        table.add_column(Text(name), no_wrap=True, justify="right")
    rows = [_cells(record, trial, now) for trial in running]
    left = console.width - width_of(names, rows) - COLUMN_GAP
    if left >= LEAST_PARAMS_COLUMNS:
        table.add_column("params", no_wrap=True)
    for trial, cells in zip(running, rows, strict=True):
        params = [cut(params_text(trial.params), left)] if left >= LEAST_PARAMS_COLUMNS else []
        table.add_row(*(Text(cell) for cell in (*cells, *params)))
    console.print(table)
    if left < LEAST_PARAMS_COLUMNS:
        for trial in running:
            console.print(Text(f"  trial {trial.number}: {params_text(trial.params)}", style="dim"))


def _cells(record: StudyRecord, trial: TrialRecord, now: datetime) -> list[str]:
    attempt, values = trial.attempts[-1], trial.values(record.objectives)
    training = record.spec.get("training")
    epochs = training.get("epochs") if isinstance(training, Mapping) else None
    return [
        str(trial.number),
        f"{len(trial.epochs)}/{epochs}" if epochs else str(len(trial.epochs)),
        str(attempt.world_size),
        ",".join(map(str, attempt.slots)),
        f"{max((now - attempt.started_at).total_seconds(), 0.0):.0f} s",
        *(metric_text(objective.metric, values.get(objective.metric)) for objective in record.objectives),
    ]
