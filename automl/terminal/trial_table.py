"""All trials of a study as a table with one line for each."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from automl.terminal.tables import COLUMN_GAP, LEAST_PARAMS_COLUMNS, width_of
from automl.terminal.texts import cut, metric_text, params_text
from reports.recommending import confirmed_on_part
from reports.wording import usd
from studies import analysis, feasibility
from studies.baselines import Baseline, baseline_trials, baselines
from studies.confirmations import confirmation_of
from studies.records import NANO, StudyRecord, TrialRecord
from trainers.protocol import ParameterValue

LEAST_REASON_COLUMNS = 12


def print_trials(console: Console, record: StudyRecord, trials: Sequence[TrialRecord] | None = None) -> None:
    """Print trials; a narrow terminal gets no payments and parameters, and cut reasons.

    Args:
        console: Console to print on.
        record: Study as committed.
        trials: Trials of the study in the order in which they are listed; None lists all, what is enqueued last.
            Baselines that need no training follow.
    """
    trials = (*record.started, *record.enqueued) if trials is None else trials
    names = ["trial", "state", "epochs", "ranks", *(objective.metric for objective in record.objectives)]
    names += [*(["confirmed"] if record.confirmations else []), *(["feasible"] if record.constraints else []), "paid"]
    known = [one for one in baselines(record) if one.trial is None]
    compared = {record.started[number].id: name for number, name in baseline_trials(record).items()}
    rows = [*(_cells(record, trial) for trial in trials), *(_known_cells(record, one, len(names)) for one in known)]
    reasons = [*(_reason(record, trial, compared.get(trial.id)) for trial in trials), *(one.name for one in known)]
    params: list[Mapping[str, ParameterValue]] = [*(trial.params for trial in trials), *({} for _ in known)]
    has_cost = any(objective.metric == "cost_usd" for objective in record.objectives)
    if has_cost and console.width - width_of(names, rows) - COLUMN_GAP < LEAST_REASON_COLUMNS:
        names, rows = names[:-1], [row[:-1] for row in rows]  # the objective says nearly the same
    left = console.width - width_of(names, rows) - COLUMN_GAP
    reason_columns = min(max(map(len, reasons), default=0), left)
    params_columns = left - reason_columns - COLUMN_GAP
    with_params = params_columns >= LEAST_PARAMS_COLUMNS
    table = Table(box=box.SIMPLE)
    for name in names:
        table.add_column(Text(name), no_wrap=True, justify="left" if name == "state" else "right")
    for name in ("params", "reason") if with_params else ("reason",):
        table.add_column(name, no_wrap=True)
    for cells, own, reason in zip(rows, params, reasons, strict=True):
        texts = [cut(params_text(own), params_columns)] if with_params else []
        table.add_row(*(Text(cell) for cell in (*cells, *texts, cut(reason, reason_columns))))
    console.print(table)
    hidden = [*([] if "paid" in names else ["paid"]), *([] if with_params else ["params"])]
    if rows and hidden:
        console.print(Text(f"a wider terminal shows {' and '.join(hidden)}; so does --format csv", style="dim"))


def _reason(record: StudyRecord, trial: TrialRecord, baseline: str | None) -> str:
    if trial.state == "queued":
        return f"`automl cancel {shlex.quote(record.name)} {trial.name}` takes it out of the queue"
    reason = analysis.reason_in_words(trial)
    return f"baseline: {baseline}; {reason}" if baseline else reason


def _known_cells(record: StudyRecord, one: Baseline, columns: int) -> list[str]:
    """The row of a baseline that needs no training."""
    figures = [metric_text(objective.metric, one.values.get(objective.metric)) for objective in record.objectives]
    cells = ["", "baseline", "", "", *figures]
    return [*cells, *[""] * (columns - len(cells))]


def _confirmed(record: StudyRecord, trial: int) -> str:
    """The first objective as confirmed, with the epoch of the point: `@6: 4 % ± 1.4 %, test`."""
    confirmed, told = confirmation_of(record, trial), confirmed_on_part(record, trial)
    return f"@{confirmed['epoch']}: {told}" if confirmed is not None and told else ""


def _cells(record: StudyRecord, trial: TrialRecord) -> list[str]:
    values = trial.values(record.objectives)
    figures = [metric_text(objective.metric, values.get(objective.metric)) for objective in record.objectives]
    paid = usd(trial.paid_nano_usd / NANO)
    if record.confirmations:
        figures.append("" if trial.number is None else _confirmed(record, trial.number))
    if record.constraints:
        figures.append({True: "yes", False: "no", None: ""}[feasibility.is_feasible(record, trial)])
    return [trial.name, trial.state, str(len(trial.epochs)), str(trial.world_size), *figures, paid]
