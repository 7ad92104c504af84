"""A process that holds a study's lease and charges its pool until it is killed: `python -m ... URL control|confirm`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from studies.control.machine.confirmation import train_again
from studies.gangs.pool_protocol import Event
from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.ledger import SlotMeter
from studies.records.records import ChargeKind
from studies.storage.leases import lease as leases
from studies.storage.leases.dead_pools import settle_dead_pools
from studies.storage.study_store import Store
from studies.storage.writing.changes import AttemptOpened, Change, PoolChanged, TrialChanged
from tests.support.simulated_study import confirming_machine
from trainers.protocol import ParameterValue, TrialSpec

SLOTS, PRICE = 2, 36.0


class RealTimePool(SimulatedPool):
    """Simulated gangs whose time is the real one."""

    def wait(self, seconds: float) -> list[Event]:
        """Sleep for as long as the virtual time goes on."""
        before = self.now()
        events = super().wait(min(seconds, 0.1))
        time.sleep(self.now() - before)
        return events


def endless_curve(_params: Mapping[str, ParameterValue], _world_size: int) -> Curve:
    """Epochs of a second."""
    return Curve(metrics=({"val_error": 0.5},) * 999, epoch_seconds=(1.0,) * 999)


def control(store: Store, lease: leases.Lease) -> None:
    """Run one trial on the first slot, as a controller does, and charge the second one as idle."""
    trial_id = store.enqueue(lease.study_id, {}, world_size=1, origin="sampler")
    opened_at = time.time()
    meter = SlotMeter(slots=SLOTS, usd_per_slot_hour=PRICE, opened_at=opened_at)
    changes: list[Change] = [
        PoolChanged(columns={"pool_opened_at": opened_at, "pool_slots": SLOTS, "usd_per_slot_hour": PRICE}),
        TrialChanged(trial_id=trial_id, columns={"state": "running", "number": 0}),
        AttemptOpened(trial_id=trial_id, attempt=1, slots=(0,), start_epoch=0, at=opened_at),
    ]
    while True:
        store.commit(lease.study_id, lease.token, changes)
        print("charged", flush=True)
        time.sleep(0.1)
        now = time.time()
        changes = [
            *meter.charge((0,), "train", now - 0.05, trial_id=trial_id, attempt=1),
            *meter.charge((1,), "idle", now),
        ]


def confirm(store: Store, lease: leases.Lease, kind: ChargeKind = "confirm") -> None:
    """Train one configuration again, as `automl confirm` does, or measure it as at a study's end."""
    settle_dead_pools(store, lease)

    class Telling(Store):
        def commit(self, *arguments: Any, **more: Any) -> None:
            super().commit(*arguments, **more)
            print("charged", flush=True)

    spec = TrialSpec(study="digits", trial=0, task="digits", params={}, training={"epochs": 999}, test_at=(999,))
    pool = RealTimePool(endless_curve, opened_at=time.time())
    machine = confirming_machine(pool, spec, slots=SLOTS, kind=kind)
    train_again(machine, pool, Telling(store.url), study_id=lease.study_id, lease_token=lease.token)


def main() -> None:
    """Take the lease of the study `digits`, keep it alive, and do what was asked for."""
    url, what = sys.argv[1:]
    store = Store(url)
    lease = leases.acquire(store, store.require("digits").id)
    if not isinstance(lease, leases.Lease):
        raise SystemExit(f"the lease is held by {lease}")
    with leases.kept(store, lease, on_stop=lambda: None):
        actions: dict[str, Callable[[Store, leases.Lease], None]] = {
            "control": control, "confirm": confirm, "test": partial(confirm, kind="test"),
        }  # fmt: skip
        actions[what](store, lease)


if __name__ == "__main__":
    main()
