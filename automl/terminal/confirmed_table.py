"""Results of `automl confirm` as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from reports.phrases import plural, value_in_words
from reports.recommending import confirmed_value


def confirmed_table(confirmed: Mapping[str, Any]) -> Table:
    """Return the figures of each confirmed point beside the search's values."""
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
                _cell(name, row["validation"].get(name)),
                _cell(name, row["test"].get(name)),
            )
            made.add_row(*map(Text, cells))
    return made


def _cell(name: str, spread: Mapping[str, Any] | None) -> str:
    if spread is None:
        return ""
    return confirmed_value({"metrics": {name: spread}}, name)
