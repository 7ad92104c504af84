"""A price that changes while a study runs: each second costs the price of its time, whoever lives to charge it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from automl.stored.auditing import audit
from automl.stored.requests import set_price
from studies.control.controller import Controller
from studies.gangs.pool_protocol import SlotsLost, SlotsReady
from studies.gangs.simulated import SimulatedPool
from studies.money.budget import Limits
from studies.records.records import NANO
from studies.storage.schema import tables as t
from studies.storage.study_store import StoreError
from tests.support.simulated_study import Killed, SimulatedStudy

MONEY = {"charges", "slot_seconds", "intervals", "prices", "trial_costs", "budget"}
SLOTS, BEFORE, AFTER = 4, 3.6, 7.2


def setting_price(study: SimulatedStudy, epochs: int, usd: float, at: list[float]) -> Callable[[Controller], None]:
    """Set the price once the study has so many epochs; appends the moment to `at`."""

    def before(controller: Controller) -> None:
        def on_commit(machine: Any) -> None:
            if not at and sum(trial.epochs_done for trial in machine.trials.values()) >= epochs:
                at.append(machine.now)
                set_price(study.store, "simulated", usd)
                controller.look_for_requests()
                controller.look_for_requests()  # the price still stands there at the next beat

        controller._on_commit = on_commit

    return before


def money_findings(study: SimulatedStudy) -> list[Any]:
    return [one for one in audit(study.store, "simulated")["findings"] if one["check"] in MONEY]


def due_usd(until: float, changed_at: float) -> float:
    return SLOTS * (BEFORE * changed_at + AFTER * (until - changed_at)) / 3600


def test_a_start_is_as_dear_to_the_search_as_before(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, slots=SLOTS, price=BEFORE)
    machine = study.run(Limits(trials=20), before=setting_price(study, 60, BEFORE / 4, []))
    price = machine.setup.search_usd_per_slot_hour
    seen = [trial.snapshot(price) for trial in machine.trials.values() if trial.epochs_done]
    starts = [one.paid_usd / one.usd_per_epoch - one.epochs for one in seen if one.usd_per_epoch]
    assert max(starts) < 1.5
    assert min(starts) > -0.5


def test_each_second_costs_the_price_of_its_time(tmp_path: Path) -> None:
    study, at, asked = SimulatedStudy(tmp_path, slots=SLOTS, price=BEFORE), list[float](), list[str]()
    machine = study.run(Limits(trials=20), before=setting_price(study, 60, AFTER, at))
    assert machine.usd_per_slot_hour == AFTER
    record = study.record()
    sa.event.listen(study.store.engine, "before_cursor_execute", lambda *parts: asked.append(parts[2]))
    assert not money_findings(study)
    assert sum("automl_pool_rates" in one for one in asked) == 1, "the audit reads the prices of pools once"
    assert {charge.usd_per_slot_hour for charge in record.charges} == {BEFORE, AFTER}
    assert record.cost_nano_usd / NANO == pytest.approx(due_usd(study.clock, at[0]))
    across = [epoch for trial in record.started for epoch in trial.epochs
              if epoch.measured_at > at[0] > epoch.measured_at - epoch.wall_seconds + 0.01]  # fmt: skip
    assert across, "no epoch ran while the price changed"
    for epoch in across:
        late = epoch.measured_at - at[0]
        assert epoch.cost_nano_usd / NANO == pytest.approx(
            (BEFORE * (epoch.wall_seconds - late) + AFTER * late) / 3600, rel=1e-6
        )


@pytest.mark.medium
@pytest.mark.parametrize("usd", [AFTER, pytest.param(0.36, marks=pytest.mark.slow)])
def test_the_budget_holds_and_is_used_whatever_the_price_becomes(tmp_path: Path, usd: float) -> None:
    study, at = SimulatedStudy(tmp_path, slots=SLOTS, price=BEFORE), list[float]()
    study.run(Limits(usd=0.6), before=setting_price(study, 60, usd, at))
    assert not money_findings(study)
    assert 0.95 * 0.6 < study.record().cost_nano_usd / NANO <= 0.6


@pytest.mark.medium
def test_a_dead_pool_is_charged_at_the_prices_that_it_had(tmp_path: Path) -> None:
    study, at = SimulatedStudy(tmp_path, slots=SLOTS, price=BEFORE), list[float]()
    study.store.alive_for, study.store.after_commit = 200, True
    with pytest.raises(Killed):
        study.run(Limits(trials=100), before=setting_price(study, 20, AFTER, at))
    killed_at, study.store.alive_for = study.clock, None
    study.clock += 1000.0
    study.run(Limits(trials=len(study.record().started)))
    assert not money_findings(study)
    (first, *_) = study.rows(t.leases)
    charged = [row for row in study.rows(t.charges) if row.lease_id == first.id]
    assert sum(row.cost_nano_usd for row in charged) / NANO == pytest.approx(due_usd(killed_at, at[0]))


class LosesSlots(SimulatedPool):
    """Loses two slots with their devices while they are idle: nobody gets them before."""

    def open(self, slots: int) -> None:
        super().open(slots)
        self._at(0.0, -9, SlotsLost(slots=(2, 3), with_device=True))

    def _happens(self, event: Any) -> list[Any]:
        if isinstance(event, SlotsReady):
            event = SlotsReady(slots=tuple(slot for slot in event.slots if slot < 2))
        return [event] if isinstance(event, SlotsLost | SlotsReady) else super()._happens(event)


class LosesForAWhile(SimulatedPool):
    """Two slots are gone with their devices from 10 s to 150 s."""

    def open(self, slots: int) -> None:
        super().open(slots)
        self._at(10.0, -9, SlotsLost(slots=(2, 3), with_device=True))
        self._at(150.0, -9, SlotsReady(slots=(2, 3)))

    def _happens(self, event: Any) -> list[Any]:
        if isinstance(event, SlotsReady) and self.now() == 0.0:
            event = SlotsReady(slots=tuple(slot for slot in event.slots if slot < 2))
        return [event] if isinstance(event, SlotsLost | SlotsReady) else super()._happens(event)


@pytest.mark.medium
def test_slots_that_came_back_are_not_charged_for_their_absence_by_whoever_settles(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, slots=SLOTS, price=BEFORE, pool=LosesForAWhile)

    def before(controller: Controller) -> None:
        def on_commit(machine: Any) -> None:
            if machine.now >= 150.0:
                raise Killed  # nothing is charged yet to the slots that have just come back

        controller._on_commit = on_commit

    with pytest.raises(Killed):
        study.run(Limits(trials=1000), before=before)
    killed_at = study.clock
    study.clock += 1000.0
    study.run(Limits(trials=len(study.record().started)))
    assert not money_findings(study)
    first = study.rows(t.leases)[0]
    seconds = sum(row.slots * row.seconds for row in study.rows(t.charges) if row.lease_id == first.id)
    assert seconds == pytest.approx(2 * killed_at + 2 * 10.0 + 2 * (killed_at - 150.0), rel=1e-6)


class GainsSlots(SimulatedPool):
    """Two more slots join the four at 20 s."""

    def open(self, slots: int) -> None:
        super().open(slots)
        self._at(20.0, -9, SlotsReady(slots=(4, 5)))


@pytest.mark.medium
def test_slots_that_join_are_charged_from_then_on(tmp_path: Path) -> None:
    study, at = SimulatedStudy(tmp_path, slots=SLOTS, price=BEFORE, pool=GainsSlots), list[float]()
    assert study.run(Limits(usd=0.3), before=setting_price(study, 100, AFTER, at)).state == "closed"
    assert not money_findings(study)
    assert 0.95 * 0.3 < study.record().cost_nano_usd / NANO <= 0.3
    assert any({4, 5} & set(attempt.slots) for trial in study.record().started for attempt in trial.attempts)


@pytest.mark.medium
def test_slots_that_joined_are_charged_after_the_controllers_death(tmp_path: Path) -> None:
    study, at = SimulatedStudy(tmp_path, slots=SLOTS, price=BEFORE, pool=GainsSlots), list[float]()
    study.store.alive_for, study.store.after_commit = 320, True
    with pytest.raises(Killed):
        study.run(Limits(trials=100), before=setting_price(study, 20, AFTER, at))
    killed_at, study.store.alive_for = study.clock, None
    assert killed_at > 30
    study.clock += 1000.0
    study.run(Limits(trials=len(study.record().started)))
    assert not money_findings(study)
    first = study.rows(t.leases)[0]
    seconds = sum(row.slots * row.seconds for row in study.rows(t.charges) if row.lease_id == first.id)
    assert seconds == pytest.approx(4 * killed_at + 2 * (killed_at - 20.0), rel=1e-6)


def test_slots_that_were_lost_cost_nothing_after_the_controllers_death(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, slots=SLOTS, price=BEFORE, pool=LosesSlots)
    assert study.run_until_killed(Limits(trials=100), 200)
    killed_at = study.clock - 1000.0
    study.run(Limits(trials=len(study.record().started)))
    assert not money_findings(study)
    first = study.rows(t.leases)[0]
    seconds = sum(row.slots * row.seconds for row in study.rows(t.charges) if row.lease_id == first.id)
    assert seconds == pytest.approx(2 * killed_at, rel=1e-6)


def test_a_price_that_makes_no_sense_is_refused_and_another_one_of_the_spec_replaces_one_that_was_set(tmp_path):
    study = SimulatedStudy(tmp_path)
    study.run(Limits(usd=0.01))
    most = "from 0 to 1,000,000"
    for usd, said in ((-1.0, most), (float("nan"), most), (1e7, most), (0.0, "Name a price above 0")):
        with pytest.raises(StoreError, match=said):
            set_price(study.store, "simulated", usd)
    assert study.store.price_that_was_set(study.study_id) is None
    set_price(study.store, "simulated", 1e6)
    spec = dict(study.store.require("simulated").spec)
    study.store.change_spec(study.study_id, {**spec, "budget": {"trials": 2}})
    assert study.store.price_that_was_set(study.study_id) == 1e6
    study.store.change_spec(study.study_id, spec, resets_price=True)
    assert study.store.price_that_was_set(study.study_id) is None


def test_a_price_that_is_set_again_changes_nothing(tmp_path: Path) -> None:
    """Whoever looks for the price tells of it at each beat: each would be a row, and a span of its own."""
    study, at = SimulatedStudy(tmp_path, slots=SLOTS, price=BEFORE), list[float]()

    def before(controller: Controller) -> None:
        def on_commit(machine: Any) -> None:
            epochs = sum(trial.epochs_done for trial in machine.trials.values())
            if epochs >= 20:
                at.append(machine.now)
                set_price(study.store, "simulated", BEFORE if epochs < 40 else AFTER)
                controller.look_for_requests()

        controller._on_commit = on_commit

    study.run(Limits(trials=10), before=before)
    assert len(at) > 10
    assert [row.usd_per_slot_hour for row in study.rows(t.pool_rates)] == [AFTER]
    meter = study.machine._live.account._meter
    assert meter is not None
    assert len(meter._prices._prices) == 2
