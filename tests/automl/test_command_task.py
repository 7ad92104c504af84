"""Studies of a command by the command line: pruned, paused, thawed, killed, resumed, exported, and what is refused."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

from tests.support import optional
from tests.support.command_line import Workplace, finish, message_of
from tests.support.command_trials import script
from tests.support.paths import EXAMPLES
from tests.support.waiting import wait_until

pytestmark = pytest.mark.ray

SCRIPT = """
    import argparse, os, time
    from pathlib import Path
    import automl
    parser = argparse.ArgumentParser()
    for name, kind in (("--lr", float), ("--epochs", int), ("--seconds", float)):
        parser.add_argument(name, type=kind, default=0)
    options = parser.parse_args()
    rank = int(os.environ.get("RANK", 0))
    folder = automl.resume()
    weight = float((folder / "weight").read_text()) if folder else 1.0
    done = int((folder / "done").read_text()) if folder else 0
    for epoch in range(done + 1, options.epochs + 1):
        time.sleep(options.seconds)
        weight -= options.lr * weight
        print("rank", rank, "epoch", epoch, weight)
        if rank == 0 and (kept := automl.checkpoint(epoch)):
            (kept / "weight").write_text(repr(weight))
            (kept / "done").write_text(str(epoch))
        automl.report(epoch=epoch, val_error=abs(weight))
"""
"""Gradient descent on w^2 / 2 in four lines; what it keeps is text."""
SPEC: dict[str, Any] = {
    "study": "command",
    "task": {"command": ["python", "train.py", "--lr={learning_rate}", "--epochs", "{epochs}"], "kill_seconds": 2},
    "space": {
        "learning_rate": {"type": "float", "low": 0.001, "high": 0.3, "log": True},
        "world_size": {"type": "categorical", "choices": [1, 2]},
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
def _script(tmp_path: Path) -> None:
    script(tmp_path, SCRIPT)


def task(*further: str, **options: Any) -> dict[str, Any]:
    return SPEC["task"] | {"command": [*SPEC["task"]["command"], *further]} | options


@pytest.mark.large
def test_trials_are_pruned_paused_and_thawed_and_a_winner_is_exported(place: Workplace) -> None:
    summary = place.json("launch", place.spec(SPEC))
    assert summary["trials"]["complete"] >= 1
    assert summary["trials"]["pruned"] >= 1
    record = place.record("command")
    assert [trial for trial in record.started if len(trial.attempts) > 1], "promotion goes on with paused trials"
    outcomes = {attempt.outcome for trial in record.started for attempt in trial.attempts}
    assert outcomes <= {"complete", "pruned", "paused"}
    assert not [charge for charge in record.charges if charge.kind == "lost"]
    for trial in record.started:
        rate = float(str(trial.params["learning_rate"]))
        for epoch in trial.epochs:  # the same weight, however often it was paused
            assert epoch.metrics["val_error"] == pytest.approx((1 - rate) ** epoch.epoch)
    place.audit("command")
    complete = [trial for trial in record.started if trial.state == "complete"]
    best = min(complete, key=lambda trial: trial.epochs[-1].metrics["val_error"])
    place.json("export", "command", str(best.number), "--out", "files.pt")
    exported = torch.load(place.folder / "files.pt", weights_only=True)
    assert bytes(exported["files"]["done"].tolist()) == b"4"
    printed = place.run("logs", "command", str(best.number), "--attempt", "1").stdout
    assert "rank 0 epoch 1 " in printed
    refused = place.run("logs", "command", str(best.number), "--rank", "7", code=2)
    assert "--rank: found 7, allowed: 0" in refused.stderr


@pytest.mark.medium
@pytest.mark.slow
def test_a_killed_controller_a_killed_rank_and_a_stop_lose_nothing(place: Workplace) -> None:
    slow = {"task": task("--seconds=0.3"), "search": {"pruner": {"name": "none"}}, "budget": {"trials": 3}}
    slow["training"] = {"epochs": 9}
    slow["checkpoints"] = {"every_seconds": 0.1}
    process = place.start("launch", place.spec(SPEC, **slow))
    place.wait_for(lambda rows: any(row.epochs for row in rows), "command")
    os.kill(process.pid, signal.SIGKILL)
    finish(process)

    def kill_a_rank() -> None:
        seen = len(place.record("command").charges)
        place.wait_for(lambda _: len(place.record("command").charges) > seen + 2, "command")
        place.kill_rank(0)

    place.run("resume", "command", meanwhile=kill_a_rank)
    record = place.record("command")
    assert {trial.state for trial in record.started} == {"complete"}
    for trial in record.started:
        assert [epoch.epoch for epoch in trial.epochs] == list(range(1, 10))
        rate = float(str(trial.params["learning_rate"]))
        assert trial.epochs[-1].metrics["val_error"] == pytest.approx((1 - rate) ** 9)
    place.audit("command")


@pytest.mark.large
def test_epochs_that_an_older_state_repeats_are_lost_and_no_cost_of_the_trial(place: Workplace) -> None:
    """The trial is stopped with a state of epoch 1, and trains again what follows."""
    stopped = place.folder / "stopped"
    waits = f"time.sleep(options.seconds if epoch <= 4 or Path({str(stopped)!r}).exists() else 6)"
    script(place.folder, SCRIPT.replace("str(epoch)", "'1'").replace("time.sleep(options.seconds)", waits))
    search, training = {"pruner": {"name": "none"}}, {"epochs": 6}
    one = {"space": {"world_size": {"type": "categorical", "choices": [1]}}, "resources": {"slots": 1}}
    spec = place.spec(SPEC, task=task("--seconds=0.4"), budget={"trials": 1}, search=search, training=training, **one)

    def stop() -> None:
        place.wait_for(lambda rows: len(rows[0].epochs) >= 4, "command")
        place.order_stop("command")

    place.run("launch", spec, code=130, meanwhile=stop)
    stopped.touch()
    done = len(place.record("command").started[0].epochs)
    place.run("resume", "command")
    record = place.record("command")
    trial = record.started[0]
    of_trial = {
        kind: [one for one in record.charges if (one.kind, one.trial) == (kind, 0)] for kind in ("train", "lost")
    }
    assert [epoch.epoch for epoch in trial.epochs] == list(range(1, 7))
    assert sum(one.cost_nano_usd for one in of_trial["train"]) == sum(one.cost_nano_usd for one in trial.epochs)
    assert sum(one.seconds for one in of_trial["lost"]) >= 0.4 * (done - 1), "each repeated epoch sleeps for so long"
    place.audit("command")


@pytest.mark.medium
def test_a_command_whose_trial_is_cut_has_time_to_end_and_leaves_nothing(place: Workplace) -> None:
    asleep = f"trial-of-a-study-that-sleeps-{os.getpid()}"
    script(
        place.folder,
        f"""
        import pathlib, signal, subprocess, sys, time
        def tidy(*_):
            print("tidies up", flush=True)
            time.sleep(0.5)
            pathlib.Path("tidied").touch()
            sys.exit()
        signal.signal(signal.SIGTERM, tidy)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "{asleep}"], start_new_session=True)
        pathlib.Path("started").touch()
        time.sleep(600)
        """,
    )

    def stop() -> None:
        wait_until((place.folder / "started").exists)
        place.order_stop("command")

    spec = place.spec(SPEC, task=task(kill_seconds=20), budget={"trials": 1}, space=SPEC["space"] | {"world_size": 1})
    place.run("launch", spec, code=130, meanwhile=stop)
    wait_until((place.folder / "tidied").exists)
    wait_until(lambda: not [one for one in psutil.process_iter(["cmdline"]) if asleep in (one.info["cmdline"] or [])])


@pytest.mark.large
def test_a_command_that_fails_or_reports_nan_fails_its_trial_with_the_reason_and_the_study_goes_on(place):
    script(
        place.folder,
        """
        import automl, sys
        rate = float(sys.argv[1])
        if rate > 0.6:
            raise ValueError("the reason")
        for epoch in range(1, 4):
            automl.report(epoch=epoch, val_error=float("nan") if epoch == 2 and rate > 0.3 else rate)
        """,
    )
    rates = {"type": "categorical", "choices": [0.1, 0.5, 0.9]}
    first = [{"rate": rate, "world_size": 1} for rate in (0.9, 0.5, 0.1)]
    path = place.spec(
        SPEC, task={"command": ["python", "train.py", "{rate}"], "kill_seconds": 2}, training={"epochs": 3},
        search={"pruner": {"name": "none"}, "first_trials": first}, budget={"trials": 3},
    )  # fmt: skip
    whole = yaml.safe_load(path.read_text()) | {"space": {"rate": rates, "world_size": 1}}
    path.write_text(yaml.safe_dump(whole))
    place.json("launch", path, code=None)
    trials = {trial.params["rate"]: trial for trial in place.record("command").started}
    ended = {rate: (trial.state, trial.failure) for rate, trial in trials.items()}
    assert ended == {0.9: ("failed", "error"), 0.5: ("failed", "diverged"), 0.1: ("complete", None)}
    assert "exit status 1 (attempt 1, rank 0): ValueError: the reason" in str(trials[0.9].error)
    assert "ValueError: the reason" in place.run("logs", "command", str(trials[0.9].number)).stdout
    for trial in trials.values():
        assert all(math.isfinite(epoch.metrics["val_error"] or 0.0) for epoch in trial.epochs)
    place.audit("command")


@pytest.mark.large
def test_a_command_that_saves_nothing_is_not_paused_by_default_and_says_what_a_stop_costs(place: Workplace) -> None:
    script(place.folder, """
        import pathlib, sys, time
        stopped = pathlib.Path(__file__).with_name("stopped")
        for epoch in range(8):
            print(f"epoch {epoch} error {float(sys.argv[1]) / (epoch + 1)}", flush=True)
            time.sleep(0 if stopped.exists() else float(sys.argv[2]))
    """)  # fmt: skip
    printing = {
        "command": ["python", "train.py", "{learning_rate}", "{seconds}"], "epoch_from": "epoch + 1",
        "metrics": {"pattern": r"epoch (?P<epoch>\d+) error (?P<val_error>\S+)"},
    }  # fmt: skip
    space = {"learning_rate": SPEC["space"]["learning_rate"], "seconds": [0.02]}
    more: dict[str, Any] = {"task": printing, "space": space, "training": {"epochs": 8}, "search": {"seed": 1}}
    summary = place.json("launch", place.spec(SPEC | more, budget={"trials": 10}))
    record = place.record("command")
    assert summary["trials"]["complete"] >= 1
    assert [len(trial.attempts) for trial in record.started] == [1] * 10
    assert not [charge for charge in record.charges if charge.kind == "lost"]
    assert any(one.reason.startswith("saves nothing") for trial in record.started for one in trial.decisions)
    place.audit("command")

    def stop() -> None:
        place.wait_for(lambda rows: rows[0].epochs, "slow")
        place.order_stop("slow")

    slow = more | {"study": "slow", "space": space | {"seconds": [20.0]}, "search": {"pruner": {"name": "none"}}}
    place.run("launch", place.spec(SPEC | slow, budget={"trials": 1}), code=130, meanwhile=stop)
    (place.folder / "stopped").touch()
    resumed = place.run("resume", "slow")
    said = "warning: trial 0, attempt 2 started over: the command had saved nothing in {checkpoint_folder}; its"
    assert resumed.stderr.count(said) == 1


@pytest.mark.slow
def test_the_example_is_a_study(place: Workplace) -> None:
    for name in ("command.py", "own_task.py"):
        (place.folder / name).write_text((EXAMPLES / name).read_text())
    spec = yaml.safe_load((EXAMPLES / "command.yaml").read_text()) | {"study": "command"}
    place.json("launch", place.spec(spec, budget={"trials": 4}, resources={"slots": 2}))
    complete = [trial for trial in place.record("command").started if trial.state == "complete"]
    assert complete
    place.audit("command")
    confirmed = place.json("confirm", "command", str(complete[0].number), "--seeds", "1")
    assert "val_error" in json.dumps(confirmed)


@pytest.mark.slow
def test_the_example_of_hydra_is_a_study(place: Workplace) -> None:
    optional.module("hydra")
    (place.folder / "hydra_command.py").write_text((EXAMPLES / "hydra_command.py").read_text())
    spec = yaml.safe_load((EXAMPLES / "hydra_command.yaml").read_text()) | {"study": "command"}
    place.json("launch", place.spec(spec, budget={"trials": 3}, resources={"slots": 2}))
    record = place.record("command")
    assert not [trial.error for trial in record.started if trial.state == "failed"]
    complete = [trial for trial in record.started if trial.state == "complete"]
    assert complete
    for trial in complete:  # the value has reached the script
        rate = float(str(trial.params["learning_rate"]))
        assert trial.epochs[-1].metrics["val_error"] == pytest.approx((1 - rate) ** 8)
    assert {path.name for path in (place.folder / "hydra").iterdir()} == {"0", "1", "2"}
    place.audit("command")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"command": "python train.py"}, "task.command: found 'python train.py', allowed: a list"),
    ({"command": []}, "task.command: found []"),
    ({"command": ["no-such-program"]}, "task.command: this machine has no program 'no-such-program'"),
    ({"command": ["python"], "folder": "none"}, "the folder 'none' does not exist"),
    ({"command": ["python"], "metric": "json"}, "task.metric: found an unknown key"),
    ({"command": ["python", "{lr}"]}, "task.command: found {lr}, allowed in braces: learning_rate,"),
    (
        {"command": ["python", "{learning_rte}"]},
        "task.command: found {learning_rte}, which no trial has. Did you mean {learning_rate}?",
    ),
    ({"command": ["python"], "metrics": "xml"}, "task.metrics: found 'xml', allowed: report, json"),
    (
        {"command": ["python"], "metrics": {"pattern": "(?P<a>.)", "epoch_from": "step"}},
        "task.metrics.epoch_from: this is not a key of metrics. Move it out of metrics",
    ),
    ({"command": ["python"], "metrics": {"wandb": ["val/loss", "val loss"]}}, "different names, such as [val/loss, "),
    (
        {"command": ["python"], "metrics": {"wandb": ["loss", "epoch"]}},
        "Leave them out, and set epoch_from",
    ),
    ({"command": ["python"], "metrics": {"wandb": "loss"}}, "or {wandb: NAMES} or {tensorboard: NAMES} with a list"),
    ({"command": ["python"], "metrics": {"pattern": "("}}, "task.metrics.pattern: found '(', which is no"),
    ({"command": ["python"], "metrics": {"pattern": "x"}}, "with a named group"),
    ({"command": ["python"], "end_seconds": 0}, "task.end_seconds: found 0, allowed: a number above 0"),
    ({"command": ["python"], "environment": ["A"]}, "task.environment: found ['A']"),
]


@pytest.mark.medium
def test_a_spec_with_a_wrong_command_is_refused_with_one_line(place: Workplace) -> None:
    for given, words in REFUSED:
        refused = place.run("launch", place.spec(SPEC | {"task": given}), code=2)
        assert words in message_of(refused.stderr)
        assert not (place.folder / "automl.db").exists()


def test_a_parameter_that_some_trials_have_not_stands_in_a_list(place: Workplace) -> None:
    kinds = {
        "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
        "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"optimizer": ["sgd"]}},
    }
    space = SPEC["space"] | kinds
    refused = place.run("launch", place.spec(SPEC | {"space": space, "task": task("--m={momentum}")}), code=2)
    assert "{momentum} is a parameter that some trials lack" in refused.stderr
    in_list = SPEC["task"] | {"command": ["python", "train.py", ["--m={momentum}"]]}
    place.run("launch", place.spec(SPEC | {"space": space, "task": in_list}), "--dry-run")
