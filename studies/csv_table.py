"""The table of trials as CSV, and the columns that tables of a study have wherever they are shown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

Row = Mapping[str, object]
TRIAL_COLUMNS = ("trial", "state", "failure", "epochs", "world_size", "cost_usd", "reason")
"""Columns of the trials of any study; parameters, objectives and constraints have more."""


def to_csv(rows: Sequence[Row]) -> str:
    """Rows of `trial_rows` as CSV, one column for each parameter (`params.x`) and each objective (`values.y`)."""
    columns, lines = flattened(rows, TRIAL_COLUMNS)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def flattened(rows: Sequence[Row], without_rows: Sequence[str]) -> tuple[list[str], list[dict[str, object]]]:
    """Return the columns of a table, and its rows with a column for each entry of a mapping (`params.x`).

    Args:
        rows: Rows of one table: all have the same entries, of which some are mappings.
        without_rows: Columns of a table without rows.
    """
    lines: list[dict[str, object]] = []
    for row in rows:
        line: dict[str, object] = {}
        for name, value in row.items():
            if isinstance(value, Mapping):
                line |= {f"{name}.{key}": item for key, item in value.items()}
            else:
                line[name] = value
        lines.append(line)
    if not rows:
        return list(without_rows), []
    seen = dict.fromkeys(column for line in lines for column in line)
    # A later row may be the first with a parameter: its column still stands beside the other parameters.
    columns = [c for group in rows[0] for c in seen if c == group or c.startswith(f"{group}.")]
    return columns, lines
