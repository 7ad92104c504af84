"""Durations come from the ranks: neither a clock that is set nor a controller held up changes what an epoch costs."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from studies import steady_clock
from studies.control.machine.state import StudyMachine
from studies.gangs.on_ray import RayPool
from studies.gangs.pool_protocol import GangStarted
from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import Limits
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.storage.leases import lease as leases
from studies.storage.schema import tables as t
from tests.support.simulated_study import DAY, SimulatedStudy, checked
from tests.support.stored_study import StoredStudy


class MeasuringPool(SimulatedPool):
    """Ranks that measure their starts, as real ones do, and go on while the controller is held up."""

    def wait(self, seconds: float) -> list[Any]:
        return [
            GangStarted(trial_id=event.trial_id, attempt=event.attempt, seconds=self._start_seconds)
            if isinstance(event, GangStarted)
            else event
            for event in super().wait(seconds)
        ]


def epochs_of_a_second(_params: Any, _world_size: int) -> Curve:
    metrics = tuple({"val_error": 1 / (1 + epoch)} for epoch in range(9))
    return Curve(metrics=metrics, epoch_seconds=(1.0,) * 9)


def test_a_store_that_waits_is_charged_to_no_epoch(tmp_path: Path) -> None:
    """The store takes 30 s for one commit in the midst of training, and 3 s for some others."""
    study = SimulatedStudy(
        tmp_path, slots=2, epochs=9, curve=epochs_of_a_second, pool=MeasuringPool, start_seconds=0.5, thaw_seconds=0.5,
        policy=Policy(pruner=MoAsha(variant="promotion")), faults=DAY,
    )  # fmt: skip
    pools: list[SimulatedPool] = []
    commits = 0

    def slow(_machine: StudyMachine) -> None:
        nonlocal commits
        commits += 1
        pools[0]._now += 30.0 if commits == 9 else 3.0 if commits % 11 == 0 else 0.0

    study.on_commit = slow
    study.run(Limits(trials=8), before=lambda controller: pools.append(controller._pool))  # type: ignore[arg-type]
    record = checked(study)
    epochs = [epoch for trial in record.started for epoch in trial.epochs]
    assert len(epochs) > 20
    assert all(math.isclose(epoch.wall_seconds, 1.0, abs_tol=1e-6) for epoch in epochs)
    assert len({epoch.cost_nano_usd for epoch in epochs}) == 1
    starts = [charge.seconds for charge in record.charges if charge.kind == "start"]
    assert all(seconds == pytest.approx(0.5) for seconds in starts)
    assert sum(charge.slots * charge.seconds for charge in record.charges if charge.kind == "idle") > 30.0


@pytest.mark.parametrize("step", [-60.0, 3600.0])
def test_a_clock_that_is_set_moves_neither_the_pool_nor_the_hours(tmp_path, monkeypatch, step):
    real, pool, study = time.time, RayPool(), StoredStudy(tmp_path)
    lease = leases.acquire(study.store, study.id)
    before, began = pool.now(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: real() + step)
    passed = time.monotonic() - began
    assert passed <= pool.now() - before <= passed + 5.0
    assert lease.now() == pytest.approx(steady_clock.now(), abs=1.0)
    leases.release(study.store, lease)
    with study.store.snapshot() as connection:
        assert 0.0 <= leases.alive_seconds(connection, study.id) < 30.0
    study.store.close()


def test_closing_the_pool_is_not_the_time_of_the_study(tmp_path: Path) -> None:
    """Ray takes seconds to end: neither its dollars nor its hours are the study's."""
    study = SimulatedStudy(tmp_path, slots=1, curve=epochs_of_a_second, epochs=9)
    study.run(Limits(hours=30 / 3600))
    (row,) = study.rows(t.leases)
    with study.store.engine.begin() as connection:
        connection.execute(t.leases.update().values(released_at=row.released_at + 7.0))
    assert study.record().alive_seconds == pytest.approx(row.pool_closed_at - row.acquired_at)
    assert study.record().alive_seconds <= 30.0
