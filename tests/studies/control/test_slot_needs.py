"""A study whose slots an autoscaler brings, in virtual time: what it pays for, and which slots it lets go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from search_spaces.space import Space
from studies.control.controller import Controller
from studies.control.machine import draining
from studies.control.machine.study_setup import StudySetup
from studies.gangs.pool_protocol import DrainRequested, Event, SlotsReady
from studies.gangs.simulated import Curve, SimulatedPool
from studies.gangs.standing_groups import least_shared
from studies.money.budget import Limits
from studies.records.records import StudyRecord
from studies.search.policy import Decision, History, Policy, StoppingPruner
from tests.studies.control.test_controller import EVERY_TRIAL, MIXED
from tests.support.simulated_study import SimulatedStudy, check_epochs, smooth_curve

COMES_AT = {0: 10.0, 1: 20.0, 2: 40.0, 3: 40.0}
STOP = DrainRequested(reason="stopped")


class Autoscaled(SimulatedPool):
    """Slots that come one after the other; one that was let go neither comes nor may be used."""

    latest: ClassVar[Any] = None
    comes_at: ClassVar[dict[int, float]] = COMES_AT

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.released: dict[int, float] = {}
        self.came: dict[int, float] = {}
        Autoscaled.latest = self

    def open(self, slots: int) -> None:
        for slot in range(slots):
            self._at(self.comes_at[slot], -1, SlotsReady(slots=(slot,)))

    def release(self, slots: tuple[int, ...]) -> None:
        held = {slot for gang in self._gangs.values() for slot in gang.slots}
        assert not held & set(slots), "a slot was let go that a gang holds"
        assert not self.released.keys() & set(slots), "a slot was let go twice"
        self.released |= dict.fromkeys(slots, self.now())

    def start(self, trial_id: int, spec: Any, slots: tuple[int, ...], until: int) -> None:
        assert not self.released.keys() & set(slots), "a trial was started on a slot that was let go"
        super().start(trial_id, spec, slots, until)

    def _happens(self, event: Any) -> list[Event]:
        if isinstance(event, SlotsReady):
            if set(event.slots) <= self.released.keys():
                return []
            self.came = {**dict.fromkeys(event.slots, self.now()), **self.came}
        return super()._happens(event)


NARROW = Space.from_dict({"learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True}})


class AutoscaledStudy(SimulatedStudy):
    def _setup(self, limits: Limits) -> StudySetup:
        sizes = (1, 2, 4) if self.space is MIXED else None
        return replace(super()._setup(limits), autoscale=True, world_sizes=sizes)


def study_on(
    folder: Path, *, policy: Policy = EVERY_TRIAL, epochs: int = 9, slower: float = 0.0, **options: Any
) -> AutoscaledStudy:
    """A study with epochs of 1 s, or of so many times 0.5 to 2.5 s."""

    def curve(params: Any, world_size: int) -> Curve:
        smooth = smooth_curve(params, world_size, epochs=epochs, equal_epochs=not slower)
        return replace(smooth, epoch_seconds=tuple(seconds * (slower or 1.0) for seconds in smooth.epoch_seconds))

    return AutoscaledStudy(folder, pool=Autoscaled, policy=policy, slots=4, epochs=epochs, curve=curve, **options)


def check_charges(study: SimulatedStudy, began: float) -> StudyRecord:
    """Each slot is charged from its coming to its letting go or the end, and at no other time."""
    record, pool = study.record(), Autoscaled.latest
    check_epochs(record)
    there = {slot: pool.released.get(slot, study.clock) - came for slot, came in pool.came.items()}
    charged = sum(charge.slots * charge.seconds for charge in record.charges)
    assert charged == pytest.approx(sum(there.values()))
    assert min(pool.came.values(), default=began) >= began
    return record


def test_slots_cost_nothing_before_they_are_there_and_wide_trials_wait_for_enough_of_them(tmp_path: Path) -> None:
    study = study_on(tmp_path, space=MIXED)
    study.run(Limits(trials=12))
    record = check_charges(study, 10.0)
    assert [trial.state for trial in record.started] == ["complete"] * 12
    starts = [(trial.world_size, trial.attempts[0].started_at.timestamp()) for trial in record.started]
    assert min(at for size, at in starts if size == 1) == 10.0
    assert min(at for size, at in starts if size == 4) >= 40.0


def test_slots_are_let_go_once_fewer_trials_are_left_than_slots(tmp_path: Path) -> None:
    study = study_on(tmp_path, space=NARROW, epochs=27)
    study.run(Limits(trials=6))
    record, pool = check_charges(study, 10.0), Autoscaled.latest
    assert [trial.state for trial in record.started] == ["complete"] * 6
    ends = sorted(trial.ended_at.timestamp() for trial in record.started if trial.ended_at)
    idle = sum(charge.slots * charge.seconds for charge in record.charges if charge.kind == "idle")
    assert idle == pytest.approx(0.0, abs=1e-6), "each slot was let go with the end of its last trial"
    assert sorted(pool.released.values()) == pytest.approx(ends[2:5])


def test_a_study_asks_for_no_more_slots_than_its_trials_need(tmp_path: Path) -> None:
    study = study_on(tmp_path, space=NARROW)
    study.run(Limits(trials=2))
    pool = Autoscaled.latest
    assert {slot: at for slot, at in pool.released.items() if at == 0.0} == {3: 0.0, 2: 0.0}
    assert pool.released[1] == 19.0, "the other trial has slot 0 before slot 1 is there"
    assert sorted(pool.came) == [0]
    check_charges(study, 10.0)


def test_slots_are_let_go_when_the_study_drains(tmp_path: Path) -> None:
    study = study_on(tmp_path, space=NARROW, epochs=27)
    study.run(Limits(trials=60), before=lambda controller: controller._pool._at(25.0, -1, STOP))  # type: ignore[attr-defined]
    record, pool = check_charges(study, 10.0), Autoscaled.latest
    assert (record.state, record.stop_reason) == ("drained", "stopped")
    assert (pool.released[2], pool.released[3]) == (25.0, 25.0), "they were not there yet, and are asked for no more"
    assert sorted(pool.came) == [0, 1]


def test_slots_are_let_go_when_nothing_fits_into_the_rest_of_the_budget(tmp_path: Path) -> None:
    study = study_on(tmp_path, space=MIXED, epochs=27, slower=32.0)
    study.run(Limits(usd=4.0))
    record, pool = check_charges(study, 10.0), Autoscaled.latest
    assert record.stop_reason == "budget_usd"
    assert record.cost_nano_usd <= 4.0e9
    assert pool.released
    assert min(pool.released.values()) < study.clock


class OneGoesOn(StoppingPruner):
    """Pauses all trials but the sixth one at epoch 3, and lets none of them go on."""

    def rungs(self, epochs: int) -> tuple[int, ...]:
        return (3,) if epochs > 3 else ()

    def decide(self, history: History, number: int, rung: int) -> Decision:
        return Decision(action="continue" if number == 5 else "pause", reason="as the test wants it")


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_slot_that_the_policy_has_no_use_for_is_let_go_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    """Trials wait for the policy, which may let them go on: it is not known that their slots are needed no more."""
    monkeypatch.setattr(draining, "PATIENCE_SECONDS", 5.0)
    monkeypatch.setattr(Autoscaled, "comes_at", dict.fromkeys(range(4), 10.0))
    study = study_on(tmp_path, policy=Policy(pruner=OneGoesOn()), space=MIXED, epochs=60)

    def enqueue(controller: Controller) -> None:
        for number in range(6):
            size = 1 if number else world_size
            params = {"learning_rate": 0.1, "width": 32, "world_size": size}
            study.store.enqueue(study.study_id, params, world_size=size, origin="enqueue")
        controller.look_for_requests()

    study.run(Limits(trials=6), before=enqueue)
    pool = Autoscaled.latest
    check_charges(study, 10.0)
    if world_size == 1:
        assert len(pool.released) == 3
        assert [*pool.released.values()] == pytest.approx([18.0] * 3, abs=0.6)
    else:
        assert not pool.released, "the widest trial that waits could not go on any more"


@pytest.mark.parametrize(
    ("node_of", "free", "count", "expected"),
    [
        ({0: "a", 1: "a", 2: "b"}, (0, 1, 2), 1, (2,)),
        ({0: "a", 1: "b", 2: "b", 3: "a"}, (0, 1, 2), 2, (1, 2)),
        ({0: "a", 1: "b", 2: "a", 3: "b"}, (0, 1), 1, (0,)),
        ({3: "a", 1: "b", 2: "b"}, (1, 2, 3), 3, (3, 1, 2)),
    ],
)
def test_nodes_are_emptied_whole(
    node_of: dict[int, str], free: tuple[int, ...], count: int, expected: tuple[int, ...]
) -> None:
    assert least_shared(node_of, free, count) == expected
