"""Slow ranks and ranks that hang, on a real Ray: the counts of steps tell them apart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from studies.control.machine.confirmation import Retrained, train_again
from studies.gangs.pool_protocol import Event, Progress
from studies.simulation.memory_store import MemoryStore
from studies.spec.sections import FaultsSpec
from tests.support.ray_pool import FOLDER, LentPool, trial_spec
from tests.support.simulated_study import confirming_machine
from trainers.protocol import TrialSpec

pytestmark = pytest.mark.ray


@pytest.fixture
def pool(warm_pool: LentPool) -> Iterator[LentPool]:
    watch = warm_pool.pool._progress
    usual, watch.ask_seconds = watch.ask_seconds, 0.2
    yield warm_pool
    watch.ask_seconds = usual


def hanging(trial: int, folder: Path, fault: str, *, world_size: int = 2, **params: Any) -> TrialSpec:
    return trial_spec(
        trial, folder, world_size=world_size, epochs=2, checkpoint_folder=None, test_at=(2,),
        params={"learning_rate": 0.05, "batch_per_rank": 8, "fault": fault, "at_epoch": 1, **params},
        training={"epochs": 2, "warmup_epochs": 0}, task="faulty_tasks:Hanging", python_path=(FOLDER,),
    )  # fmt: skip


def trained(pool: LentPool, *specs: TrialSpec, silence_seconds: float) -> list[Retrained]:
    faults = FaultsSpec(start_seconds=2 * silence_seconds, silence_seconds=silence_seconds, attempts=1)
    machine = confirming_machine(pool, *specs, faults=faults)  # type: ignore[arg-type]
    rows = MemoryStore("s", {})
    return train_again(machine, pool, rows, study_id=1, lease_token=None)  # type: ignore[arg-type]


@pytest.mark.medium
def test_epochs_that_take_longer_than_the_longest_silence_are_no_hang_since_progress_is_told(
    pool: LentPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, told = pool.wait, list[Progress]()

    def noting(seconds: float) -> list[Event]:
        events = wait(seconds)
        told.extend(event for event in events if isinstance(event, Progress))
        return events

    monkeypatch.setattr(pool, "wait", noting)
    (one,) = trained(pool, hanging(1, tmp_path, "very slow"), silence_seconds=2.0)
    assert (one.failure, one.at(2).epochs) == ("", 2)
    assert one.at(2).wall_seconds > 2 * 4 * 0.6
    assert {event.epoch for event in told} >= {1, 2}
    for epoch in (1, 2):
        fractions = [event.fraction for event in told if event.epoch == epoch]
        assert fractions == sorted(fractions)
        assert any(0.2 < fraction < 0.9 for fraction in fractions)
    assert not told[-1].is_first


@pytest.mark.large
def test_hangs_of_single_ranks_are_found_wherever_they_are(pool: LentPool, tmp_path: Path) -> None:
    """In C code that keeps the interpreter's lock, and at the start."""
    faults = ("hang in C code", "data loading")
    specs = [hanging(10 + number, tmp_path, one, world_size=1, at_rank=-1) for number, one in enumerate(faults)]
    for fault, one in zip(faults, trained(pool, *specs, silence_seconds=1.0), strict=True):
        assert "no rank reported for" in one.failure, fault


@pytest.mark.large
def test_a_hang_in_a_collective_is_found(pool: LentPool, tmp_path: Path) -> None:
    spec = hanging(20, tmp_path, "hang in a collective", at_rank=1, at_epoch=2)
    (one,) = trained(pool, spec, silence_seconds=1.5)
    assert "no rank reported for" in one.failure
