"""The archive of a study as a table, with the export command for the recommended model."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.content import archive_rows, baseline_rows
from reports.recommending import command_of
from studies.records.records import StudyRecord
from studies.results import analysis
from studies.results.recommendation import ranked_points, recommended, takeable

MOST_ROWS = 12


def print_archive(console: Console, record: StudyRecord) -> None:
    """Print the archive, the best model of the first objective first, then the baselines; nothing if it is empty."""
    points = ranked_points(record, analysis.archive(record))
    if not points:
        return
    models, names = archive_rows(record, points), analysis.measured_names(record)
    rows = [*models[:MOST_ROWS], *baseline_rows(record)]
    with_confirmed, has_models = any(one.confirmed for one in (*models, *rows)), bool(takeable(record))
    title = "archive: models to take" if has_models else "archive: no model was kept"
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    for name in ("model", "state", *names, *([f"confirmed {names[0]}"] if with_confirmed else [])):
        table.add_column(Text(name))
    for one in rows:
        is_gone = has_models and not one.is_kept and not one.baseline and not record.is_simulated
        state = f"{one.state}, model not kept" if is_gone else one.state
        cells = [one.baseline or one.name, state, *(value.text for value in one.values)]
        table.add_row(
            *map(Text, [*cells, *([one.confirmed] if with_confirmed else [])]), style="dim" if one.baseline else None
        )
    console.print(table)
    more = f"{len(points) - MOST_ROWS} more in the report. " if len(points) > MOST_ROWS else ""
    if record.is_simulated:
        console.print(f"{more}These models were simulated, so there is nothing to export.", highlight=False)
        return
    best = recommended(record)
    command = command_of(record, points[0] if best is None else best.point)
    which = "first" if best is None else "recommended"
    told = f"To take the {which} one: {command}" if command else ""
    console.print(Text(f"{more}{told}"))
