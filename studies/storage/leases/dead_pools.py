"""Finds the open pools of controllers that died, charges their slots, and closes them."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from studies.money.ledger import PricedSpan, PriceHistory, charged, cost_nano_usd
from studies.records.records import NANO, OF_SAVED_MODELS, ChargeKind
from studies.storage.leases import lease as leases
from studies.storage.leases.lease import Lease
from studies.storage.schema import tables as t
from studies.storage.study_store import Store, held_lease
from studies.storage.writing.changes import Charged
from studies.storage.writing.commit_writer import insert_charges, marks
from studies.storage.writing.retrying import retry_patiently


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenAttempt:
    """An attempt of a trial that was running when its controller died."""

    trial_id: int
    attempt: int
    slots: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadPool:
    """Slots of a controller that died; times are in seconds since 1970."""

    prices: PriceHistory
    charged_until: Mapping[int, float]  # moment up to which each paid slot is charged, by slot
    alive_until: float  # moment of the last heartbeat or commit
    attempts: tuple[OpenAttempt, ...]
    kind: ChargeKind | None  # of all its charges, if it confirmed or tested models, which have no attempts


def are_left(store: Store, study_id: int) -> bool:
    """Return whether a study has an unreleased lease or an open pool."""
    c = t.leases.c
    is_open = c.pool_opened_at.is_not(None) & c.pool_closed_at.is_(None)
    query = sa.select(c.id).where(c.study_id == study_id, c.released_at.is_(None) | is_open)
    with store.snapshot() as connection:
        return connection.execute(query.limit(1)).first() is not None


def settle_dead_pools(store: Store, lease: Lease) -> None:
    """Charge and close the pools of dead controllers in one transaction; retries briefly if the store is locked.

    Raises `LeaseLostError`, without charges, if `lease` is lost.
    """
    retry_patiently(lambda: _settle(store, lease))


def _settle(store: Store, lease: Lease) -> None:
    dead = sa.select(t.leases).where(
        t.leases.c.study_id == lease.study_id,
        t.leases.c.id < lease.id,
        t.leases.c.pool_opened_at.is_not(None),
        t.leases.c.pool_closed_at.is_(None),
    )
    with store.engine.begin() as connection:
        held_lease(connection, lease.study_id, lease.token)
        rows = connection.execute(dead).all()
        if not rows:
            return
        connection.execute(_next_revision(lease.study_id))
        for row in rows:
            pool = _dead_pool(connection, row)
            insert_charges(connection, lease.study_id, row.id, gap_charges(pool))
            closed = sa.update(t.leases).where(t.leases.c.id == row.id)
            connection.execute(closed.values(pool_closed_at=pool.alive_until))
        _note_overshoot(connection, lease.study_id)


def note_overshoot(store: Store, lease: Lease) -> None:
    """Store by how much a study has exceeded its budget, for example by a confirmation."""
    with store.engine.begin() as connection:
        held_lease(connection, lease.study_id, lease.token)
        connection.execute(_next_revision(lease.study_id))
        _note_overshoot(connection, lease.study_id)


def _note_overshoot(connection: sa.Connection, study_id: int) -> None:
    study = (t.studies.c.id == study_id,)
    limit = (connection.execute(sa.select(t.studies.c.spec).where(*study)).scalar_one().get("budget") or {}).get("usd")
    if limit is None:
        return
    spent = sa.select(sa.func.coalesce(sa.func.sum(t.charges.c.cost_nano_usd), 0))
    spent_nano_usd = int(connection.execute(spent.where(t.charges.c.study_id == study_id)).scalar_one())
    overshoot = max(0, spent_nano_usd - round(limit * NANO))
    connection.execute(sa.update(t.studies).where(*study).values(overshoot_nano_usd=overshoot))


def _next_revision(study_id: int) -> sa.Update:
    return sa.update(t.studies).where(t.studies.c.id == study_id).values(revision=t.studies.c.revision + 1)


def _dead_pool(connection: sa.Connection, row: sa.Row[Any]) -> DeadPool:
    running = connection.execute(
        sa.select(t.attempts).where(t.attempts.c.lease_id == row.id, t.attempts.c.outcome == "running")
    ).all()
    rates = connection.execute(
        sa.select(t.pool_rates).where(t.pool_rates.c.lease_id == row.id).order_by(t.pool_rates.c.id)
    ).all()
    c = t.charges.c
    kind = sa.select(c.kind).where(c.lease_id == row.id, c.kind.in_(OF_SAVED_MODELS)).limit(1)
    prices, charged_until = PriceHistory(row.usd_per_slot_hour), marks(connection, row.id)
    before = set(range(row.pool_slots))
    for rate in rates:
        prices.change(rate.usd_per_slot_hour, rate.since)
        # After a slot's device came back, its mark shows the loss of the device until its next charge.
        for slot in set(rate.slot_numbers) - before:
            charged_until[slot] = max(charged_until[slot], rate.since)
        before = set(rate.slot_numbers)
    cost_money = rates[-1].slot_numbers if rates else charged_until
    return DeadPool(
        prices=prices,
        charged_until={slot: since for slot, since in charged_until.items() if slot in cost_money},
        # A commit also proves life, and may be later than the last heartbeat.
        alive_until=max(row.heartbeat_at, row.pool_opened_at, *charged_until.values()),
        attempts=tuple(
            OpenAttempt(trial_id=one.trial_id, attempt=one.attempt, slots=tuple(one.slots)) for one in running
        ),
        kind=connection.execute(kind).scalar(),
    )


def settle_left(store: Store, study_id: int, *, at_once: bool = False) -> None:
    """Charge slots of dead controllers and confirmations, for a study that may never be driven again.

    `at_once`: a living holder would have renewed its lease by now (see `lease.acquire`).
    """
    if not are_left(store, study_id) or leases.current_holder(store, study_id) is not None:
        return
    lease = leases.acquire(store, study_id, at_once=at_once)
    if isinstance(lease, leases.Holder):
        return
    try:
        settle_dead_pools(store, lease)
    finally:
        leases.release(store, lease)


def gap_charges(pool: DeadPool) -> list[Charged]:
    """Return charges for a dead controller's slots until its last sign of life."""
    holders = {slot: attempt for attempt in pool.attempts for slot in attempt.slots}
    spans: dict[tuple[int, float], list[int]] = defaultdict(list)
    for slot, since in sorted(pool.charged_until.items()):
        if since < pool.alive_until:
            holder = holders.get(slot)
            spans[holder.trial_id if holder else -1, since].append(slot)
    return [
        _charge(span, slots, holders.get(slots[0]), pool.kind)
        for (_, since), slots in sorted(spans.items())
        for span in pool.prices.spans(since, pool.alive_until)
    ]


def _charge(span: PricedSpan, slots: list[int], of: OpenAttempt | None, kind: ChargeKind | None) -> Charged:
    cost = cost_nano_usd(len(slots), span.end - span.begin, span.usd_per_slot_hour)
    if of is None:
        return charged(span, slots, kind or "idle", cost, trial_id=None, attempt=None)
    return charged(span, slots, kind or "lost", cost, trial_id=of.trial_id, attempt=of.attempt)
