"""Runs in CSV files: a row for each run, as W&B exports them, and curves as W&B exports them from a plot."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from automl.histories.history import Curve, History, Run, state_of
from search_spaces.wording import near_file
from studies.spec.spec_errors import SpecError

Row = Mapping[str, str]
_BETWEEN = " - "
"""Separates run and metric in the names of columns of curves."""
_RANGES = ("__MIN", "__MAX")
"""Endings of further columns of each curve."""


def read_tables(paths: Sequence[str]) -> History:
    """Read a table of runs, and files of curves of its runs. SpecError names file and problem."""
    tables = {path: _rows(Path(path)) for path in paths}
    names = [path for path, rows in tables.items() if not _has_curves(rows[0])]
    if len(names) != 1:
        problem = f"found {len(names)} tables of runs, allowed: one, and files of their curves beside it"
        raise SpecError(", ".join(paths), (), f"{problem}. Export the table of runs, and add it: --from runs.csv")
    curves: dict[str, dict[str, Curve]] = {}
    for path in tables.keys() - {names[0]}:
        _add_curves(tables[path], curves)
    source, rows = names[0], tables[names[0]]
    runs = [_run(row, f"{source}: row {place}", curves) for place, row in enumerate(rows, start=2)]
    if unknown := curves.keys() - {run.name for run in runs}:
        raise SpecError(
            source, (), f"found curves of {min(unknown)!r}, which is no Name in the table. Export both again"
        )
    twice = {run.name for run in runs if run.curves and sum(one.name == run.name for one in runs) > 1}
    if twice:
        raise SpecError(
            source, (), f"found several runs {min(twice)!r}: their curves are mixed. Give each its own Name"
        )
    return History(source=source, runs=tuple(runs))


def _rows(path: Path) -> list[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head, *lines = [line for line in csv.reader(file) if any(line)] or [[]]
    except OSError as error:
        raise SpecError(str(path), (), f"cannot be read ({error.strerror}){near_file(path, '*.csv')}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise SpecError(str(path), (), f"is no CSV file in UTF-8 ({error}). Export it as CSV") from None
    if not lines:
        raise SpecError(str(path), (), "found no rows, allowed: a line of names, and a line for each run")
    # Of columns with one name the first counts, in W&B the configuration's.
    return [dict(reversed(list(zip(head, line, strict=False)))) for line in lines]


def _has_curves(row: Row) -> bool:
    return "State" not in row and any(_BETWEEN in name for name in row)


def _add_curves(rows: Sequence[Row], curves: dict[str, dict[str, Curve]]) -> None:
    """Add columns `RUN - METRIC`; the first column has the steps."""
    *columns, step = rows[0]
    for column in columns:
        run, _, metric = column.rpartition(_BETWEEN)
        if run and not metric.endswith(_RANGES):
            points = {_number(row[step]): _number(row.get(column, "")) for row in rows}
            curves.setdefault(run, {})[metric] = {at: value for at, value in points.items() if not math.isnan(value)}


def _run(row: Row, place: str, curves: Mapping[str, Mapping[str, Curve]]) -> Run:
    seconds = _number(row.get("Runtime", row.get("seconds", "")))
    return Run(
        name=row.get("Name", place),
        state=state_of(row.get("State", row.get("state", "")), place),
        values={name: cell for name, cell in reversed(row.items()) if cell},
        curves=curves.get(row.get("Name", place), {}),
        seconds=None if math.isnan(seconds) else seconds,
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
