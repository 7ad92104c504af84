"""Studies of a training function by the command line: pruned, paused, thawed, killed, resumed, confirmed, exported."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.command_line import Workplace

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
    "training": {"epochs": 4},
    "search": {
        "sampler": "random", "seed": 1, "pruner": {"name": "mo_asha", "variant": "promotion", "grace": 1, "eta": 2},
    },
    "budget": {"usd": 1.0, "hours": 0.5, "trials": 6},
    "resources": {"slots": 2},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _functions(tmp_path: Path) -> None:
    (tmp_path / FUNCTIONS.name).write_text(FUNCTIONS.read_text())


@pytest.mark.large
def test_trials_are_pruned_paused_and_thawed_and_a_winner_is_exported_and_confirmed(place: Workplace) -> None:
    summary = place.json("launch", place.spec(SPEC, task_options={"test": True}))
    assert summary["trials"]["complete"] >= 1
    assert summary["trials"]["pruned"] >= 1
    record = place.record("function")
    thawed = [trial for trial in record.started if len(trial.attempts) > 1]
    assert thawed, "promotion goes on with paused trials"
    outcomes = {attempt.outcome for trial in record.started for attempt in trial.attempts}
    assert outcomes <= {"complete", "pruned", "paused"}
    assert not [charge for charge in record.charges if charge.kind == "lost"]
    assert {trial.world_size for trial in record.started} == {1, 2}
    (tested,) = record.tests
    taken = summary["recommendation"]
    assert (tested.trial, tested.epoch) == (taken["trial"], taken["epoch"])
    assert tested.metrics["test.seen"] == 45
    place.audit("function")
    best = min((trial for trial in record.started if trial.state == "complete"), key=lambda one: one.epochs[-1].epoch)
    done = place.json("export", "function", str(best.number), "--out", "model.pt")
    exported = torch.load(place.folder / "model.pt", weights_only=True)
    assert sorted(exported["state"]) == ["model", "optimizer", "schedule"]
    assert exported["epoch"] == done["epoch"]
    confirmed = place.json("confirm", "function", str(best.number), "--seeds", "1")
    assert "val_error" in json.dumps(confirmed)
    assert confirmed["measured_on"] == "test"
    assert any(charge.kind == "confirm" for charge in place.record("function").charges)


@pytest.mark.large
def test_a_function_that_keeps_nothing_starts_anew_and_that_is_charged(place: Workplace) -> None:
    spec = place.spec(
        SPEC, task="training_functions:keeps_nothing", task_options={"step_seconds": 0.5}, budget={"trials": 1},
        training={"epochs": 8}, search={"pruner": {"name": "none"}},
    )  # fmt: skip

    def stop() -> None:
        place.wait_for(lambda rows: len(rows[0].epochs) >= 2, "function")
        place.order_stop("function")

    place.run("launch", spec, code=130, meanwhile=stop)
    resumed = place.run("resume", "function")
    started_over = "started over: the function passes no state to trial.epochs(...); epochs that are trained again are"
    assert resumed.stderr.count(f"warning: trial 0, attempt 2 {started_over}") == 1
    explained = place.run("explain", "function", "0").stdout
    assert f"attempt 2 {started_over}" in " ".join(explained.split())
    record = place.record("function")
    assert [epoch.epoch for epoch in record.started[0].epochs] == list(range(1, 9))
    assert sum(charge.seconds for charge in record.charges if charge.kind == "lost") > 0.5
    place.audit("function")
