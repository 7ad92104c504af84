"""The archive of a study as a table, with the command that exports the model to take."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.recommending import command_of, confirmed_on_part
from reports.wording import value_in_words
from studies import analysis
from studies.baselines import baselines
from studies.recommendation import ranked_points, recommended, takeable
from studies.records import StudyRecord

MOST_ROWS = 12


def print_archive(console: Console, record: StudyRecord) -> None:
    """Print the archive, the best model of the first objective first, then the baselines; nothing if it is empty."""
    points = ranked_points(record, analysis.archive(record))
    if not points:
        return
    names = [objective.metric for objective in record.objectives]
    confirmed = [confirmed_on_part(record, point.trial, point.epoch) for point in points]
    columns = ["model", "state", *names, *([f"confirmed {names[0]}"] if any(confirmed) else [])]
    has_models = bool(takeable(record))
    title = "archive: models to take" if has_models else "archive: no model was kept"
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    for name in columns:
        table.add_column(Text(name))
    for point, told in list(zip(points, confirmed, strict=True))[:MOST_ROWS]:
        values = [value_in_words(name, point.values[name]) for name in names]
        is_gone = has_models and not point.checkpoint and not record.is_simulated
        state = f"{point.state}, model not kept" if is_gone else point.state
        cells = [f"{point.trial}@{point.epoch}", state, *values, *([told] if any(confirmed) else [])]
        table.add_row(*map(Text, cells))
    for one in baselines(record):
        values = [value_in_words(name, one.values.get(name)) for name in names]
        table.add_row(Text(one.called), "baseline", *values, *([""] if any(confirmed) else []), style="dim")
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
