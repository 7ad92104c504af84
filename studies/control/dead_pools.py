"""Arithmetic after a controller's death: what its slots cost from its last charges to its last sign of life."""

from __future__ import annotations

from studies.money.ledger import cost_nano_usd
from studies.records import ChargeKind
from studies.storage import dead_pools
from studies.storage.changes import Charged
from studies.storage.dead_pools import DeadPool, OpenAttempt
from studies.storage.lease import Lease
from studies.storage.store import Store, retry_patiently


def settle_dead_pools(store: Store, lease: Lease) -> None:
    """Charge what pools of dead controllers cost after their last charges; waits some seconds for a locked store."""
    retry_patiently(lambda: dead_pools.settle(store, lease, gap_charges))


def gap_charges(pool: DeadPool) -> list[Charged]:
    """Charges for time that is not charged yet: of running trials as `lost`, of the rest of the pool as `idle`."""
    charges = [
        _charge(pool, "lost", attempt.slots, pool.alive_until - attempt.charged_until, attempt)
        for attempt in pool.attempts
        if pool.alive_until > attempt.charged_until
    ]
    lost = sum(charge.slots * charge.seconds for charge in charges)
    owed = pool.slots * max(pool.alive_until - pool.opened_at, 0.0)
    idle = owed - pool.charged_slot_seconds - lost
    if idle > 1e-6:
        charges.append(_charge(pool, "idle", 1, idle, None))
    return charges


def _charge(pool: DeadPool, kind: ChargeKind, slots: int, seconds: float, of: OpenAttempt | None) -> Charged:
    return Charged(
        kind=kind,
        trial_id=of.trial_id if of else None,
        attempt=of.attempt if of else None,
        slots=slots,
        seconds=seconds,
        usd_per_slot_hour=pool.usd_per_slot_hour,
        cost_nano_usd=cost_nano_usd(slots, seconds, pool.usd_per_slot_hour),
        at=pool.alive_until,
    )
