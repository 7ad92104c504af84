"""Changes the price of a study's slots, driven or not (`automl price set`)."""

from __future__ import annotations

from typing import Any

from automl.stored.specs import from_store
from reports.phrases import exact_usd
from studies.records.records import MOST_PRICE
from studies.storage.leases import lease as leases
from studies.storage.study_store import Store, StoreError


def set_price(store: Store, name: str, usd_per_slot_hour: float) -> dict[str, Any]:
    """Set the price of a slot from now on.

    Raises:
        StoreError: There is no such study; or the price is negative, too large for the ledger, not a number, or 0 where
            only a limit of dollars ends the study.
    """
    row = store.require(name)
    if not 0 <= usd_per_slot_hour <= MOST_PRICE:  # nor is NaN
        raise StoreError(
            f"price: found {usd_per_slot_hour:g}, allowed: dollars per slot and hour from 0 to {MOST_PRICE:,.0f}"
        )
    if usd_per_slot_hour == 0 and from_store(row.spec, name).budget.is_of_dollars_alone:
        raise StoreError(f"price: found 0, with which budget.usd would never end {name}; allowed: more than 0")
    store.set_price(row.id, usd_per_slot_hour)
    driven = leases.current_holder(store, row.id) is not None
    when = "from now on" if driven else "from its next start on"
    return {
        "study": name,
        "usd_per_slot_hour": usd_per_slot_hour,
        "driven": driven,
        "message": f"a slot of {name} costs {exact_usd(usd_per_slot_hour)} an hour {when}",
    }
