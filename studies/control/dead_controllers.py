"""Charges for the slots of dead controllers, from their last charges to their last heartbeat."""

from collections import defaultdict

from studies.money.ledger import PricedSpan, charged, cost_nano_usd
from studies.records.records import ChargeKind
from studies.storage.leases import dead_pools
from studies.storage.leases import lease as leases
from studies.storage.leases.dead_pools import DeadPool, OpenAttempt
from studies.storage.leases.lease import Lease
from studies.storage.study_store import Store
from studies.storage.writing.changes import Charged
from studies.storage.writing.retrying import retry_patiently


def settle_dead_pools(store: Store, lease: Lease) -> None:
    """Charge the uncharged time of dead controllers' pools; retries for some seconds if the store is locked."""
    retry_patiently(lambda: dead_pools.settle(store, lease, gap_charges))


def settle_left(store: Store, study_id: int, *, at_once: bool = False) -> None:
    """Settle the pools that dead controllers and confirmations left, for a study that may never be driven again.

    `at_once`: a living holder is known to have had time to renew its lease (`lease.acquire`).
    """
    if not dead_pools.are_left(store, study_id) or leases.current_holder(store, study_id) is not None:
        return
    lease = leases.acquire(store, study_id, at_once=at_once)
    if isinstance(lease, leases.Holder):
        return
    try:
        settle_dead_pools(store, lease)
    finally:
        leases.release(store, lease)


def gap_charges(pool: DeadPool) -> list[Charged]:
    """Return charges for uncharged time: the pool's kind if it has one, else `lost` for running trials, or `idle`."""
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
