"""A study put together from a spec, as `automl launch` does, on made-up curves in virtual time."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studies.control.assembly import PoolSpec, assemble, setup_of
from studies.control.controller import Controller
from studies.control.machine.study_setup import StudySetup
from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import Limits
from studies.spec.study_spec import StudySpec, parse_spec
from studies.storage.leases import lease as leases
from tests.support.simulated_study import SimulatedStudy, smooth_curve

EPOCHS, SLOTS, PRICE = 27, 3, 3.6
SPEC: Mapping[str, Any] = {
    "study": "simulated",
    "task": "digits",
    "mlflow": "off",
    "objectives": [
        {"metric": "val_error", "direction": "minimize"},
        {"metric": "cost_usd", "direction": "minimize"},
    ],
    "space": {
        "learning_rate": {
            "type": "float", "low": 1e-4, "high": 1.0, "log": True, "prior": {"center": 0.03, "confidence": "low"},
        },
        "batch_per_rank": {"type": "int", "low": 16, "high": 128, "step": 16},
        "world_size": {"type": "categorical", "choices": [1, 2]},
        "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
        "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
    },
    "training": {"epochs": EPOCHS},
    "budget": {"usd": 0.25, "hours": None, "trials": 60},
    "resources": {"slots": SLOTS, "price_per_slot_hour": PRICE},
    "checkpoints": {"most_paused": 6},
}  # fmt: skip


def curve(params: Mapping[str, Any], world_size: int) -> Curve:
    """Error and time that depend on every parameter; momentum counts where it exists, and high rates diverge."""
    width = float(params["batch_per_rank"])
    rate = min(params["learning_rate"] * (1.0 + params.get("momentum", 0.3)), 1.0)
    smooth = smooth_curve({"learning_rate": rate, "width": width}, world_size, epochs=EPOCHS)
    if params["learning_rate"] <= 0.7:
        return smooth
    metrics = [*smooth.metrics[:3], *({"val_error": math.nan} for _ in smooth.metrics[3:])]
    return Curve(metrics=tuple(metrics), epoch_seconds=smooth.epoch_seconds)


class AssembledStudy(SimulatedStudy):
    """Settings, policy and suggester are those that the spec asks for."""

    def __init__(
        self, folder: Path, sampler: str, pruner: object, baselines: tuple[Mapping[str, Any], ...] = ()
    ) -> None:
        search = {"sampler": sampler, "pruner": pruner, "seed": 5, "first_trials": list(baselines)}
        named = [{"name": f"usual {place}", "params": one} for place, one in enumerate(baselines)]
        self.spec: StudySpec = parse_spec({**SPEC, "search": search, "baselines": named}, "golden")
        self.limits = Limits(usd=float(self.spec.budget.usd or 0.0), trials=self.spec.budget.trials)
        super().__init__(
            folder, epochs=EPOCHS, slots=SLOTS, price=PRICE, curve=curve, space=self.spec.space,
            checkpoint_folder="/nowhere",
        )  # fmt: skip

    def _setup(self, limits: Limits) -> StudySetup:
        reference = self.store.require("simulated").reference_point
        place = PoolSpec(device="cpu", slots=self.slots, usd_per_slot_hour=self.price)
        attributes = self.store.require("simulated").sampler_attributes
        self.assembled = assemble(self.spec, place, study_attributes=attributes)
        return setup_of(self.spec, place, self.assembled.policy, Path("/nowhere"), reference)

    def _controller(self, pool: SimulatedPool, lease: leases.Lease) -> Controller:
        return Controller(
            machine=self.machine, pool=pool, store=self.store, suggester=self.assembled.suggester,
            study_id=self.study_id, lease_token=lease.token, background=False,
        )  # fmt: skip
