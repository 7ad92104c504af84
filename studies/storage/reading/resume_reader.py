"""Reads the state for a controller that resumes a study; of most epochs only duration and cost."""

import json
from collections import defaultdict
from collections.abc import Collection

import sqlalchemy as sa

from studies.records.records import FINISHING, EpochRecord
from studies.records.resume_state import ResumeState, StoredTrial
from studies.storage.leases.lease import alive_seconds
from studies.storage.reading.reader import numbers, own_charges, record_of, trial_record
from studies.storage.schema import tables as t
from studies.storage.study_store import Store

ROWS_AT_ONCE = 5_000
Amounts = tuple[list[float], list[int]]


def load_resume_state(
    store: Store, study_id: int, *, before_lease: int, looked_at: Collection[int] | None = None
) -> ResumeState:
    """Return the state that earlier controllers stored, for the current holder of the lease.

    The time of the lease `before_lease` is not counted. `looked_at` are epochs whose metrics are read, besides
    milestones and last epochs of trials; None reads the metrics of all epochs.
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
    # Metrics are read as text: parsing one document with many rows is several times as fast as one for each row.
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
    """Return the number of ranks, by trial and epoch, for epochs with fewer ranks than the trial's world size."""
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
    """Return the epoch from which each leader that was cut short continued, by trial."""
    d = t.decisions.c
    begun = (d.trial_id.in_(mine), d.action == "continue", d.reason.startswith(FINISHING, autoescape=True))
    query = sa.select(d.trial_id, sa.func.min(d.epoch)).where(*begun).group_by(d.trial_id)
    return {trial_id: int(epoch) for trial_id, epoch in connection.execute(query)}
