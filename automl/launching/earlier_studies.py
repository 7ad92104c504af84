"""Reads trials of earlier studies, from a store or an Optuna storage, for a new study to learn from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from automl.launching.prepared_study import Prepared
from search_spaces.messages import found, listed, nearest, shown
from search_spaces.space import Space
from search_spaces.untrusted_text import redact
from studies.records.records import NANO, Constraint, Objective, StudyRecord, TrialRecord
from studies.results.extrapolation import extrapolated_metric
from studies.results.pareto import last_epoch
from studies.search.model.end_forecast import forecast_ends
from studies.search.model.transfer import EarlierStudy, EarlierTrial, fitting, thinned
from studies.search.observations import Snapshot, decision_rungs
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec
from studies.storage.reading.reader import load_study
from studies.storage.schema.engine import StoreError, absolute_url, connect_args, exists, is_current, parse_url
from studies.storage.study_store import Store
from trainers.protocol import CUMULATIVE_METRICS

if TYPE_CHECKING:
    import optuna


def with_earlier(prepared: Prepared) -> Prepared:
    """Add trials of earlier studies; a stored study keeps its own. Raises SpecError for an unusable study."""
    names = prepared.spec.search.from_studies
    if not names:
        return prepared
    stored = _stored(prepared)
    if stored is not None:
        return replace(prepared, earlier=stored)
    return replace(prepared, earlier=tuple(_read(prepared, place, name) for place, name in enumerate(names)))


def summary_of(studies: Sequence[EarlierStudy]) -> list[str]:
    """Return a line with the numbers of used and unused trials for each earlier study."""
    left_out = "left out (failed, hardly begun, or outside this space)"
    return [f"{one.name}: {len(one.trials) or 'no'} trials taken, {one.left_out} {left_out}" for one in studies]


def _stored(prepared: Prepared) -> tuple[EarlierStudy, ...] | None:
    with _blamed(prepared, ("store",)):
        if not exists(prepared.spec.store):
            return None
        with closing(Store(prepared.spec.store)) as store:
            row = store.study_row(prepared.spec.study)
    return None if row is None else tuple(EarlierStudy.from_plain(one) for one in row.earlier_studies or ())


def _read(prepared: Prepared, place: int, name: str) -> EarlierStudy:
    path, spec = ("search", "from_studies", place), prepared.spec
    url, study = (name.rpartition("#")[0], name.rpartition("#")[2]) if "://" in name else (spec.store, name)
    with _blamed(prepared, path):
        url = absolute_url(url, Path.cwd())
        trials, all_of_them = _trials(url, study, name, spec)
    space = spec.space or Space({})
    kept = [replace(one, params=params) for one in trials if (params := fitting(space, one.params)) is not None]
    chosen = thinned(kept, spec.objective_records, spec.constraint_records)
    return EarlierStudy(name=redact(name), trials=chosen, left_out=all_of_them - len(chosen))


@contextmanager
def _blamed(prepared: Prepared, path: tuple[str | int, ...]) -> Iterator[None]:
    try:
        yield
    except (StoreError, _UnfitError) as error:
        raise SpecError(prepared.source, path, str(error)) from None


class _UnfitError(Exception):
    """An earlier study cannot provide trials for the new study."""


def _trials(url: str, study: str, name: str, spec: StudySpec) -> tuple[list[EarlierTrial], int]:
    """Return an earlier study's usable trials, and the number of all its trials. Never migrates the store."""
    wanted = (spec.objective_records, spec.constraint_records)
    known: list[str] = []
    if _has_table(url, "automl_studies"):
        if url != spec.store and not is_current(url):
            allowed = f"a store of this version. To migrate it, run `automl list --store {redact(url)}`"
            raise _UnfitError(found(name, allowed))
        with closing(Store(url)) as store:
            known = store.study_names()
            if study in known:
                record = load_study(store, study)
                return trials_of_record(record, *wanted), len(record.started)
    import optuna

    with optuna_storage(url) as storage:
        # Optuna's tables also contain this project's studies, for Optuna Dashboard.
        names = optuna.get_all_study_names(storage) if storage is not None else []
        if storage is None or study not in names:
            every = list(dict.fromkeys([*known, *names]))
            allowed = f"a study that exists ({listed(every) or _why_none(url, name)})"
            raise _UnfitError(found(name, allowed, nearest(study, every)))
        loaded = optuna.load_study(study_name=study, storage=storage)
        return trials_of_optuna(loaded, name, *wanted), len(loaded.trials)


def _why_none(url: str, name: str) -> str:
    if "://" not in name:
        return f"a study of another store is URL#NAME, such as sqlite:///{name}" if "#" in name else "there is none yet"
    missing = _missing_file(url)
    return "there is none yet" if missing is None else f"there is no file {missing}"


def _missing_file(url_text: str) -> Path | None:
    url = parse_url(url_text)
    path = Path(str(url.database))
    return path if url.get_backend_name() == "sqlite" and not path.exists() else None


@contextmanager
def optuna_storage(url: str) -> Iterator[optuna.storages.RDBStorage | None]:
    """Yield the Optuna storage at a URL, or None if it has no tables of Optuna. Creates no tables."""
    if not _has_table(url, "trial_values"):
        yield None
        return
    import optuna

    parsed = parse_url(url)
    waits = {"connect_args": connect_args(parsed)}
    text = parsed.render_as_string(hide_password=False)
    storage = optuna.storages.RDBStorage(text, engine_kwargs=waits, skip_table_creation=True)
    try:
        yield storage
    finally:
        storage.engine.dispose()


def _has_table(url_text: str, name: str) -> bool:
    """Return whether a database has a table, without changing the database: SQLite is not switched to WAL."""
    url = parse_url(url_text)
    if _missing_file(url_text):
        return False
    try:
        engine = sa.create_engine(url, connect_args=connect_args(url))
        with closing(engine.connect()) as connection:
            has_it = sa.inspect(connection).has_table(name)
        engine.dispose()
    except (sa.exc.SQLAlchemyError, ModuleNotFoundError) as error:
        raise StoreError(f"store: {redact(url_text)}: cannot be opened ({str(error).splitlines()[0]})") from None
    return has_it


def trials_of_record(
    record: StudyRecord, objectives: Sequence[Objective], constraints: Sequence[Constraint] = ()
) -> list[EarlierTrial]:
    """Return a study's complete trials, and incomplete trials with forecast final values."""
    measured = [trial for trial in record.started if trial.epochs and trial.state != "failed"]
    for objective in objectives:
        for other in record.objectives:
            if other.metric == objective.metric and other.direction != objective.direction:
                raise _UnfitError(_other_direction(record.name, objective, other.direction))
        metrics = sorted({name for trial in measured for name in trial.epochs[-1].metrics})
        if measured and objective.metric not in metrics:
            allowed = f"studies that measured {objective.metric}; {record.name} measured {listed(metrics)}"
            raise _UnfitError(found(record.name, allowed))
    epochs = last_epoch(record.spec) or max((len(trial.epochs) for trial in measured), default=1)
    cut_short = {trial.number for trial in measured if trial.state != "complete" and len(trial.epochs) < epochs}
    snapshots = [_snapshot(trial, objectives) for trial in measured]
    numbers = {number for number in cut_short if number is not None}
    forecasts = forecast_ends(snapshots, numbers, objectives=objectives, rungs=decision_rungs(epochs))
    found_trials = []
    for trial in measured:
        own = forecasts.get(trial.number or 0) if trial.number in cut_short else {}
        if own is not None:
            bounded = {one.metric: _end(trial, one.metric, epochs) for one in constraints}
            found_trials.append(replace(_of_trial(trial, objectives, own, epochs), bounded=_finite(bounded)))
    return [one for one in found_trials if all(map(math.isfinite, one.values))]


def _snapshot(trial: TrialRecord, objectives: Sequence[Objective]) -> Snapshot:
    at = {
        epoch.epoch: tuple(o.signed(float(epoch.metrics.get(o.metric, math.nan))) for o in objectives)
        for epoch in trial.epochs
    }
    last = trial.epochs[-1]
    return Snapshot(
        number=trial.number or 0,
        params=trial.params,
        state="ended",
        epochs=len(at),
        at=at,
        last_model=last.epoch if trial.state == "complete" and last.is_milestone else None,
    )


def _of_trial(trial: TrialRecord, objectives: Sequence[Objective], said: Any, epochs: int) -> EarlierTrial:
    values = [o.signed(said[j]) if j in said else _end(trial, o.metric, epochs) for j, o in enumerate(objectives)]
    usd = sum(epoch.cost_nano_usd for epoch in trial.epochs) / NANO / len(trial.epochs)
    return EarlierTrial(params=trial.params, values=tuple(values), usd_per_epoch=usd or None)


def _end(trial: TrialRecord, metric: str, epochs: int) -> float:
    """Return a metric's last value, or NaN. Cumulative metrics are extrapolated to all epochs."""
    last = trial.epochs[-1]
    if metric in last.metrics and metric in CUMULATIVE_METRICS:
        return extrapolated_metric(trial, last, metric, epochs)
    return float(last.metrics.get(metric, math.nan))


def _finite(metrics: Mapping[str, object]) -> dict[str, float]:
    return {name: float(v) for name, v in metrics.items() if isinstance(v, int | float) and math.isfinite(v)}


def trials_of_optuna(
    study: optuna.Study, name: str, objectives: Sequence[Objective], constraints: Sequence[Constraint] = ()
) -> list[EarlierTrial]:
    """Return an Optuna study's complete trials. Constrained metrics are its objectives or user attributes."""
    import optuna

    names = metric_names(study)
    columns = _columns(study, names, name, objectives)
    trials = []
    for trial in study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE]):
        known = {**trial.user_attrs, **dict(zip(names or (), trial.values, strict=False))}
        bounded = _finite({one.metric: known.get(one.metric) for one in constraints})
        values = tuple(float(trial.values[c]) for c in columns)
        trials.append(EarlierTrial(params=trial.params, values=values, bounded=bounded))
    return [one for one in trials if all(map(math.isfinite, one.values))]


def metric_names(study: optuna.Study) -> list[str] | None:
    """Return the names of an Optuna study's objectives, or None."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return study.metric_names


_IMPORT = ". `automl import` names its objectives, and takes cost_usd from its durations"


def _columns(study: optuna.Study, names: list[str] | None, name: str, objectives: Sequence[Objective]) -> list[int]:
    metrics, directions = [o.metric for o in objectives], [one.name.lower() for one in study.directions]
    if names is not None:
        missing = [metric for metric in metrics if metric not in names]
        if missing:
            allowed = f"a study with the objective {missing[0]}; this study has {listed(names)}"
            raise _UnfitError(f"{found(name, allowed)}{_IMPORT}")
        columns = [names.index(metric) for metric in metrics]
    elif len(directions) == len(metrics):
        columns = list(range(len(metrics)))
    else:
        allowed = (
            f"a study with {len(metrics)} objectives, or metric names; this study has {len(directions)} without names"
        )
        raise _UnfitError(f"{found(name, allowed)}{_IMPORT}")
    for objective, column in zip(objectives, columns, strict=True):
        if directions[column] != objective.direction:
            raise _UnfitError(_other_direction(name, objective, directions[column]))
    return columns


def _other_direction(name: str, objective: Objective, direction: str) -> str:
    wanted = f"a study that has to {objective.direction} {shown(objective.metric)}"
    return found(name, f"{wanted}; this study has to {direction} it")
