"""Reads runs from tables (CSV, TSV, Parquet, W&B's exports), MLflow, Optuna and Ray Tune."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from automl.histories.translation import Curve, History, Run, state_of
from automl.launching.earlier_studies import metric_names, optuna_storage
from search_spaces.messages import found, listed, nearest
from search_spaces.untrusted_text import redact
from studies.records.records import Direction
from studies.spec.spec_errors import SpecError
from studies.storage.schema.engine import StoreError, absolute_url
from studies.storage.views.mlflow_connect import check_database, import_quietly, in_one_line, sqlite_file
from studies.storage.views.view_rows import ViewError
from trainers.protocol import TaskError
from trainers.tasks.table.files import Form, read_table, texts

if TYPE_CHECKING:
    import optuna
    from mlflow.entities import Run as MlflowRun
    from mlflow.tracking import MlflowClient

MOST_RUNS = 50_000  # most that MLflow returns at once
_STEP = "training_iteration"
Columns = Mapping[str, Sequence[str | None]]
_BETWEEN = " - "  # separator of run and metric in column names of curves
_RANGES = ("__MIN", "__MAX")  # endings of further columns of a curve


def read_mlflow(place: str, curves_of: Collection[str]) -> History:
    """Read the runs of an MLflow experiment, `[URI#]EXPERIMENT`. Raises SpecError if it is missing."""
    uri, _, name = place.rpartition("#")
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    source = f"mlflow:{redact(uri)}#{name}"
    import_quietly()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        if (file := sqlite_file(uri)) is not None and not file.exists():
            raise ViewError(f"there is no MLflow database {file}. Pass --from mlflow:URI#EXPERIMENT")
        check_database(uri)
        client = MlflowClient(uri)
        ids = {one.name: one.experiment_id for one in client.search_experiments()}
        _check_name(source, "an experiment", name, ids)
        runs = client.search_runs([ids[name]], max_results=MOST_RUNS, order_by=["attributes.start_time ASC"])
        return History(source=source, runs=tuple(_of_mlflow(client, one, curves_of) for one in runs))
    except (ViewError, MlflowException) as error:
        raise SpecError(source, (), in_one_line(error)) from None


def _check_name(source: str, kind: str, name: str, there: Collection[str]) -> None:
    if name not in there:
        raise SpecError(source, (), found(name, f"{kind} ({listed(there) or 'there is none'})", nearest(name, there)))


def _of_mlflow(client: MlflowClient, run: MlflowRun, curves_of: Collection[str]) -> Run:
    info, metrics = run.info, run.data.metrics
    return Run(
        state=state_of(info.status),
        values={**metrics, **run.data.params},  # a learning rate may be both; as a parameter it is constant
        curves={name: _mlflow_curve(client, info.run_id, name) for name in curves_of if name in metrics},
        seconds=None if info.end_time is None else (info.end_time - info.start_time) / 1000,
    )


def _mlflow_curve(client: MlflowClient, run_id: str, name: str) -> Curve:
    points = sorted(client.get_metric_history(run_id, name), key=lambda one: (one.step, one.timestamp))
    has_steps = len({one.step for one in points}) > 1
    return {float(one.step if has_steps else place): one.value for place, one in enumerate(points)}


def read_optuna(place: str, _: Collection[str]) -> History:
    """Read the trials of an Optuna study, `URL#NAME`. Unnamed objectives are `value`, or `values_0` etc."""
    url, _, name = place.rpartition("#")
    source = f"optuna:{redact(place)}"
    try:
        with optuna_storage(absolute_url(url, Path.cwd())) as storage:
            import optuna

            _check_name(source, "an Optuna study", name, [] if storage is None else optuna.get_all_study_names(storage))
            assert storage is not None  # noqa: S101 - it has the study
            study = optuna.load_study(study_name=name, storage=storage)
            directions = [cast("Direction", one.name.lower()) for one in study.directions]
            several = [f"values_{column}" for column in range(len(directions))]
            names = metric_names(study) or (several if len(several) > 1 else ["value"])
            runs = tuple(_of_optuna(trial, names) for trial in study.get_trials(deepcopy=False))
    except StoreError as error:
        raise SpecError(source, (), f"{error}. Pass --from optuna:URL#NAME") from None
    return History(source=source, runs=runs, directions=dict(zip(names, directions, strict=True)))


def _of_optuna(trial: optuna.trial.FrozenTrial, names: list[str]) -> Run:
    last = dict(zip(names, trial.values or (), strict=False))
    curve = {float(step): value for step, value in trial.intermediate_values.items()}
    if curve and trial.values:
        curve[max(curve)] = trial.values[0]  # an objective may return another value than its last report
    return Run(
        state=state_of(trial.state.name),
        values={**trial.user_attrs, **last, **trial.params},
        curves={names[0]: curve} if len(names) == 1 else {},
        seconds=None if trial.duration is None else trial.duration.total_seconds(),
    )


def read_ray(folder: str, _: Collection[str]) -> History:
    """Read the trials in a Ray Tune experiment's folder. Raises SpecError if there are none."""
    files = sorted(Path(folder).expanduser().glob("*/result.json"))
    if not files:
        problem = "found no folder with a result.json, allowed: an experiment's folder, such as ray:~/ray_results/NAME"
        raise SpecError(f"ray:{folder}", (), problem)
    return History(source=f"ray:{folder}", runs=tuple(_of_ray(file) for file in files))


def _of_ray(file: Path) -> Run:
    results = list(_documents(file.read_text(encoding="utf-8").splitlines()))
    last = results[-1] if results else {}
    params = file.with_name("params.json")
    config = next(_documents([params.read_text(encoding="utf-8")]), {}) if params.is_file() else {}
    own = {name: value for name, value in last.items() if not name.startswith("config/")}
    return Run(
        state="finished" if last.get("done") or not file.with_name("error.txt").exists() else "failed",
        values={**own, **config},
        curves={name: {one[_STEP]: one[name] for one in results if {_STEP, name} <= one.keys()} for name in own},
        seconds=last.get("time_total_s"),
    )


def _documents(texts: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield JSON objects up to the first damaged text, with nested names joined as Ray joins them."""
    for text in texts:
        try:
            document = json.loads(text)
        except ValueError:
            return
        if not isinstance(document, Mapping):
            return
        yield dict(_flat(document))


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def read_tables(paths: Sequence[str]) -> History:
    """Read a table of runs, and tables of their learning curves. Raises SpecError if a file is unreadable."""
    tables = {path: _columns(path) for path in paths}
    # A table of learning curves has a column of steps, then a column per run.
    curved = [path for path, names in tables.items() if len(names) > 1 and all(_BETWEEN in one for one in [*names][1:])]
    if len(tables) - len(curved) != 1:
        problem = f"found {len(tables) - len(curved)} tables of runs and {len(curved)} files of curves"
        allowed = "one table with a row for each run, such as --from runs.csv, and any number of files of curves"
        raise SpecError(", ".join(paths), (), f"{problem}, allowed: {allowed}")
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
