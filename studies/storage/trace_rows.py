"""Rows that spans are made of: runs of a study by its controllers, and what has ended in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from studies.storage import tables as t

_TOGETHER = 200
"""Number of attempts whose rows are read together."""
_DECISIVE = ("pause", "stop")
_DECIDED = frozenset({"paused", "pruned"})
"""Outcomes of attempts that a decision ended."""

Money = Mapping[str, tuple[int, float]]
"""Nano-dollars and seconds by kind of charge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A controller's time with a study, or that of `automl confirm`; times in seconds since 1970.

    Attributes:
        lease_id: Id of its lease's row.
        host: Machine on which it ran.
        pid: Id of its process there.
        slots: Number of slots with which its pool was opened.
        usd_per_slot_hour: Price of a slot at that moment.
        started_at: Moment at which it took the lease.
        ended_at: End of its pool; None as long as that is open.
        has_died: Whether the controller died before it had closed its pool.
        is_latest: Whether no later one has begun.
        trace_parent: W3C trace context in which it was started; None without one.
        revision: Revision of the commit that changed its pool last.
    """

    lease_id: int
    host: str
    pid: int
    slots: int
    usd_per_slot_hour: float
    started_at: float
    ended_at: float | None
    has_died: bool
    is_latest: bool
    trace_parent: str | None
    revision: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedAttempt:
    """An attempt that has ended; times in seconds since 1970.

    Attributes:
        lease_id: Id of the lease of its controller.
        trial: Number of the trial.
        attempt: Number of the attempt within its trial.
        slots: Numbers of the slots that its ranks held.
        start_epoch: Epoch from whose end it went on.
        epochs: Number of epochs that were measured in it.
        outcome: How it ended.
        reason: Why, in one line; empty where that is not known any more.
        error: Traceback or message, if it was the trial's last attempt; empty without one.
        money: What was charged for it.
    """

    lease_id: int
    trial: int
    attempt: int
    slots: tuple[int, ...]
    start_epoch: int
    epochs: int
    outcome: str
    reason: str
    error: str
    money: Money
    started_at: float
    ended_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmedTraining:
    """A training of `automl confirm`; times in seconds since 1970."""

    id: int
    trial: int
    epoch: int
    epochs: int
    seed: int
    cost_nano_usd: int
    started_at: float
    ended_at: float


def runs(connection: sa.Connection, study_id: int) -> list[Run]:
    """All runs of a study that have opened a pool, oldest first."""
    rows = connection.execute(sa.select(t.leases).where(t.leases.c.study_id == study_id).order_by(t.leases.c.id)).all()
    return [_run(row, is_latest=row is rows[-1]) for row in rows if row.pool_opened_at is not None]


def _run(row: sa.Row[Any], *, is_latest: bool) -> Run:
    return Run(
        lease_id=row.id,
        host=row.host,
        pid=row.pid,
        slots=row.pool_slots,
        usd_per_slot_hour=row.usd_per_slot_hour,
        started_at=row.acquired_at,
        ended_at=row.pool_closed_at,
        has_died=row.died,
        is_latest=is_latest,
        trace_parent=row.trace_parent,
        revision=row.revision,
    )


def money_of_run(connection: sa.Connection, lease_id: int) -> Money:
    """What the pool of a run was charged."""
    c = t.charges.c
    sums = sa.select(c.kind, sa.func.sum(c.cost_nano_usd).label("cost"), sa.func.sum(c.slots * c.seconds).label("time"))
    rows = connection.execute(sums.where(c.lease_id == lease_id).group_by(c.kind).order_by(c.kind))
    return {row.kind: (int(row.cost), float(row.time)) for row in rows}


def study_error(connection: sa.Connection, study_id: int) -> str:
    """The error that ended a study; empty without one."""
    found = connection.execute(sa.select(t.studies.c.error).where(t.studies.c.id == study_id)).scalar()
    return str(found or "")


def confirmed_in(connection: sa.Connection, run: Run, study_id: int) -> list[ConfirmedTraining]:
    """Trainings of `automl confirm` that ended in a run."""
    c = t.confirmations.c
    later = sa.select(sa.func.min(t.leases.c.acquired_at)).where(
        t.leases.c.study_id == study_id, t.leases.c.id > run.lease_id
    )
    until = connection.execute(later).scalar()
    query = sa.select(t.confirmations, t.trials.c.number).join(t.trials, t.trials.c.id == c.trial_id)
    query = query.where(c.study_id == study_id, c.confirmed_at >= run.started_at)
    if until is not None:
        query = query.where(c.confirmed_at < until)
    return [
        ConfirmedTraining(
            id=row.id,
            trial=row.number,
            epoch=row.epochs if row.epoch is None else row.epoch,
            epochs=row.epochs,
            seed=row.seed,
            cost_nano_usd=int(row.cost_nano_usd),
            started_at=row.confirmed_at - row.wall_seconds,
            ended_at=row.confirmed_at,
        )
        for row in connection.execute(query.order_by(c.id))
    ]


def ended_attempts(connection: sa.Connection, study_id: int, since: int, until: int) -> list[EndedAttempt]:
    """Attempts that ended in commits after revision `since`, up to revision `until`."""
    a = t.attempts.c
    query = (
        sa.select(t.attempts, t.trials.c.number, t.trials.c.state, t.trials.c.reason, t.trials.c.error)
        .join(t.trials, t.trials.c.id == a.trial_id)
        .where(t.trials.c.study_id == study_id, a.revision > since, a.revision <= until)
        .where(a.ended_at.is_not(None), a.lease_id.is_not(None))
        .order_by(a.id)
    )
    rows = connection.execute(query).all()
    found: list[EndedAttempt] = []
    for start in range(0, len(rows), _TOGETHER):
        chunk = rows[start : start + _TOGETHER]
        facts = _Facts(connection, chunk)
        found += [facts.attempt(row) for row in chunk]
    return found


class _Facts:
    """What other tables have about some attempts.

    Args:
        connection: Connection in a transaction.
        rows: Rows of the attempts.
    """

    def __init__(self, connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> None:
        self._connection = connection
        self._ids, self._trials = [row.id for row in rows], sorted({row.trial_id for row in rows})
        self._epochs, self._latest = self._count_epochs(), self._find_latest()
        self._money, self._decisions = self._sum_charges(), self._find_decisions()

    def attempt(self, row: sa.Row[Any]) -> EndedAttempt:
        """One of them as a value."""
        is_latest = row.attempt == self._latest[row.trial_id] and row.state != "running"
        is_decided = row.outcome in _DECIDED
        within = (one for one in self._decisions[row.trial_id] if row.started_at < one.decided_at <= row.ended_at)
        decided = next((one.reason for one in within), "") if is_decided else ""
        return EndedAttempt(
            lease_id=row.lease_id,
            trial=row.number,
            attempt=row.attempt,
            slots=tuple(row.slots),
            start_epoch=row.start_epoch,
            epochs=self._epochs.get(row.id, 0),
            outcome=row.outcome,
            reason=decided or (row.reason if is_latest else ""),
            error=str(row.error or "") if is_latest else "",
            money=self._money[row.trial_id, row.attempt],
            started_at=row.started_at,
            ended_at=row.ended_at,
        )

    def _count_epochs(self) -> dict[int, int]:
        a, e = t.attempts.c, t.epochs.c
        within = sa.and_(e.trial_id == a.trial_id, e.measured_at > a.started_at, e.measured_at <= a.ended_at)
        query = sa.select(a.id, sa.func.count().label("epochs")).join(t.epochs, within).where(a.id.in_(self._ids))
        return {row.id: row.epochs for row in self._connection.execute(query.group_by(a.id))}

    def _find_latest(self) -> dict[int, int]:
        a = t.attempts.c
        query = sa.select(a.trial_id, sa.func.max(a.attempt).label("latest")).where(a.trial_id.in_(self._trials))
        return {row.trial_id: row.latest for row in self._connection.execute(query.group_by(a.trial_id))}

    def _sum_charges(self) -> dict[tuple[int, int], dict[str, tuple[int, float]]]:
        c = t.charges.c
        sums = sa.func.sum(c.cost_nano_usd).label("cost"), sa.func.sum(c.seconds).label("time")
        query = sa.select(c.trial_id, c.attempt, c.kind, *sums).where(c.trial_id.in_(self._trials))
        found: dict[tuple[int, int], dict[str, tuple[int, float]]] = defaultdict(dict)
        for row in self._connection.execute(query.group_by(c.trial_id, c.attempt, c.kind).order_by(c.kind)):
            found[row.trial_id, row.attempt][row.kind] = int(row.cost), float(row.time)
        return found

    def _find_decisions(self) -> dict[int, list[Any]]:
        """Pauses and ends of each trial, latest first."""
        d = t.decisions.c
        query = sa.select(d.trial_id, d.reason, d.decided_at).where(
            d.trial_id.in_(self._trials), d.action.in_(_DECISIVE)
        )
        found: dict[int, list[Any]] = defaultdict(list)
        for row in self._connection.execute(query.order_by(d.id.desc())):
            found[row.trial_id].append(row)
        return found
