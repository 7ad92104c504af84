"""Sessions of controllers with a study in a store, on pools in virtual time."""

import time
from pathlib import Path
from typing import Any

from studies.control.assembly import PoolSpec
from studies.control.session import Session
from studies.gangs.simulated import SimulatedPool
from studies.spec.study_spec import parse_spec
from studies.storage.study_store import Store
from tests.support.simulated_study import smooth_curve


def make_study(store: Store, folder: Path) -> int:
    """Make the study `simulated`, of six trials; returns its id."""
    form: Any = {
        "study": "simulated", "task": "digits", "mlflow": "off", "training": {"epochs": 9},
        "objectives": [{"metric": "val_error"}, {"metric": "cost_usd"}], "budget": {"trials": 6},
        "space": {"learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True}},
        "search": {"sampler": "random", "pruner": "mo_asha"},  # which cost no time
    }  # fmt: skip
    return store.create_study("simulated", form, str(folder), time.time())


class Unhurried(SimulatedPool):
    """Virtual time that waits a little for other threads when nothing happens."""

    def wait(self, seconds: float) -> list[Any]:
        if not self._agenda:
            time.sleep(0.002)
        return super().wait(seconds)


def session_of(store: Store, **callbacks: Any) -> Session:
    row = store.require("simulated")
    spec = parse_spec(row.spec, "simulated")
    pool = Unhurried(lambda params, size: smooth_curve(params, size, epochs=9), opened_at=time.time())
    nothing: dict[str, Any] = {"pool": pool, "on_commit": lambda machine: None, "on_stand_by": lambda holder: None}
    place = PoolSpec(device="cpu", slots=2, usd_per_slot_hour=3.6)
    return Session(store=store, row=row, spec=spec, pool_spec=place, **{**nothing, **callbacks})
