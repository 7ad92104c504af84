"""Whole studies through the command line: real Ray, real DDP, real SQLite, real MLflow; and the faults of section 9."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import pytest
import sqlalchemy as sa
import torch

from automl.stored.open_store import kept_checkpoint
from reports.recommending import recommendation_lines
from studies.records.records import StudyRecord
from studies.results.analysis import archive
from studies.results.baselines import baselines
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from tests.support.command_line import DIGITS, SLOW, Workplace, finish, message_of
from tests.support.paths import EXAMPLES
from tests.support.ray_pool import LentPool
from trainers.checkpoints.checkpoint import load_model
from trainers.contract.task_loading import load_task
from trainers.loop.evaluation import evaluate
from trainers.protocol import TEST_SAMPLES

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, shared_pool: LentPool) -> tuple[Workplace, dict[str, Any]]:
    """A study of digits that ran to its end."""
    place = Workplace(tmp_path_factory.mktemp("finished"), shared_pool)
    return place, place.json("launch", place.spec(DIGITS, training={"epochs": 4}, budget={"trials": 8}))


def assert_consistent(place: Workplace, study: str, state: str = "closed") -> StudyRecord:
    """What must hold of any study that ended, however it was disturbed."""
    record = place.record(study)
    assert record.state == state
    assert not {t.state for t in record.started} & ({"running", "paused"} if state == "closed" else {"running"})
    assert [t.number for t in record.started] == list(range(len(record.started)))
    for trial in record.started:
        assert [e.epoch for e in trial.epochs] == list(range(1, len(trial.epochs) + 1)), f"trial {trial.number}"
        assert trial.paid_nano_usd == sum(
            c.cost_nano_usd for c in record.charges if c.trial == trial.number and c.kind in {"start", "train"}
        )
    assert len({json.dumps(dict(t.params), sort_keys=True) for t in record.started}) == len(record.started)
    for point in archive(record):
        assert torch.load(point.checkpoint, weights_only=True)["position"]["epoch"] == point.epoch
    assert_every_slot_second_is_charged_once(place)
    return record


def assert_every_slot_second_is_charged_once(place: Workplace) -> None:
    store = Store(f"sqlite:///{place.folder}/automl.db")
    with store.engine.connect() as connection:
        for lease in connection.execute(sa.select(t.leases).where(t.leases.c.pool_opened_at.is_not(None))):
            charges = connection.execute(sa.select(t.charges).where(t.charges.c.lease_id == lease.id)).all()
            owed = lease.pool_slots * (lease.pool_closed_at - lease.pool_opened_at)
            assert sum(c.slots * c.seconds for c in charges) == pytest.approx(owed, abs=1e-4)
    store.close()


def test_what_a_launch_writes_is_private(finished: tuple[Workplace, dict[str, Any]]) -> None:
    """The shared pool of the tests writes the checkpoints, in processes that were there before."""
    place, summary = finished
    written = [place.folder / "automl.db", Path(summary["report"])]
    assert [oct(one.stat().st_mode & 0o777) for one in written] == ["0o600"] * 2


@pytest.mark.medium
def test_a_study_ends_with_one_story_in_all_its_views(finished: tuple[Workplace, dict[str, Any]]) -> None:
    place, summary = finished
    assert summary["trials"]["complete"] >= 1
    assert summary["trials"]["pruned"] >= 1
    assert {row["world_size"] for row in place.json("trials", "small")} == {1, 2}
    assert_one_story(place, summary)


@pytest.mark.large
def test_the_models_that_matter_are_measured_on_the_test_part_once_at_the_end(place: Workplace) -> None:
    """The recommended model and the baseline, as they were saved; for money of its own kind."""
    usual = {"learning_rate": 0.1, "architecture": "mlp", "width": 32, "world_size": 1}
    changes = {"baselines": [{"name": "usual", "params": usual}], "training": {"epochs": 3}, "budget": {"trials": 3}}
    found = place.json("launch", place.spec(DIGITS, **changes))["recommendation"]
    record = assert_consistent(place, "small")
    (baseline,) = baselines(record)
    taken = (found["trial"], found["epoch"])
    models = {taken, (baseline.trial, baseline.epoch)}
    assert {(one.trial, one.epoch) for one in record.tests} == models
    assert not record.confirmations
    assert found["test"].pop(TEST_SAMPLES) == 300
    model = load_model(record.started[taken[0]].epochs[taken[1] - 1].checkpoint)
    params = dict(record.started[taken[0]].params)
    assert found["test"] == pytest.approx(evaluate(model, load_task("digits"), params, part="test"))
    told = f"On 300 unseen samples: {taken[0]}@{taken[1]} has val_error "
    assert any(line.startswith(told) for line in recommendation_lines(record)[:2])
    of_tests = [charge for charge in record.charges if charge.kind == "test"]
    assert of_tests
    assert sum(charge.cost_nano_usd for charge in of_tests) < record.cost_nano_usd / 4
    place.audit("small")

    place.run("resume", "small", "--set", "budget.trials=4")
    again = assert_consistent(place, "small")
    assert [one for one in again.tests if (one.trial, one.epoch) in models] == list(record.tests)


def assert_one_story(place: Workplace, summary: dict[str, Any]) -> StudyRecord:
    """The store, the command line, Optuna, MLflow and the report agree on a study that ended."""
    record = assert_consistent(place, "small")
    rows = place.json("trials", "small")
    mirror = optuna.load_study(study_name="small", storage=f"sqlite:///{place.folder}/automl.db")
    assert mirror.metric_names == ["val_error", "cost_usd"]
    states = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
    for row, trial in zip(rows, mirror.trials, strict=True):
        assert (row["trial"], states[row["state"]]) == (trial.number, trial.state.name)
        assert row["params"] == trial.params
        assert trial.user_attrs["automl_state"] == row["state"]
        if row["state"] == "complete":
            assert list(row["values"].values()) == trial.values
    assert sorted(trial.number for trial in mirror.best_trials) == sorted(p["trial"] for p in summary["front"])
    client, children = _mlflow(place), _children_in_mlflow(place)
    assert len(children) == len(rows)
    points = sum(len(client.get_metric_history(run.info.run_id, "val_error")) for run in children)
    assert points == sum(row["epochs"] for row in rows)
    assert round(summary["cost_usd"] * 1e9) == record.cost_nano_usd
    assert Path(summary["report"]).read_text().startswith("<!")
    return record


def _mlflow(place: Workplace) -> MlflowClient:
    from mlflow.tracking import MlflowClient

    return MlflowClient(f"sqlite:///{place.folder}/mlflow.db")


def _children_in_mlflow(place: Workplace) -> list[Run]:
    client = _mlflow(place)
    runs = [run for e in client.search_experiments() for run in client.search_runs([e.experiment_id])]
    return [run for run in runs if "mlflow.parentRunId" in run.data.tags]


@pytest.mark.large
def test_trials_that_stop_improving_are_complete_and_cost_no_more(place: Workplace) -> None:
    """Whole trials end before their time, at epochs that no milestone was planned for."""
    epochs, patience = 30, 2
    training = {"epochs": epochs, "schedule": "constant", "early_stop_patience": patience}
    spec = place.spec(DIGITS, training=training, search={"pruner": {"name": "none"}}, budget={"trials": 4})
    record = assert_one_story(place, place.json("launch", spec))
    early = [trial for trial in record.started if len(trial.epochs) < epochs]
    assert early, "no trial stopped improving: the test shows nothing"
    assert {trial.state for trial in record.started} == {"complete"}
    for trial in early:
        losses = [epoch.metrics["val_loss"] for epoch in trial.epochs]
        assert losses.index(min(losses)) == len(losses) - 1 - patience
        last = trial.epochs[-1]
        assert last.is_milestone
        assert trial.values(record.objectives)["val_error"] == last.metrics["val_error"]
        assert trial.paid_nano_usd >= last.metrics["cost_usd"] * 1e9 - 1
        assert f"val_loss stopped improving: complete after {len(losses)} of {epochs} epochs" in trial.reason


@pytest.mark.medium
def test_models_above_a_bound_end_at_their_first_rung_and_count_nowhere(place: Workplace) -> None:
    most = 2500.0
    wanted = [{"metric": "model_parameters", "max": most}]
    summary = place.json("launch", place.spec(DIGITS, constraints=wanted, budget={"trials": 6}))
    record = assert_one_story(place, summary)
    sizes = {trial.number: trial.epochs[-1].metrics["model_parameters"] for trial in record.started}
    large = [trial for trial in record.started if sizes[trial.number] > most]
    assert large, "nothing was too large: the test shows nothing"
    for trial in large:
        assert (trial.state, len(trial.epochs)) == ("pruned", 2), "the first rung"
        assert f"model_parameters was {sizes[trial.number]:g}, above the constraint's max 2500" in trial.reason
    assert summary["front"]
    assert all(sizes[point["trial"]] <= most for point in [*summary["front"], *summary["archive"]])
    assert summary["constraints"] == [
        {"metric": "model_parameters", "min": None, "max": most, "violated_by": len(large)}
    ]
    assert "above the constraint's max 2500" in place.run("explain", "small", large[0].number).stdout
    with pytest.raises(StoreError, match="has no saved model"):
        kept_checkpoint(record, large[0].number, None)


def test_launching_again_prints_the_same_summary_and_another_spec_is_refused(finished):
    place, summary = finished
    assert place.json("launch", "small.yaml") == summary
    assert "archive" in place.run("launch", "small.yaml").stdout
    other = place.run("launch", "small.yaml", "--set", "training.epochs=7", code=2).stderr
    other = message_of(other)
    assert "small.yaml" in other
    assert "training.epochs: 4 in the store, 7 given" in other


@pytest.mark.medium
def test_an_exported_model_has_the_recorded_error(finished: tuple[Workplace, dict[str, Any]]) -> None:
    place, summary = finished
    point = summary["archive"][0]
    written = place.json("export", "small", f"{point['trial']}@{point['epoch']}", "--out", "model.pt")
    assert f"'val_error': {point['values']['val_error']}" in place.script(written["how_to_load"])
    for wrong in ("99", "0@77", "x", "1@", "-1"):
        refused = place.run("export", "small", "--out", "no.pt", "--", wrong, code=2)
        assert message_of(refused.stderr)
    assert not (place.folder / "no.pt").exists()


@pytest.mark.medium
def test_what_reads_a_study_says_what_is_in_it(finished: tuple[Workplace, dict[str, Any]]) -> None:
    place, summary = finished
    status = place.json("status", "small")
    assert {k: v for k, v in status.items() if k != "report"} == {k: v for k, v in summary.items() if k != "report"}
    assert place.json("list")[0]["study"] == "small"
    pruned = next(row for row in place.json("trials", "small") if row["state"] == "pruned")
    why = place.json("explain", "small", pruned["trial"])
    assert why["decisions"][-1]["action"] == "stop"
    assert why["decisions"][-1]["numbers"]["rank"] > why["decisions"][-1]["numbers"]["ranks_that_go_on"]
    assert "scaled to" in place.run("explain", "small", pruned["trial"]).stdout
    table = place.run("trials", "small", "--format", "csv").stdout.splitlines()
    assert len(table) == 1 + len(place.json("trials", "small", "--format", "json"))
    assert place.run("report", "small", "--out", "page.html").stdout.strip() == str(place.folder / "page.html")
    assert place.json("sync", "small") == {"optuna": None, "mlflow": None}


def test_python_sees_the_same_study(finished, monkeypatch):
    import automl

    place, summary = finished
    monkeypatch.chdir(place.folder)
    study = automl.load("small")
    assert [point.trial for point in study.front] == [point["trial"] for point in summary["front"]]
    point = study.archive[0]
    assert not study.load_model(point.trial, point.epoch).training
    with pytest.raises(StoreError, match=r"load_state\(\) needs a training function, but .* is a task. Use load_model"):
        study.load_state(point.trial, point.epoch)


@pytest.mark.large
def test_a_study_whose_money_buys_too_little_ends_and_goes_on_once_it_may(place: Workplace) -> None:
    budget = {"trials": 30, "least_percent_per_10_usd": 1e9}
    ended = place.json("launch", place.spec(DIGITS, search={"sampler": "auto", "pruner": "auto"}, budget=budget))
    assert (ended["state"], ended["stop_reason"]) == ("closed", "not_worthwhile")
    started = sum(ended["trials"].values())
    assert started < 30
    assert ended["next_10_usd_percent"] < 1e9
    again = place.json("launch", "small.yaml")
    assert sum(again["trials"].values()) == started
    more = place.json(
        "resume", "small", "--set", "budget.least_percent_per_10_usd=null", "--set", f"budget.trials={started + 1}"
    )
    assert more["stop_reason"] == "budget_trials"
    assert_consistent(place, "small")


@pytest.mark.large
def test_a_launch_is_told_from_other_processes_to_cut_a_trial_and_to_drain(place: Workplace) -> None:
    """As users run it: in a process of its own, from an empty folder, with processes that keep the views."""
    spec = place.spec(SLOW, training={"epochs": 400}, search={"pruner": "none"}, budget={"trials": 60})
    process = place.start("launch", spec, "--json")
    place.wait_for(lambda rows: bool(rows[0].epochs), "slow")
    assert place.json("cancel", "slow", "0")["message"] == "trial 0 of slow is pruned"
    place.wait_for(lambda rows: len(rows) > 1 and bool(rows[-1].epochs), "slow")
    for _ in range(2):  # `timeout` sends it to the process and to its group
        os.kill(process.pid, signal.SIGTERM)
    code, out, err = finish(process)
    assert code == 130, err
    assert "Traceback" not in err
    assert "SIGTERM" not in err, "the stack that Ray's own handler prints"
    summary = json.loads(out)
    assert (summary["state"], summary["stop_reason"]) == ("drained", "interrupted")
    assert summary["trials"] == summary["trials"] | {"pruned": 1, "running": 0}
    mirror = optuna.load_study(study_name="slow", storage=f"sqlite:///{place.folder}/automl.db")
    record = assert_consistent(place, "slow", "drained")
    assert len(mirror.trials) == len(_children_in_mlflow(place)) == len(record.started) >= 2
    assert record.started[0].epochs
    assert [trial.attempts[-1].outcome for trial in record.started[:2]] == ["cut", "paused"]
    assert not any(charge.kind == "lost" and charge.seconds > 2 for charge in record.charges)


@pytest.mark.large
def test_a_killed_controller_loses_nothing_and_one_that_stands_by_takes_over(place: Workplace) -> None:
    spec = place.spec(SLOW, budget={"trials": 60})  # more than the first one ends before the second one is there
    first = place.start("launch", spec)
    place.wait_for(lambda rows: rows[-1].epochs, "slow")
    left: list[StudyRecord] = []

    def kill_the_first() -> None:
        place.wait_until_said("runs this study already", 200)
        place.wait_for(lambda rows: len(rows) >= 2 and rows[-1].epochs, "slow")
        assert first.poll() is None
        os.kill(first.pid, signal.SIGKILL)
        finish(first)
        left.append(place.record("slow"))
        started = len(left[0].started)
        place.wait_for(lambda rows: len(rows) > started and rows[-1].epochs, "slow")
        place.order_stop("slow")

    place.run("launch", spec, code=130, meanwhile=kill_the_first)
    (before,) = left
    place.json("resume", "slow", "--set", f"budget.trials={len(place.record('slow').started)}")
    after = assert_consistent(place, "slow")
    for was, now in zip(before.started, after.started, strict=False):
        assert dict(was.params) == dict(now.params)
        assert [e.metrics for e in now.epochs][: len(was.epochs)] == [e.metrics for e in was.epochs]
    assert any(charge.kind == "lost" for charge in after.charges)


def test_a_killed_rank_costs_its_epoch_and_a_locked_database_and_a_dead_mlflow_stop_nothing(place, capfd, caplog):
    def disturb() -> None:
        place.wait_for(lambda rows: rows[0].epochs, "slow")
        place.kill_rank(1)
        place.wait_for(lambda rows: len(rows) > 1 and rows[-1].epochs, "slow")
        with contextlib.closing(sqlite3.connect(place.folder / "automl.db", isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(3)
            connection.execute("ROLLBACK")

    spec = place.spec(SLOW, mlflow="http://127.0.0.1:9", budget={"trials": 3}, search={"pruner": {"name": "none"}})
    done = place.run("launch", spec, "--json", meanwhile=disturb)
    assert json.loads(done.stdout)["trials"]["complete"] == 3
    assert "automl sync slow" in done.stderr
    assert capfd.readouterr().out == "", "Ray's own words on stdout would spoil the document"
    assert "rank 1 of 2" in caplog.text
    assert "died" in caplog.text
    record = assert_consistent(place, "slow")
    assert sorted(a.outcome for trial in record.started for a in trial.attempts).count("lost") == 1
    assert any(charge.kind == "lost" for charge in record.charges)


@pytest.mark.large
def test_the_budget_binds_and_what_was_drained_goes_on_to_equal_weights(place: Workplace) -> None:
    sections: dict[str, Any] = {
        # Equal metrics in opposite directions: no milestone dominates another, so all their checkpoints are kept.
        "objectives": [
            {"metric": "val_loss", "direction": "minimize"},
            {"metric": "val_same_loss", "direction": "maximize"},
        ],
        "space": SLOW["space"] | {"world_size": {"type": "categorical", "choices": [1, 2]}},
        "resources": {"slots": 2, "price_per_slot_hour": 450.0},
        "search": {"sampler": "random", "pruner": "none", "seed": 5},
        "training": {"epochs": 12},
    }
    # Two slots cost $1 in 4 s, the first two trials take 5 s side by side: the budget ends while they train.
    spec = place.spec(SLOW, **sections, budget={"usd": 1.0, "trials": 14})
    seen: list[int] = []
    over = threading.Event()
    watcher = threading.Thread(target=_watch_budget, args=(place.folder / "automl.db", seen, over))
    watcher.start()
    first = place.json("launch", spec, code=None)
    over.set()
    watcher.join()
    assert first["stop_reason"] == "budget_usd"
    assert first["cost_usd"] <= 1.0 + first["overshoot_usd"]
    assert seen
    # An epoch that takes longer than was promised, as on a busy machine, is cut a moment late, and that is said.
    allowed = 1e9 * (1.0 + first["overshoot_usd"]) + 1
    assert max(seen) <= allowed, "spent and reserved together passed the budget"
    drained = {int(t.number or 0) for t in place.record("slow").started if t.reason == "closed" and t.epochs}
    assert drained, "the budget ended between two trials, nothing was drained"
    place.json("resume", "slow", "--set", "budget.usd=9", "--set", f"budget.trials={max(drained) + 1}")
    record = assert_consistent(place, "slow")
    (place.folder / "undisturbed").mkdir()
    undisturbed = Workplace(place.folder / "undisturbed", place.pool)
    undisturbed.json("launch", undisturbed.spec(SLOW, **sections, budget={"usd": 9.0, "trials": max(drained) + 1}))
    other = undisturbed.record("slow")
    for number in drained:
        one, two = record.started[number], other.started[number]
        assert dict(one.params) == dict(two.params)
        assert [e.metrics["val_error"] for e in one.epochs] == [e.metrics["val_error"] for e in two.epochs]
        assert_equal_weights(one.epochs[-1].checkpoint, two.epochs[-1].checkpoint)


def assert_equal_weights(one: str | None, two: str | None) -> None:
    assert one
    assert two
    first, second = (torch.load(path, weights_only=True)["model"] for path in (one, two))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def _watch_budget(path: Path, seen: list[int], over: threading.Event) -> None:
    """Read spent and reserved at as many committed moments as possible."""
    query = (
        "select (select coalesce(sum(cost_nano_usd), 0) from automl_charges) + reserved_nano_usd from automl_studies"
    )
    while not over.is_set():
        if path.exists():
            connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
            try:
                seen += [row[0] for row in connection.execute(query)]
            except sqlite3.OperationalError:
                pass
            finally:
                connection.close()
        time.sleep(0.01)


TALKATIVE = """
import torch.distributed as dist

from own_task import Moons


class Talkative(Moons):
    def model(self, params):
        rank = dist.get_rank() if dist.is_initialized() else 0
        print(f"rank {rank} makes a model of width {params['width']}")
        return super().model(params)
"""


@pytest.mark.large
def test_an_own_task_is_known_by_its_code_and_what_its_ranks_print_is_kept(place: Workplace) -> None:
    example = (EXAMPLES / "own_task.py").read_text()
    assert len(example.splitlines()) <= 30
    (place.folder / "own_task.py").write_text(example)
    (place.folder / "talkative.py").write_text(TALKATIVE)
    mapping = {
        "study": "own", "task": "talkative:Talkative", "space": {"width": 8, "learning_rate": 0.1, "world_size": 2},
        "training": {"epochs": 2}, "budget": {"trials": 1}, "resources": {"slots": 2},
    }  # fmt: skip
    assert place.json("launch", place.spec(mapping))["trials"]["complete"] == 1
    record = assert_consistent(place, "own")
    assert set(record.started[0].attempts[0].facts["code_files"]) == {"own_task.py", "talkative.py"}
    for rank in (0, 1):
        said = place.run("logs", "own", "0", "--rank", str(rank)).stdout
        assert said == f"rank {rank} makes a model of width 8\n"
    assert "allowed: 0, 1" in place.run("logs", "own", "0", "--rank", "2", code=2).stderr
    second = place.run("launch", place.spec(mapping)).stderr
    assert "changed" not in second
    assert "own had already ended (budget: " in second
    more = "`automl resume own --set 'budget=$1, 60 min, 2 trials'`"
    assert more in second
    larger = place.run("launch", place.spec(mapping | {"budget": {"trials": 2}}), code=2).stderr
    assert more in larger
    with (place.folder / "own_task.py").open("a") as file:
        file.write("# another comment\n")
    again = place.run("launch", place.spec(mapping))
    assert (
        "own_task.py changed after trial 0 had started: values before and after the change may not be comparable. "
        "Another study name starts a new study"
    ) in again.stderr
