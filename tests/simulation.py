"""Studies on the simulated pool, for tests: the real controller and store, virtual time, made-up learning curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from search_spaces.space import Space
from studies.control.controller import Controller
from studies.control.setup import StudySetup
from studies.control.state import StudyMachine
from studies.gangs.simulated import Curve, SimulatedPool
from studies.milestones import milestones
from studies.money.budget import Limits
from studies.records import Objective
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.search.suggest import Suggester
from studies.storage.reader import load_memory, load_study
from studies.storage.store import Store

SPACE = Space.from_dict(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "width": {"type": "int", "low": 8, "high": 256, "log": True},
    }
)
OBJECTIVES = (Objective(metric="val_error"), Objective(metric="cost_usd"))


def smooth_curve(
    params: Mapping[str, object], world_size: int, *, epochs: int = 27, equal_epochs: bool = False
) -> Curve:
    """Error falls as 1 / epoch towards a floor that depends on the parameters; wider costs more."""
    rate, width = float(params["learning_rate"]), float(params.get("width", 32))  # type: ignore[arg-type]
    floor = 0.02 + 0.05 * abs(math.log10(rate) + 1.5) + 0.2 / width
    seconds = 1.0 if equal_epochs else (0.5 + width / 128) / world_size
    metrics = tuple({"val_error": floor + (0.9 - floor) / (1 + 1.5 * epoch)} for epoch in range(1, epochs + 1))
    return Curve(metrics=metrics, epoch_seconds=(seconds,) * epochs)


def spec_mapping(limits: Limits, epochs: int) -> dict[str, object]:
    return {
        "study": "simulated", "task": "digits", "mlflow": "off", "training": {"epochs": epochs},
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in OBJECTIVES],
        "budget": {"usd": limits.usd, "hours": limits.hours, "trials": limits.trials}, "space": SPACE.to_dict(),
    }  # fmt: skip


class SimulatedStudy:
    """One study in one SQLite file, driven as often as a test wishes."""

    def __init__(self, folder: Path, *, policy: Policy | None = None, sampler: str = "random", epochs: int = 27, slots: int = 4,
                 price: float = 3.6, curve: Callable[[Mapping[str, object], int], Curve] | None = None, seed: int = 0, **times: float) -> None:  # fmt: skip
        self.store = Store(f"sqlite:///{folder}/study.db")
        self.policy = policy or Policy(pruner=MoAsha())
        self.sampler, self.epochs, self.slots, self.price, self.seed = sampler, epochs, slots, price, seed
        self.curve = curve or (lambda params, world_size: smooth_curve(params, world_size, epochs=epochs))
        self.times = times
        self.clock = 0.0
        self.study_id = 0
        self.on_commit: Callable[[StudyMachine], None] | None = None

    def run(self, limits: Limits, *, before: Callable[[Controller], None] | None = None) -> StudyMachine:
        """Launch, or go on with other limits."""
        if not self.study_id:
            self.study_id = self.store.create_study("simulated", spec_mapping(limits, self.epochs), ".", 0.0)
        self.store.change_spec(self.study_id, spec_mapping(limits, self.epochs))
        memory = load_memory(self.store, self.study_id, before_lease=-1)
        closed = [m.record.id for m in memory.trials if m.record.state == "pruned" and m.record.reason == "closed"]
        pool = SimulatedPool(self.curve, opened_at=self.clock, **self.times)  # type: ignore[arg-type]
        machine = StudyMachine(self._setup(limits), memory, alive_since=self.clock, pick=pool.pick)
        if closed:
            machine.reopen(closed)
        row = self.store.study_row("simulated")
        assert row is not None
        suggester = Suggester(
            space=SPACE, directions=("minimize", "minimize"), sampler=self.sampler, seed=self.seed, study_attributes=row.sampler_attributes
        )  # fmt: skip
        controller = Controller(
            machine=machine, pool=pool, store=self.store, suggester=suggester, study_id=self.study_id, lease_id=None,
            background=False, on_commit=self.on_commit,
        )  # fmt: skip
        if before:
            before(controller)
        controller.run()
        self.clock = pool.now()
        return machine

    def record(self):  # noqa: ANN201
        return load_study(self.store, "simulated")

    def _setup(self, limits: Limits) -> StudySetup:
        rungs = self.policy.pruner.rungs(self.epochs)
        return StudySetup(
            study="simulated", objectives=OBJECTIVES, task="digits", task_options={}, training={"epochs": self.epochs},
            epochs=self.epochs, milestones=milestones(self.epochs, 3, rungs), policy=self.policy, limits=limits,
            slots=self.slots, usd_per_slot_hour=self.price, seed=self.seed, checkpoint_folder="/nowhere",
        )  # fmt: skip
