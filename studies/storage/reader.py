"""Reads rows and makes records of them: all code downstream sees a study in this form only."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from studies.asked import asked_in
from studies.constraints import constraints_in
from studies.forecasts import from_plain
from studies.records import (
    NANO,
    OWN_CHARGES,
    AttemptRecord,
    BudgetLine,
    ChargeRecord,
    ConfirmationRecord,
    DecisionRecord,
    EpochRecord,
    Objective,
    StudyLine,
    StudyRecord,
    TrialRecord,
    ViewRecord,
)
from studies.storage import tables as t
from studies.storage.lease import alive_seconds, driven_studies
from studies.storage.store import Store, as_time
from studies.storage.view_cursors import is_off, progress

Rows = Mapping[int, Sequence[sa.Row[Any]]]


def load_study(store: Store, name: str) -> StudyRecord:
    """The study with everything in it, read in one transaction.

    Raises:
        StoreError: There is no such study.
    """
    row = store.require(name)
    with store.snapshot() as connection:
        row = connection.execute(sa.select(t.studies).where(t.studies.c.id == row.id)).one()
        trials = _load_trials(connection, row.id)
        numbers = {trial.id: trial.number for trial in trials}
        charges = _load_charges(connection, row.id, numbers)
        confirmations = _load_confirmations(connection, row.id, numbers)
        alive = alive_seconds(connection, row.id)
        driven = row.id in driven_studies(connection)
        slots_there = _slots_there(connection, row.id)
    views = tuple(
        ViewRecord(view=view, behind=one.behind, error=one.error if one.behind else None, link=one.link)
        for view, one in progress(store, name).items()
        if one.is_wanted
    )
    record = _study_record(row, trials, charges, alive, driven=driven, views=views)
    return replace(record, slots_there=slots_there, confirmations=confirmations)


def list_studies(store: Store) -> list[StudyLine]:
    """All studies, oldest first; trials are counted and charges are summed by the database."""
    s, started = t.studies.c, t.trials.c
    trials = sa.select(sa.func.count()).where(started.study_id == s.id, started.number.is_not(None)).scalar_subquery()
    cost = sa.select(sa.func.sum(t.charges.c.cost_nano_usd)).where(t.charges.c.study_id == s.id).scalar_subquery()
    query = sa.select(s.id, s.name, s.state, s.created_at, trials.label("trials"), cost.label("cost")).order_by(s.id)
    with store.snapshot() as connection:
        driven = driven_studies(connection)
        return [
            StudyLine(
                name=row.name,
                state=row.state,
                driven=row.id in driven,
                trials=row.trials,
                cost_nano_usd=int(row.cost or 0),
                created_at=created_at,
            )
            for row in connection.execute(query)
            if (created_at := as_time(row.created_at)) is not None
        ]


def mentioned_checkpoints(store: Store, study_id: int) -> set[str]:
    """Paths of all checkpoints that rows of a study mention."""
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
    """Number of slots of the open pool that cost money now; None if no pool is open."""
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
            tuple(epoch_record(one, one.metrics) for one in epochs.get(row.id, ())),
            paid.get(row.id, 0),
            decisions=tuple(
                DecisionRecord(
                    epoch=d.epoch,
                    action=d.action,
                    reason=d.reason,
                    numbers=d.numbers,
                    forecasts=from_plain(d.forecasts),
                    decided_at=d.decided_at,
                )
                for d in decisions.get(row.id, ())
            ),
            attempts=tuple(_attempt_record(attempt) for attempt in attempts.get(row.id, ())),
        )
        for row in rows
    ]


def own_charges(connection: sa.Connection, study_id: int) -> dict[int, Any]:
    """Cost, seconds and slot time of each trial's start and training, and of its training alone, by trial id."""
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
    row: sa.Row[Any],
    epochs: tuple[EpochRecord, ...],
    paid: int,
    *,
    decisions: tuple[DecisionRecord, ...] = (),
    attempts: tuple[AttemptRecord, ...] = (),
) -> TrialRecord:
    """A trial's row as a record, with what was read of its other rows."""
    return TrialRecord(
        id=row.id,
        number=row.number,
        state=row.state,
        failure=row.failure,
        params=row.params,
        world_size=row.world_size,
        reason=row.reason,
        error=row.error,
        origin=row.origin,
        epochs=epochs,
        decisions=decisions,
        attempts=attempts,
        resume_checkpoint=row.resume_checkpoint,
        resume_epoch=row.resume_epoch,
        paid_nano_usd=paid,
        asked=asked_in(row.sampler_attributes),
        created_at=as_time(row.created_at),
        started_at=as_time(row.started_at),
        ended_at=as_time(row.ended_at),
    )


def epoch_record(row: sa.Row[Any], metrics: Mapping[str, float | None]) -> EpochRecord:
    """An epoch's row as a record; its metrics are given apart, since they may be read in another way."""
    return EpochRecord(
        epoch=row.epoch,
        metrics=_numbers(metrics),
        wall_seconds=row.wall_seconds,
        cost_nano_usd=int(row.cost_nano_usd),
        checkpoint=row.checkpoint,
        is_milestone=row.is_milestone,
        measured_at=row.measured_at,
    )


def _attempt_record(row: sa.Row[Any]) -> AttemptRecord:
    started_at = as_time(row.started_at)
    assert started_at is not None  # noqa: S101 - the column is not nullable
    return AttemptRecord(
        attempt=row.attempt,
        world_size=row.world_size,
        start_epoch=row.start_epoch,
        slots=tuple(row.slots),
        outcome=row.outcome,
        started_at=started_at,
        ended_at=as_time(row.ended_at),
        facts=row.facts,
    )


def _load_charges(
    connection: sa.Connection, study_id: int, numbers: Mapping[int, int | None]
) -> tuple[ChargeRecord, ...]:
    query = sa.select(t.charges).where(t.charges.c.study_id == study_id).order_by(t.charges.c.id)
    return tuple(
        ChargeRecord(
            kind=row.kind,
            trial=numbers.get(row.trial_id),
            attempt=row.attempt,
            slots=row.slots,
            seconds=row.seconds,
            usd_per_slot_hour=row.usd_per_slot_hour,
            cost_nano_usd=int(row.cost_nano_usd),
            charged_at=charged_at,
            slot_numbers=tuple(row.slot_numbers or ()),
        )
        for row in connection.execute(query)
        if (charged_at := as_time(row.charged_at)) is not None
    )


def _load_confirmations(
    connection: sa.Connection, study_id: int, numbers: Mapping[int, int | None]
) -> tuple[ConfirmationRecord, ...]:
    """Return the latest training of each trial, epoch and seed, with the model that it or an earlier one has kept."""
    query = sa.select(t.confirmations).where(t.confirmations.c.study_id == study_id).order_by(t.confirmations.c.id)
    latest: dict[tuple[int, int, int], ConfirmationRecord] = {}
    for row in connection.execute(query):
        trial, confirmed_at = numbers.get(row.trial_id), as_time(row.confirmed_at)
        if trial is not None and confirmed_at is not None:
            epoch = row.epochs if row.epoch is None else row.epoch
            earlier = latest.get((trial, epoch, row.seed))
            kept = earlier.checkpoint if row.checkpoint is None and earlier is not None else row.checkpoint
            latest[trial, epoch, row.seed] = ConfirmationRecord(
                trial=trial,
                seed=row.seed,
                epoch=epoch,
                epochs=row.epochs,
                metrics=_numbers(row.metrics),
                cost_nano_usd=int(row.cost_nano_usd),
                checkpoint=kept,
                confirmed_at=confirmed_at,
            )
    return tuple(latest.values())


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics as they were before NaN and infinity became None."""
    return {name: math.nan if value is None else float(value) for name, value in metrics.items()}


def _study_record(
    row: sa.Row[Any],
    trials: list[TrialRecord],
    charges: tuple[ChargeRecord, ...],
    alive: float,
    *,
    driven: bool,
    views: tuple[ViewRecord, ...],
) -> StudyRecord:
    spec = row.spec
    created_at = as_time(row.created_at)
    assert created_at is not None  # noqa: S101 - the column is not nullable
    return StudyRecord(
        id=row.id,
        uid=row.uid,
        name=row.name,
        state=row.state,
        stop_reason=row.stop_reason,
        error=row.error,
        spec=spec,
        objectives=tuple(Objective(**objective) for objective in spec["objectives"]),
        reference_point=row.reference_point,
        budget=_budget_lines(row, spec["budget"], trials, charges, alive),
        alive_seconds=alive,
        driven=driven,
        constraints=constraints_in(spec),
        views=views,
        trials=tuple(trials),
        charges=charges,
        overshoot_nano_usd=int(row.overshoot_nano_usd),
        mlflow_uri=None if is_off(spec["mlflow"]) else str(spec["mlflow"]),
        created_at=created_at,
        ended_at=as_time(row.ended_at),
    )


def _budget_lines(
    row: sa.Row[Any],
    limits: Mapping[str, float | None],
    trials: list[TrialRecord],
    charges: tuple[ChargeRecord, ...],
    alive: float,
) -> dict[str, BudgetLine]:
    spent = sum(charge.cost_nano_usd for charge in charges) / NANO
    live = row.state == "running"
    return {
        "usd": BudgetLine(
            limit=limits.get("usd"), spent=spent, reserved=int(row.reserved_nano_usd) / NANO if live else 0.0
        ),
        "hours": BudgetLine(
            limit=limits.get("hours"),
            spent=alive / 3600,
            reserved=row.reserved_seconds / 3600 if live else 0.0,
        ),
        "trials": BudgetLine(limit=limits.get("trials"), spent=sum(trial.number is not None for trial in trials)),
    }
