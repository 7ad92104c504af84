"""Rows that the search has never seen, as a user hands them to a trained model: refused where they do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from search_spaces.wording import listed, nearest, shown
from trainers.protocol import TaskError


def check_rows(rows: Sequence[Mapping[str, object]], *, known: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse rows that are no mappings, or whose keys are not the columns that the model was trained on.

    Args:
        needed: Columns that a row must have, if only with the value None: a column that is left out by mistake would
            otherwise give a prediction from the other columns alone.
    """
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            what = f"found {shown(row)}, allowed: a mapping from each column to its value: {listed(needed)}"
            raise TaskError(f"rows: row {number}: {what}")
        check_columns(f"rows: row {number}", list(row), known=known, needed=needed, absent="None for a missing value")


def check_columns(
    where: str, names: Sequence[object], *, known: Sequence[str], needed: Sequence[str], absent: str = ""
) -> None:
    """Refuse names of columns that are unknown, and the lack of needed ones.

    Args:
        absent: What stands in for a value that is missing, for the message; empty if there is nothing.
    """
    unknown = [name for name in names if name not in known]
    missing = [name for name in needed if name not in names]
    if not unknown and not missing:
        return
    found = [f"the unknown column{'s' * (len(unknown) > 1)} {listed(map(shown, unknown))}"] if unknown else []
    found += [f"no column {listed(map(shown, missing))}"] if missing else []
    near = nearest(unknown[0], missing or known) if unknown else None
    allowed = f"{listed(needed)}{f'; {absent}' if absent else ''}{f'; did you mean {shown(near)}?' if near else ''}"
    raise TaskError(f"{where}: found {' and '.join(found)}, allowed: {allowed}")


def check_kind(rows: Iterable[object], kinds: tuple[type, ...], what: str) -> None:
    """Refuse anything but a list of values of some types."""
    if isinstance(rows, str | Path | Mapping):
        raise TaskError(f"rows: found {shown(rows)}, allowed: a list of {what}")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, kinds):
            raise TaskError(f"rows: row {number}: found {shown(row)}, allowed: a list of {what}")
