"""After a controller's death: what its slots cost from its last charges to its last heartbeat."""

from __future__ import annotations

from dataclasses import dataclass

from studies.money.ledger import cost_nano_usd
from studies.records import ChargeKind
from studies.storage.changes import Charged


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenAttempt:
    """An attempt that was running when its controller died, charged up to a moment."""

    trial_id: int
    attempt: int
    slots: int
    charged_until: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadPool:
    """A pool whose controller died.

    Attributes:
        alive_until: The last sign of life, a heartbeat or a commit; nobody knows what happened after it.
        charged_slot_seconds: Sum of slots x seconds over the charges of that lease.
    """

    slots: int
    usd_per_slot_hour: float
    opened_at: float
    alive_until: float
    charged_slot_seconds: float
    attempts: tuple[OpenAttempt, ...]


def gap_charges(pool: DeadPool) -> list[Charged]:
    """Running trials' time since their last charge is lost; what is then missing of the pool's time was idle."""
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
