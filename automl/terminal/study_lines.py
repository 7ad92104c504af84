"""Studies in a list, one line each (`automl list`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from automl.terminal.echo import echo
from reports.phrases import plural, usd
from reports.state_wording import state_text
from studies.records.records import NANO, StudyLine


def rows_of(lines: Iterable[StudyLine]) -> list[dict[str, Any]]:
    """Return studies as plain data: the JSON of `automl list --json`."""
    return [
        {
            "study": line.name,
            "state": line.state,
            "driven": line.driven,
            "trials": line.trials,
            "cost_usd": line.cost_nano_usd / NANO,
            "created_at": line.created_at.isoformat(timespec="seconds"),
        }
        for line in lines
    ]


def print_lines(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print studies, one line each."""
    for row in rows:
        state = state_text(row["study"], row["state"], driven=row["driven"])
        cost, trials = usd(row["cost_usd"]), plural(row["trials"], "trial")
        echo(f"{row['study']:30} {trials:>12}  {cost:>10}  {row['created_at']}  {state}")
