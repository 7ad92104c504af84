"""The table of trials as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence


def to_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of `trial_rows` as CSV, one column for each parameter (`params.x`) and each objective (`values.y`)."""
    flat: list[dict[str, object]] = []
    for row in rows:
        line: dict[str, object] = {}
        for name, value in row.items():
            if isinstance(value, Mapping):
                line |= {f"{name}.{key}": item for key, item in value.items()}
            else:
                line[name] = value
        flat.append(line)
    groups = list(rows[0]) if rows else ["trial", "state", "failure", "epochs", "world_size", "cost_usd", "reason"]
    seen = dict.fromkeys(column for line in flat for column in line)
    # A later row may be the first with a parameter: its column still stands beside the other parameters.
    columns = [c for group in groups for c in seen or groups if c == group or c.startswith(f"{group}.")]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
