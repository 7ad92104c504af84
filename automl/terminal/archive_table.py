"""The archive of a study as a table, with the command that exports its best model."""

from __future__ import annotations

import shlex

from rich import box
from rich.console import Console
from rich.table import Table

from automl.terminal.texts import number
from studies import analysis
from studies.records import StudyRecord

MOST_ROWS = 12


def print_archive(console: Console, record: StudyRecord) -> None:
    """Print the archive, the best model of the first objective first; nothing if it is empty."""
    first = record.objectives[0]
    points = sorted(analysis.archive(record), key=lambda point: first.signed(point.values[first.metric]))
    if not points:
        return
    names = [objective.metric for objective in record.objectives]
    table = Table("model", "state", *names, box=box.SIMPLE, title="archive: models to take", title_justify="left")
    for point in points[:MOST_ROWS]:
        table.add_row(f"{point.trial}@{point.epoch}", point.state, *(number(point.values[name]) for name in names))
    console.print(table)
    more = f"{len(points) - MOST_ROWS} more in the report. " if len(points) > MOST_ROWS else ""
    if record.is_simulated:
        console.print(f"{more}These models were simulated, so there is nothing to export.", highlight=False)
        return
    best = f"{points[0].trial}@{points[0].epoch}"
    command = f"automl export {shlex.quote(record.name)} {best} --out model.pt"
    console.print(f"{more}The first one as a file: {command}", highlight=False, markup=False)
