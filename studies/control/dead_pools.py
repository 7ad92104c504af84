"""Arithmetic after a controller's death: what its slots cost from its last charges to its last sign of life."""

from __future__ import annotations

from dataclasses import dataclass

from studies.money.ledger import cost_nano_usd
from studies.records import ChargeKind
from studies.storage.changes import Charged


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenAttempt:
    """An attempt that was running when its controller died, with the moment up to which it is charged."""

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
