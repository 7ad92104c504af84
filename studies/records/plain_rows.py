"""A study as tables for other programs: trials, epochs and charges, which join by `trial` and `attempt`.

Columns are named as in `trials --json`; amounts are in dollars.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from studies.records.records import NANO, StudyRecord
from studies.results.analysis import trial_rows

Row = Mapping[str, object]
TRIAL_COLUMNS = ("trial", "state", "failure", "epochs", "world_size", "cost_usd", "reason")
"""Columns of trials before parameters, objectives and constraints."""


def to_csv(rows: Sequence[Row]) -> str:
    """Return rows of trials as CSV; see `flattened`."""
    columns, lines = flattened(rows, TRIAL_COLUMNS)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def flattened(rows: Sequence[Row], without_rows: Sequence[str]) -> tuple[list[str], list[dict[str, object]]]:
    """Return columns (`without_rows` if there are no rows), and rows with a column per nested value (`params.x`)."""
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
    # A parameter may appear first in a later row: its column still goes beside the other parameters.
    columns = [c for group in rows[0] for c in seen if c == group or c.startswith(f"{group}.")]
    return columns, lines


Rows = list[dict[str, object]]
EPOCH_COLUMNS = ("trial", "epoch", "wall_seconds", "cost_usd", "is_milestone", "checkpoint", "measured_at")
CHARGE_COLUMNS = ("kind", "trial", "attempt", "slots", "seconds", "usd_per_slot_hour", "cost_usd", "charged_at")


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of a study. Rows have equal keys; values may be mappings by parameter or metric."""

    rows: Callable[[StudyRecord], Rows]
    columns: tuple[str, ...]


def epoch_rows(study: StudyRecord) -> Rows:
    """Return a row for each epoch: its own time and cost, and cumulative sums in `metrics`."""
    return [
        {
            "trial": trial.number,
            "epoch": epoch.epoch,
            "metrics": dict(epoch.metrics),
            "wall_seconds": epoch.wall_seconds,
            "cost_usd": epoch.cost_nano_usd / NANO,
            "is_milestone": epoch.is_milestone,
            "checkpoint": epoch.checkpoint,
            "measured_at": datetime.fromtimestamp(epoch.measured_at, UTC),
        }
        for trial in study.started
        for epoch in trial.epochs
    ]


def charge_rows(study: StudyRecord) -> Rows:
    """Return a row for each charge, oldest first; `trial` and `attempt` are None for overhead."""
    return [
        {
            "kind": charge.kind,
            "trial": charge.trial,
            "attempt": charge.attempt,
            "slots": charge.slots,
            "seconds": charge.seconds,
            "usd_per_slot_hour": charge.usd_per_slot_hour,
            "cost_usd": charge.cost_nano_usd / NANO,
            "charged_at": charge.charged_at,
        }
        for charge in study.charges
    ]


TABLES: Mapping[str, Table] = {
    "trials": Table(rows=trial_rows, columns=TRIAL_COLUMNS),
    "epochs": Table(rows=epoch_rows, columns=EPOCH_COLUMNS),
    "charges": Table(rows=charge_rows, columns=CHARGE_COLUMNS),
}
"""Tables by name."""
