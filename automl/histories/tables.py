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
    curved = [
        path for path, (row, *_) in tables.items() if "State" not in row and any(_BETWEEN in name for name in row)
    ]
    if len(tables) - len(curved) != 1:
        problem = f"found {len(tables) - len(curved)} tables of runs beside {len(curved)} files of curves, allowed: one"
        raise SpecError(", ".join(paths), (), f"{problem}. Add the table of the curves' runs: --from runs.csv")
    (source,) = tables.keys() - set(curved)
    curves: dict[str, dict[str, Curve]] = {}
    for path in curved:
        _add_curves(tables[path], curves)
    runs = [_run(row, f"row {place}", curves) for place, row in enumerate(tables[source], start=2)]
    names = [run.name for run in runs]
    if wrong := [name for name in curves if names.count(name) != 1]:
        problem = f"found {names.count(wrong[0])} rows with the Name {wrong[0]!r}, allowed: one for each curve"
        raise SpecError(source, (), f"{problem}. Export both files again, with a Name for each run")
    return History(source=source, runs=tuple(runs))


def _rows(path: Path) -> list[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file) if any(line)]
    except OSError as error:
        raise SpecError(str(path), (), f"cannot be read ({error.strerror}){near_file(path, '*.csv')}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise SpecError(str(path), (), f"is no CSV file in UTF-8 ({error})") from None
    if len(lines) < 2:
        raise SpecError(str(path), (), "found no rows, allowed: a line of names, and a line for each run")
    # Of columns with one name the first counts, in W&B the configuration's.
    return [dict(reversed(list(zip(lines[0], line, strict=False)))) for line in lines[1:]]


def _add_curves(rows: Sequence[Row], curves: dict[str, dict[str, Curve]]) -> None:
    """Add columns `RUN - METRIC`; the first column of the file has the steps."""
    *columns, step = rows[0]
    for column in columns:
        run, _, metric = column.rpartition(_BETWEEN)
        if run and not metric.endswith(_RANGES):
            points = {_number(row[step]): _number(row.get(column, "")) for row in rows}
            curves.setdefault(run, {})[metric] = {at: value for at, value in points.items() if not math.isnan(value)}


def _run(row: Row, place: str, curves: Mapping[str, Mapping[str, Curve]]) -> Run:
    return Run(
        name=row.get("Name", place),
        state=state_of(row.get("State", row.get("state", ""))),
        values={name: cell for name, cell in reversed(row.items()) if cell},
        curves=curves.get(row.get("Name", place), {}),
        seconds=_number(row.get("Runtime", row.get("seconds", ""))),
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
