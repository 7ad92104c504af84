"""Reads rows and converts them to records, which all other code uses."""

import dataclasses
import functools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from studies.records.records import (
    ADVISED,
    FINISHING,
    NANO,
    OWN_CHARGES,
    AttemptRecord,
    BudgetLine,
    ChargeRecord,
    ConfirmationRecord,
    DecisionRecord,
    EpochRecord,
    Objective,
    ResumeState,
    StoredTrial,
    StudyLine,
    StudyRecord,
    TrialRecord,
    ViewRecord,
    asked_in,
    from_plain,
)
from studies.results.constraints import constraints_in
from studies.storage.leases.lease import alive_seconds, driven_studies
from studies.storage.schema import tables as t
from studies.storage.study_store import Store, as_time
from studies.storage.views.cursors import is_off, progress
from studies.storage.writing.changes import Confirmed


def load_study(store: Store, name: str) -> StudyRecord:
    """Read a whole study in one transaction. Raises `StoreError` if it does not exist."""
    row = store.require(name)
    with store.snapshot() as connection:
        row = connection.execute(sa.select(t.studies).where(t.studies.c.id == row.id)).one()
        trials = _load_trials(connection, row.id)
        numbers = {trial.id: trial.number for trial in trials}
        charged = sa.select(t.charges).where(t.charges.c.study_id == row.id).order_by(t.charges.c.id)
        charges = tuple(
            record_of(ChargeRecord, one, trial=numbers.get(one.trial_id)) for one in connection.execute(charged)
        )
        confirmations = _load_confirmations(connection, row.id, numbers)
        alive = alive_seconds(connection, row.id)
        driven = row.id in driven_studies(connection)
        slots_there = _slots_there(connection, row.id)
    views = tuple(
        ViewRecord(view=view, behind=one.behind, error=one.error if one.behind else None, link=one.link)
        for view, one in progress(store, name).items()
        if one.is_wanted
    )
    return study_record(
        row,
        budget=_budget_lines(row, trials, charges, alive),
        alive_seconds=alive,
        driven=driven,
        views=views,
        trials=tuple(trials),
        charges=charges,
        mlflow_uri=None if is_off(row.spec["mlflow"]) else str(row.spec["mlflow"]),
        slots_there=slots_there,
        **confirmations,
    )


def study_record(row: Any, **others: Any) -> StudyRecord:
    """Convert a study's row to a record; `others` come from other tables."""
    objectives = tuple(Objective(**objective) for objective in row.spec["objectives"])
    return record_of(StudyRecord, row, objectives=objectives, constraints=constraints_in(row.spec), **others)


def list_studies(store: Store) -> list[StudyLine]:
    """Return all studies without their trials, oldest first."""
    s, started = t.studies.c, t.trials.c
    trials = sa.select(sa.func.count()).where(started.study_id == s.id, started.number.is_not(None)).scalar_subquery()
    cost = sa.select(sa.func.sum(t.charges.c.cost_nano_usd)).where(t.charges.c.study_id == s.id).scalar_subquery()
    columns = (s.id, s.name, s.state, s.stop_reason, s.created_at)
    query = sa.select(*columns, trials.label("trials"), cost.label("cost")).order_by(s.id)
    with store.snapshot() as connection:
        driven = driven_studies(connection)
        return [
            of_row(StudyLine, row, driven=row.id in driven, cost_nano_usd=int(row.cost or 0), created_at=created_at)
            for row in connection.execute(query)
            if (created_at := as_time(row.created_at)) is not None
        ]


def mentioned_checkpoints(store: Store, study_id: int) -> set[str]:
    """Return the paths of all checkpoints in the study's rows."""
    kept = (
        sa.select(t.epochs.c.checkpoint)
        .join(t.trials, t.trials.c.id == t.epochs.c.trial_id)
        .where(t.trials.c.study_id == study_id, t.epochs.c.checkpoint.is_not(None))
    )
    resumable = sa.select(t.trials.c.resume_checkpoint).where(
        t.trials.c.study_id == study_id, t.trials.c.resume_checkpoint.is_not(None)
    )
    confirmed = sa.select(t.confirmations.c.checkpoint).where(
        t.confirmations.c.study_id == study_id, t.confirmations.c.checkpoint.is_not(None)
    )
    with store.snapshot() as connection:
        return {str(path) for query in (kept, resumable, confirmed) for path in connection.execute(query).scalars()}


def _slots_there(connection: sa.Connection, study_id: int) -> int | None:
    lease = t.leases.c
    is_open = (lease.pool_opened_at.is_not(None), lease.pool_closed_at.is_(None), lease.released_at.is_(None))
    pool = connection.execute(
        sa.select(lease.id, lease.pool_slots).where(lease.study_id == study_id, *is_open).order_by(lease.id.desc())
    ).first()
    if pool is None:
        return None
    rates = sa.select(t.pool_rates.c.slot_numbers).where(t.pool_rates.c.lease_id == pool.id)
    numbers = connection.execute(rates.order_by(t.pool_rates.c.id.desc()).limit(1)).scalar()
    return int(pool.pool_slots) if numbers is None else len(numbers)


def _load_trials(connection: sa.Connection, study_id: int) -> list[TrialRecord]:
    mine = sa.select(t.trials.c.id).where(t.trials.c.study_id == study_id)
    epochs = _by_trial(connection, t.epochs, mine, t.epochs.c.epoch)
    decisions = _by_trial(connection, t.decisions, mine, t.decisions.c.id)
    attempts = _by_trial(connection, t.attempts, mine, t.attempts.c.attempt)
    paid = {trial_id: int(row.paid) for trial_id, row in own_charges(connection, study_id).items()}
    wanted = sa.select(t.trials).where(t.trials.c.study_id == study_id, t.is_trial)
    rows = connection.execute(wanted.order_by(t.trials.c.id))
    return [
        trial_record(
            row,
            tuple(record_of(EpochRecord, one) for one in epochs.get(row.id, ())),
            paid.get(row.id, 0),
            decisions=tuple(record_of(DecisionRecord, one) for one in decisions.get(row.id, ())),
            attempts=tuple(record_of(AttemptRecord, one) for one in attempts.get(row.id, ())),
        )
        for row in rows
    ]


def own_charges(connection: sa.Connection, study_id: int) -> dict[int, Any]:
    """Return sums of each trial's charges for starts and epochs, and for epochs alone, by trial id."""
    is_training = t.charges.c.kind == "train"
    sums = connection.execute(
        sa.select(
            t.charges.c.trial_id,
            sa.func.sum(t.charges.c.cost_nano_usd).label("paid"),
            sa.func.sum(t.charges.c.seconds).label("seconds"),
            sa.func.sum(t.charges.c.slots * t.charges.c.seconds).label("slot_seconds"),
            sa.func.sum(sa.case((is_training, t.charges.c.seconds), else_=0.0)).label("train_seconds"),
            sa.func.sum(sa.case((is_training, t.charges.c.cost_nano_usd), else_=0)).label("train_nano_usd"),
        )
        .where(t.charges.c.study_id == study_id, t.charges.c.kind.in_(OWN_CHARGES))
        .group_by(t.charges.c.trial_id)
    )
    return {row.trial_id: row for row in sums}


def _by_trial(
    connection: sa.Connection, table: sa.Table, mine: sa.Select[tuple[int]], order: sa.Column[Any]
) -> dict[int, list[sa.Row[Any]]]:
    found: dict[int, list[sa.Row[Any]]] = defaultdict(list)
    for row in connection.execute(sa.select(table).where(table.c.trial_id.in_(mine)).order_by(table.c.trial_id, order)):
        found[row.trial_id].append(row)
    return found


def trial_record(
    row: Any,
    epochs: tuple[EpochRecord, ...],
    paid: int,
    *,
    decisions: tuple[DecisionRecord, ...] = (),
    attempts: tuple[AttemptRecord, ...] = (),
) -> TrialRecord:
    """Convert a trial's row to a record; the other arguments come from other tables."""
    return record_of(
        TrialRecord,
        row,
        epochs=epochs,
        decisions=decisions,
        attempts=attempts,
        paid_nano_usd=paid,
        asked=asked_in(row.sampler_attributes),
        is_advised=ADVISED in row.sampler_attributes,
    )


def record_of(kind: "Callable[..., Record]", row: Any, **others: Any) -> "Record":
    """Return a record of class `kind`, with fields from converted columns of the row and from `others`."""
    read = {
        name: getattr(row, name) if convert is None else convert(getattr(row, name))
        for name, convert in _columns_of(kind)
        if name not in others
    }
    return kind(**read, **others)


def of_row(kind: "Callable[..., Record]", row: Any, **others: Any) -> "Record":
    """Return an instance of dataclass `kind`, with fields from equally named columns and from `others`."""
    names = (one.name for one in dataclasses.fields(cast("Any", kind)) if one.name not in others)
    return kind(**{name: getattr(row, name) for name in names}, **others)


@functools.cache
def _columns_of(kind: Callable[..., Any]) -> tuple[tuple[str, Callable[[Any], Any] | None], ...]:
    columns = _TABLES[kind].c
    return tuple(
        (one.name, as_time if "datetime" in str(one.type) else _CONVERTED.get(one.name))
        for one in dataclasses.fields(cast("Any", kind))
        if one.name in columns
    )


def numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return metrics with NaN instead of None."""
    return {name: math.nan if value is None else float(value) for name, value in metrics.items()}


Record = TypeVar("Record")
_TABLES: dict[Callable[..., Any], sa.Table] = {
    TrialRecord: t.trials, EpochRecord: t.epochs, DecisionRecord: t.decisions, AttemptRecord: t.attempts,
    ChargeRecord: t.charges, ConfirmationRecord: t.confirmations, Confirmed: t.confirmations, StudyRecord: t.studies,
}  # fmt: skip
_CONVERTED: dict[str, Callable[[Any], Any]] = {
    "metrics": numbers,
    "forecasts": from_plain,
    "cost_nano_usd": int,
    "overshoot_nano_usd": int,
    "slots": lambda slots: tuple(slots) if isinstance(slots, list) else slots,
    "slot_numbers": lambda slots: tuple(slots or ()),
}


def _load_confirmations(
    connection: sa.Connection, study_id: int, numbers: Mapping[int, int | None]
) -> dict[str, tuple[ConfirmationRecord, ...]]:
    """Return test results as `tests`, and the latest confirmation of each trial, epoch and seed."""
    query = sa.select(t.confirmations).where(t.confirmations.c.study_id == study_id).order_by(t.confirmations.c.id)
    latest: dict[tuple[int, int, int, bool], ConfirmationRecord] = {}
    for row in connection.execute(query):
        trial = numbers.get(row.trial_id)
        if trial is not None:
            epoch = row.epochs if row.epoch is None else row.epoch
            found = record_of(ConfirmationRecord, row, trial=trial, epoch=epoch)
            key = trial, epoch, row.seed, found.is_test
            if found.checkpoint is None and key in latest:
                found = dataclasses.replace(found, checkpoint=latest[key].checkpoint)
            latest[key] = found
    return {
        "confirmations": tuple(one for one in latest.values() if not one.is_test),
        "tests": tuple(one for one in latest.values() if one.is_test),
    }


def confirmed_since_begin_of(store: Store, study_id: int, job_id: int) -> list[Confirmed]:
    """Return a study's confirmations since the first run of a confirming job, oldest first."""
    c, mine = t.confirmations.c, (t.leases.c.study_id == study_id, t.leases.c.job_id == job_id)
    begin = sa.select(sa.func.min(t.leases.c.acquired_at)).where(*mine).scalar_subquery()
    query = sa.select(t.confirmations).where(c.study_id == study_id, c.confirmed_at >= begin)
    with store.snapshot() as connection:
        rows = connection.execute(query.order_by(c.id))
        return [record_of(Confirmed, row, at=row.confirmed_at) for row in rows]


def _budget_lines(
    row: sa.Row[Any], trials: list[TrialRecord], charges: tuple[ChargeRecord, ...], alive: float
) -> dict[str, BudgetLine]:
    limits: Mapping[str, float | None] = row.spec["budget"]
    spent = sum(charge.cost_nano_usd for charge in charges) / NANO
    live = row.state == "running"
    return {
        "usd": BudgetLine(
            limit=limits.get("usd"), spent=spent, reserved=int(row.reserved_nano_usd) / NANO if live else 0.0
        ),
        "hours": BudgetLine(
            limit=limits.get("hours"), spent=alive / 3600, reserved=row.reserved_seconds / 3600 if live else 0.0
        ),
        "trials": BudgetLine(limit=limits.get("trials"), spent=sum(trial.number is not None for trial in trials)),
    }


ROWS_AT_ONCE = 5_000
Amounts = tuple[list[float], list[int]]


def load_resume_state(
    store: Store, study_id: int, *, before_lease: int, looked_at: Collection[int] | None = None
) -> ResumeState:
    """Return the stored state of a study, for a controller that resumes it.

    The time of the lease `before_lease` is not counted. Metrics are read for saved epochs, last epochs of trials and
    epochs in `looked_at`; None reads all epochs.
    """
    mine = sa.select(t.trials.c.id).where(t.trials.c.study_id == study_id)
    with store.snapshot() as connection:
        amounts = _amounts(connection, mine)
        epochs = _epochs(connection, mine, looked_at)
        outcomes = _outcomes(connection, mine)
        ranks = _ranks_of_narrow_epochs(connection, mine)
        own = own_charges(connection, study_id)
        finished = _finished_from(connection, mine)
        wanted = sa.select(t.trials).where(t.trials.c.study_id == study_id, t.is_trial)
        rows = connection.execute(wanted.order_by(t.trials.c.id))
        trials = tuple(
            StoredTrial(
                record=trial_record(row, tuple(epochs[row.id]), int(paid.paid) if paid else 0),
                paused_by=row.paused_by,
                wall_seconds=paid.seconds if paid else 0.0,
                slot_seconds=paid.slot_seconds if paid else 0.0,
                sampler_attributes=row.sampler_attributes,
                epoch_seconds=amounts[row.id][0],
                epoch_costs_nano_usd=amounts[row.id][1],
                epoch_ranks=ranks[row.id],
                outcomes=tuple(outcomes[row.id]),
                train_seconds=paid.train_seconds if paid else 0.0,
                train_nano_usd=int(paid.train_nano_usd) if paid else 0,
                finished_from=finished.get(row.id),
            )
            for row in rows
            for paid in (own.get(row.id),)
        )
        spent = sa.select(sa.func.coalesce(sa.func.sum(t.charges.c.cost_nano_usd), 0))
        return ResumeState(
            trials=trials,
            spent_nano_usd=int(connection.execute(spent.where(t.charges.c.study_id == study_id)).scalar_one()),
            alive_seconds=alive_seconds(connection, study_id, without=before_lease),
        )


def _amounts(connection: sa.Connection, mine: sa.Select[tuple[int]]) -> dict[int, Amounts]:
    e = t.epochs.c
    query = sa.select(e.trial_id, e.wall_seconds, e.cost_nano_usd).where(e.trial_id.in_(mine))
    found: dict[int, Amounts] = defaultdict(lambda: ([], []))
    rows = connection.execute(query.order_by(e.trial_id, e.epoch)).yield_per(ROWS_AT_ONCE)
    for trial_id, seconds, cost in rows:
        all_seconds, costs = found[trial_id]
        all_seconds.append(seconds)
        costs.append(int(cost))
    return found


def _epochs(
    connection: sa.Connection, mine: sa.Select[tuple[int]], looked_at: Collection[int] | None
) -> dict[int, list[EpochRecord]]:
    e = t.epochs.c
    columns = (e.epoch, e.wall_seconds, e.cost_nano_usd, e.checkpoint, e.is_milestone, e.measured_at)
    # Metrics are read as text: parsing one document with many rows is several times faster than one for each row.
    query = sa.select(e.trial_id, sa.cast(e.metrics, sa.Text), *columns).where(e.trial_id.in_(mine))
    if looked_at is not None:
        last = sa.select(e.trial_id, sa.func.max(e.epoch)).where(e.trial_id.in_(mine)).group_by(e.trial_id)
        is_last = sa.tuple_(e.trial_id, e.epoch).in_(last)
        query = query.where(sa.or_(e.is_milestone, e.epoch.in_(sorted(looked_at)), is_last))
    found: dict[int, list[EpochRecord]] = defaultdict(list)
    for rows in connection.execute(query.order_by(e.trial_id, e.epoch)).partitions(ROWS_AT_ONCE):
        for row, metrics in zip(rows, json.loads(f"[{','.join(row[1] for row in rows)}]"), strict=True):
            found[row.trial_id].append(record_of(EpochRecord, row, metrics=numbers(metrics)))
    return found


def _outcomes(connection: sa.Connection, mine: sa.Select[tuple[int]]) -> dict[int, list[str]]:
    a = t.attempts.c
    found: dict[int, list[str]] = defaultdict(list)
    query = sa.select(a.trial_id, a.outcome).where(a.trial_id.in_(mine)).order_by(a.trial_id, a.attempt)
    for trial_id, outcome in connection.execute(query):
        found[trial_id].append(outcome)
    return found


def _ranks_of_narrow_epochs(connection: sa.Connection, mine: sa.Select[tuple[int]]) -> dict[int, dict[int, int]]:
    """Return numbers of ranks by trial and epoch, where they differ from the trial's world size."""
    e, a = t.epochs.c, t.attempts.c
    within = sa.and_(a.started_at < e.measured_at, sa.or_(a.ended_at.is_(None), e.measured_at <= a.ended_at))
    query = (
        sa.select(e.trial_id, e.epoch, a.world_size)
        .join_from(t.attempts, t.trials, a.trial_id == t.trials.c.id)
        .join(t.epochs, sa.and_(e.trial_id == a.trial_id, within))
        .where(a.trial_id.in_(mine), a.world_size != t.trials.c.world_size)
    )
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for trial_id, epoch, ranks in connection.execute(query):
        found[trial_id][epoch] = ranks
    return found


def _finished_from(connection: sa.Connection, mine: sa.Select[tuple[int]]) -> dict[int, int]:
    """Return the epoch at which finishing began for each leader, by trial id."""
    d = t.decisions.c
    begun = (d.trial_id.in_(mine), d.action == "continue", d.reason.startswith(FINISHING, autoescape=True))
    query = sa.select(d.trial_id, sa.func.min(d.epoch)).where(*begun).group_by(d.trial_id)
    return {trial_id: int(epoch) for trial_id, epoch in connection.execute(query)}
