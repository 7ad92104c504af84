"""Runs in tables (CSV, TSV, Parquet): a row for each run, as W&B exports them, and W&B's exported curves of a plot."""

import math
from collections.abc import Mapping, Sequence

from automl.histories.history import Curve, History, Run, state_of
from studies.spec.spec_errors import SpecError
from trainers.protocol import TaskError
from trainers.tasks.table.files import Form, read_table, texts

Columns = Mapping[str, Sequence[str | None]]
_BETWEEN = " - "
"""Separates run and metric in the names of columns of curves."""
_RANGES = ("__MIN", "__MAX")
"""Endings of further columns of each curve."""


def read_tables(paths: Sequence[str]) -> History:
    """Read a table of runs, and files of curves of its runs. SpecError names file and problem."""
    tables = {path: _columns(path) for path in paths}
    curved = [path for path, names in tables.items() if _are_of_curves(list(names))]
    if len(tables) - len(curved) != 1:
        problem = f"found {len(tables) - len(curved)} tables of runs beside {len(curved)} files of curves, allowed: one"
        raise SpecError(", ".join(paths), (), f"{problem}. Add the table of the curves' runs: --from runs.csv")
    curves: dict[str, dict[str, Curve]] = {}
    for path in curved:
        (_, steps), *columns = tables[path].items()
        for name, values in columns:
            run, _, metric = name.rpartition(_BETWEEN)
            points = {_number(at): _number(value) for at, value in zip(steps, values, strict=True) if value is not None}
            curves.setdefault(run, {}).update({} if metric.endswith(_RANGES) else {metric: points})
    (source,) = tables.keys() - set(curved)
    rows = [dict(zip(tables[source], row, strict=True)) for row in zip(*tables[source].values(), strict=True)]
    names = [row.get("Name") for row in rows]
    if wrong := [name for name in curves if names.count(name) != 1]:
        problem = f"found {names.count(wrong[0])} rows with the Name {wrong[0]!r}, allowed: one for each curve"
        raise SpecError(source, (), f"{problem}. Export both files again, with a Name for each run")
    return History(source=source, runs=tuple(_run(row, curves.get(row.get("Name") or "", {})) for row in rows))


def _are_of_curves(names: Sequence[str]) -> bool:
    """Return whether a table has a step first, and then a column for each run."""
    return len(names) > 1 and all(_BETWEEN in one for one in names[1:])


def _columns(path: str) -> Columns:
    try:
        table = read_table(path, Form(header=True, missing=("",)))
    except TaskError as error:
        raise SpecError("--from", (), str(error)) from None
    return {name: texts(column).to_pylist() for name, column in table.columns.items()}


def _run(row: Mapping[str, str | None], curves: Mapping[str, Curve]) -> Run:
    return Run(
        state=state_of(row.get("State") or row.get("state") or ""),
        values={name: cell for name, cell in row.items() if cell is not None},
        curves=curves,
        seconds=_number(row.get("Runtime") or row.get("seconds") or ""),
    )


def _number(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        return math.nan
