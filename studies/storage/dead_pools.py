"""Pools whose controllers died while they were open: what the store knows of them, and settling them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from studies.storage import tables as t
from studies.storage.changes import Charged
from studies.storage.lease import Lease
from studies.storage.store import Store, insert_charges


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenAttempt:
    """An attempt that was running when its controller died.

    Attributes:
        trial_id: Id of the trial's row.
        attempt: Number of the attempt within its trial.
        slots: Number of slots that it held.
        charged_until: Moment up to which it is charged, in seconds since 1970.
    """

    trial_id: int
    attempt: int
    slots: int
    charged_until: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadPool:
    """A pool whose controller died.

    Attributes:
        slots: Number of slots in the pool.
        usd_per_slot_hour: Price of one slot.
        opened_at: Moment at which the pool opened, in seconds since 1970.
        alive_until: Last sign of life (heartbeat or commit), in seconds since 1970; what happened later is unknown.
        charged_slot_seconds: Sum of slots x seconds over the charges of that lease.
        attempts: Attempts that were running.
    """

    slots: int
    usd_per_slot_hour: float
    opened_at: float
    alive_until: float
    charged_slot_seconds: float
    attempts: tuple[OpenAttempt, ...]


def settle(store: Store, lease: Lease, charges_of: Callable[[DeadPool], Iterable[Charged]]) -> None:
    """Charge and close, in one transaction, the pools that dead controllers left open; a second call finds none.

    Args:
        store: Store that holds the study.
        lease: Lease of the present controller; pools of earlier leases are settled.
        charges_of: Function that says what of a pool's time is not charged yet.
    """
    dead = sa.select(t.leases).where(
        t.leases.c.study_id == lease.study_id,
        t.leases.c.id < lease.id,  # a later one has taken over
        t.leases.c.pool_opened_at.is_not(None),
        t.leases.c.pool_closed_at.is_(None),
    )
    with store.engine.begin() as connection:
        for row in connection.execute(dead).all():
            pool = _dead_pool(connection, row)
            insert_charges(connection, lease.study_id, row.id, charges_of(pool))
            closed = sa.update(t.leases).where(t.leases.c.id == row.id).values(pool_closed_at=pool.alive_until)
            connection.execute(closed)


def _dead_pool(connection: sa.Connection, row: sa.Row[Any]) -> DeadPool:
    charged, charged_at = connection.execute(
        sa.select(
            sa.func.coalesce(sa.func.sum(t.charges.c.slots * t.charges.c.seconds), 0.0),
            sa.func.coalesce(sa.func.max(t.charges.c.charged_at), 0.0),
        ).where(t.charges.c.lease_id == row.id)
    ).one()
    running = connection.execute(
        sa.select(t.attempts)
        .join(t.trials, t.trials.c.id == t.attempts.c.trial_id)
        .where(t.trials.c.study_id == row.study_id, t.attempts.c.outcome == "running")
    ).all()
    return DeadPool(
        slots=row.pool_slots,
        usd_per_slot_hour=row.usd_per_slot_hour,
        opened_at=row.pool_opened_at,
        # A commit is a sign of life as well, and may be later than the last heartbeat.
        alive_until=max(row.heartbeat_at, charged_at, row.pool_opened_at, *(one.charged_until for one in running)),
        charged_slot_seconds=float(charged),
        attempts=tuple(
            OpenAttempt(
                trial_id=one.trial_id, attempt=one.attempt, slots=one.world_size, charged_until=one.charged_until
            )
            for one in running
        ),
    )
