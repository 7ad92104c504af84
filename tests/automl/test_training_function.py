"""Studies of a training function by the command line: pruned, paused, thawed, killed, resumed, confirmed, exported."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from automl.stored.open_store import open_store
from studies.records.records import StudyRecord
from studies.storage.reading.reader import load_study
from tests.support.command_line import Workplace, finish
from tests.support.ray_pool import LentPool

pytestmark = pytest.mark.ray

FUNCTIONS = Path(__file__).parents[1] / "support" / "training_functions.py"
SPEC: dict[str, Any] = {
    "study": "function",
    "task": "training_functions:train",
    "space": {
        "learning_rate": {"type": "float", "low": 0.001, "high": 0.3, "log": True},
        "width": {"type": "int", "low": 2, "high": 64, "log": True},
        "optimizer": {"type": "categorical", "choices": ["adamw"]},
        "world_size": {"type": "categorical", "choices": [1, 2]},
        "batch_per_rank": {"type": "categorical", "choices": [8, 16]},
    },
    "objectives": [{"metric": "val_error", "direction": "minimize"}, {"metric": "cost_usd", "direction": "minimize"}],
    "training": {"epochs": 9},
    "search": {
        "sampler": "random", "seed": 1, "pruner": {"name": "mo_asha", "variant": "promotion", "grace": 1, "eta": 3},
    },
    "budget": {"usd": 1.0, "hours": 0.5, "trials": 10},
    "resources": {"slots": 2},
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, warm_pool: LentPool) -> Iterator[Workplace]:
    place = Workplace(tmp_path, warm_pool)
    (tmp_path / FUNCTIONS.name).write_text(FUNCTIONS.read_text())
    yield place
    place.end_processes()


def record_of(place: Workplace) -> StudyRecord:
    with closing(open_store(f"sqlite:///{place.folder}/automl.db")) as store:
        return load_study(store, "function")


@pytest.mark.large
def test_trials_are_pruned_paused_and_thawed_and_a_winner_is_exported_and_confirmed(place: Workplace) -> None:
    summary = place.json("launch", place.spec(SPEC))
    assert summary["trials"]["complete"] >= 1
    assert summary["trials"]["pruned"] >= 1
    record = record_of(place)
    thawed = [trial for trial in record.started if len(trial.attempts) > 1]
    assert thawed, "promotion goes on with paused trials"
    outcomes = {attempt.outcome for trial in record.started for attempt in trial.attempts}
    assert outcomes <= {"complete", "pruned", "paused"}
    assert not [charge for charge in record.charges if charge.kind == "lost"]
    assert {trial.world_size for trial in record.started} == {1, 2}
    place.audit("function")
    best = min((trial for trial in record.started if trial.state == "complete"), key=lambda one: one.epochs[-1].epoch)
    done = place.json("export", "function", str(best.number), "--out", "model.pt")
    exported = torch.load(place.folder / "model.pt", weights_only=True)
    assert sorted(exported["state"]) == ["model", "optimizer", "schedule"]
    assert exported["epoch"] == done["epoch"]
    confirmed = place.json("confirm", "function", str(best.number), "--seeds", "1")
    assert "val_error" in json.dumps(confirmed)
    assert any(charge.kind == "confirm" for charge in record_of(place).charges)


@pytest.mark.medium
@pytest.mark.slow
def test_a_killed_controller_a_killed_rank_and_a_stop_lose_nothing(place: Workplace) -> None:
    slow = {"task_options": {"step_seconds": 0.1}, "search": {"pruner": {"name": "none"}}, "budget": {"trials": 3}}
    process = place.start("launch", place.spec(SPEC, **slow))
    place.wait_for(lambda rows: any(row.epochs for row in rows), "function")
    os.kill(process.pid, signal.SIGKILL)
    finish(process)

    def kill_a_rank() -> None:
        seen = len(record_of(place).charges)
        place.wait_for(lambda _: len(record_of(place).charges) > seen + 2, "function")
        os.kill(place.pool.pool._slots[0].pid, signal.SIGKILL)

    place.run("resume", "function", meanwhile=kill_a_rank)
    record = record_of(place)
    assert {trial.state for trial in record.started} == {"complete"}
    for trial in record.started:
        assert [epoch.epoch for epoch in trial.epochs] == list(range(1, 10))
    place.audit("function")


@pytest.mark.large
def test_a_function_that_keeps_nothing_starts_anew_and_that_is_charged(place: Workplace) -> None:
    spec = place.spec(
        SPEC, task="training_functions:keeps_nothing", task_options={"step_seconds": 2.0}, budget={"trials": 1},
        training={"epochs": 12}, search={"pruner": {"name": "none"}},
    )  # fmt: skip

    def stop() -> None:  # long before the last epoch, however long a busy machine takes to start the command
        place.wait_for(lambda rows: len(rows[0].epochs) >= 2, "function")
        code, _, err = finish(place.start("stop", "function"))
        assert code == 0, err

    place.run("launch", spec, code=130, meanwhile=stop)
    resumed = place.run("resume", "function")
    started_over = "started over: the function passes no state to trial.epochs(...); epochs that are trained again are"
    assert resumed.stderr.count(f"warning: trial 0, attempt 2 {started_over}") == 1
    explained = place.run("explain", "function", "0").stdout
    assert f"attempt 2 {started_over}" in " ".join(explained.split())
    record = record_of(place)
    assert [epoch.epoch for epoch in record.started[0].epochs] == list(range(1, 13))
    assert sum(charge.seconds for charge in record.charges if charge.kind == "lost") > 1.1
    place.audit("function")


@pytest.mark.large
def test_a_spec_of_a_function_needs_a_space_and_a_plain_function(place: Workplace) -> None:
    path = place.spec({name: value for name, value in SPEC.items() if name != "space"})
    refused = place.run("launch", path, code=2)
    assert "space: found none, allowed: a space" in refused.stderr
    refused = place.run("launch", place.spec(SPEC, task="training_functions:waits"), code=2)
    assert "async function" in refused.stderr
    refused = place.run("launch", place.spec(SPEC, task_options={"steps": 3}), code=2)
    assert "unknown key 'steps'" in refused.stderr
    assert not (place.folder / "automl.db").exists()
