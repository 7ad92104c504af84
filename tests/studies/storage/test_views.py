"""The Optuna and the MLflow view tell the same story as the store, whatever dies on the way."""

from __future__ import annotations

import json
import os
import posixpath
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from studies.control.machine.study_setup import EndGang
from studies.gangs.simulated import Curve
from studies.money.budget import Limits
from studies.records.records import StudyRecord
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from studies.storage.views import cursors, mirror, mlflow_connect, view_pace, view_rows, views_process
from studies.storage.views import optuna_view as optuna_view_module
from studies.storage.views.mlflow_runs import mlflow_key, mlflow_keys
from studies.storage.views.optuna_view import OptunaView
from studies.storage.views.views_process import ViewsProcess
from studies.storage.writing.changes import StudyChanged
from tests.support import simulated_study
from tests.support.databases import mlflow_database
from tests.support.simulated_study import SimulatedStudy, smooth_curve

NAME = "simulated"
STATES = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL", "running": "RUNNING", "paused": "RUNNING"}
STATUS = {"complete": "FINISHED", "pruned": "KILLED", "failed": "FAILED", "running": "RUNNING", "paused": "RUNNING"}


class Cut(BaseException):
    """Stands for kill -9: nothing catches it."""


@pytest.fixture
def mlflow_uri(tmp_path: Path) -> str:
    (tmp_path / "mlflow.db").write_bytes(mlflow_database())
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def make_study(folder: Path, monkeypatch: pytest.MonkeyPatch, mlflow: str = "off", **more: Any) -> SimulatedStudy:
    plain = simulated_study.spec_mapping
    monkeypatch.setattr(
        simulated_study, "spec_mapping", lambda limits, epochs: {**plain(limits, epochs), "mlflow": mlflow}
    )
    more = {"epochs": 9, "slots": 2, **more}
    return SimulatedStudy(folder, **more)


def drained(study: SimulatedStudy, limits: Limits, after_ends: int) -> None:
    """Run until so many gangs have ended, then drain: paused trials stay paused."""
    seen = 0

    def watch(controller: Any) -> None:
        do = controller._do

        def counting(command: object) -> None:
            nonlocal seen
            seen += isinstance(command, EndGang)
            do(command)
            if seen == after_ends:
                seen += 1
                controller.drain("stopped")

        controller._do = counting

    study.run(limits, before=watch)


def load(study: SimulatedStudy) -> optuna.Study:
    url = study.store.url.replace("postgresql://", "postgresql+psycopg://")
    # No pool: what is not in use is closed.
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": sa.NullPool})
    return optuna.load_study(study_name=NAME, storage=storage)


def check_optuna(record: StudyRecord, mirrored: optuna.Study) -> None:
    assert mirrored.metric_names == [o.metric for o in record.objectives]
    trials = mirrored.trials
    assert [trial.number for trial in trials] == [trial.number for trial in record.started]
    for ours, theirs in zip(record.started, trials, strict=True):
        assert theirs.state.name == STATES[ours.state], ours.number
        assert theirs.user_attrs["automl_state"] == ours.state
        assert theirs.user_attrs["epochs"] == len(ours.epochs)
        assert theirs.user_attrs["cost_usd"] == pytest.approx(ours.paid_nano_usd / 1e9)
        assert theirs.params == dict(ours.params)
        assert not theirs.intermediate_values
        assert all(len(json.dumps(value)) < 1024 for value in theirs.user_attrs.values())
        assert theirs.datetime_start.timestamp() == pytest.approx(ours.started_at.timestamp(), abs=1e-5)
        expected = list(ours.values(record.objectives).values()) if ours.state == "complete" else None
        assert theirs.values == expected
        assert theirs.user_attrs.get("values", {}) == ours.values(record.objectives)
        assert all(type(value) is float for value in theirs.values or ())


def check_mlflow(record: StudyRecord, uri: str) -> None:
    client = mlflow_connect.open_client(uri)
    runs = [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id], max_results=5000)]
    mine = [run for run in runs if run.data.tags.get("automl.study_uid") == record.uid]
    (parent,) = [run for run in mine if "mlflow.parentRunId" not in run.data.tags]
    expected = {"running": "RUNNING", "drained": "KILLED", "closed": "FINISHED", "failed": "FAILED"}[record.state]
    assert parent.info.status == expected
    assert parent.data.tags["automl.state"] == record.state
    children = {int(run.data.tags["automl.trial"]): run for run in mine if run is not parent}
    assert len(children) == len(mine) - 1 == len(record.started)
    for trial in record.started:
        run = children[trial.number]
        assert run.info.status == STATUS[trial.state], trial.number
        assert run.info.run_name == f"trial {trial.number}"
        tags = run.data.tags
        assert tags["mlflow.parentRunId"] == parent.info.run_id
        assert tags["automl.study"] == record.name
        assert tags["automl.state"] == trial.state
        assert tags.get("automl.failure", "") == (trial.failure or "")
        assert tags.get("automl.reason", "") == trial.reason
        assert {name: run.data.params[name] for name in trial.params} == {k: str(v) for k, v in trial.params.items()}
        for objective in record.objectives:
            history = client.get_metric_history(run.info.run_id, objective.metric)
            assert [point.step for point in history] == [epoch.epoch for epoch in trial.epochs]
            assert [point.value for point in history] == [epoch.metrics[objective.metric] for epoch in trial.epochs]


def diverging(params: Any, world_size: int) -> Curve:
    curve = smooth_curve(params, world_size, epochs=9)
    if float(params["learning_rate"]) < 0.01:
        metrics = [dict(m) for m in curve.metrics]
        metrics[3]["val_error"] = float("nan")
        metrics[1]["extra"] = float("inf")
        return Curve(metrics=tuple(metrics), epoch_seconds=curve.epoch_seconds)
    return curve


def both(study: SimulatedStudy) -> None:
    """Bring the views up to date."""
    assert not any(mirror.catch_up(study.store, NAME).values())
    assert not any(mirror.lag(study.store, NAME).values())


def check(study: SimulatedStudy, mlflow_uri: str = "") -> StudyRecord:
    """Compare the views with the store."""
    record = study.record()
    check_optuna(record, load(study))
    if mlflow_uri:
        check_mlflow(record, mlflow_uri)
    return record


# ---------------------------------------------------------------------- what the views hold


@pytest.mark.medium
def test_views_hold_what_the_store_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_uri: str, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.chdir(tmp_path)
    study = make_study(tmp_path, monkeypatch, mlflow_uri, curve=diverging)
    study.run(Limits(trials=25))
    both(study)
    record, mirrored = study.record(), load(study)
    assert {trial.state for trial in record.started} == {"complete", "pruned", "failed"}
    check_optuna(record, mirrored)
    check_mlflow(record, mlflow_uri)
    # What people do with an Optuna study goes on working.
    front = {trial.number for trial in mirrored.best_trials}
    points = {x.number: tuple(x.values(record.objectives).values()) for x in record.started if x.state == "complete"}
    dominated = {n for n, p in points.items() if any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points.values())}
    assert front == set(points) - dominated
    memory = optuna.create_study(directions=mirrored.directions, sampler=optuna.samplers.TPESampler(seed=0))
    memory.add_trials(mirrored.trials)
    memory.ask().suggest_float("learning_rate", 1e-4, 1.0, log=True)
    assert not list(tmp_path.glob("mlruns*")), "MLflow left files about"
    both(study)
    check_optuna(record, load(study))
    check_mlflow(record, mlflow_uri)


@pytest.mark.medium
def test_drained_study_keeps_paused_trials_open_and_a_reopened_one_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_uri: str
) -> None:
    policy = Policy(pruner=MoAsha(variant="promotion"))
    study = make_study(tmp_path, monkeypatch, mlflow_uri, policy=policy)
    drained(study, Limits(trials=18), after_ends=10)
    both(study)
    record = check(study, mlflow_uri)
    assert record.state == "drained"
    assert {"paused"} < {trial.state for trial in record.started}
    study.run(Limits(trials=18))
    both(study)
    by_closing = {x.number for x in check(study, mlflow_uri).started if x.reason == "closed"}
    assert by_closing
    drained(study, Limits(trials=36), after_ends=6)
    both(study)
    assert any(x.state != "pruned" for x in check(study, mlflow_uri).started if x.number in by_closing)


@pytest.mark.medium
def test_rebuild_makes_both_views_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_uri: str) -> None:
    study = make_study(tmp_path, monkeypatch, mlflow_uri)
    study.run(Limits(trials=4))
    both(study)
    optuna.delete_study(study_name=NAME, storage=study.store.url)
    client = mlflow_connect.open_client(mlflow_uri)
    experiment = client.get_experiment_by_name(NAME)
    client.delete_experiment(experiment.experiment_id)
    assert mirror.rebuild(study.store, NAME) == {"optuna": None, "mlflow": None}
    check(study, mlflow_uri)
    assert mirror.rebuild(study.store, NAME) == {"optuna": None, "mlflow": None}
    check_mlflow(study.record(), mlflow_uri)


@pytest.mark.medium
def test_views_mend_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_uri: str) -> None:
    """Somebody deletes the study in the dashboard, or the runs in MLflow's page, while the study goes on."""
    study = make_study(tmp_path, monkeypatch, mlflow_uri)
    drained(study, Limits(trials=8), after_ends=3)
    both(study)
    optuna.delete_study(study_name=NAME, storage=study.store.url)
    client = mlflow_connect.open_client(mlflow_uri)
    for run in client.search_runs([client.get_experiment_by_name(NAME).experiment_id]):
        client.delete_run(run.info.run_id)
    study.run(Limits(trials=8))
    both(study)
    check(study, mlflow_uri)

    load(study).ask()  # a trial that we know nothing of
    study.run(Limits(trials=10))
    both(study)
    check(study)


def test_a_users_own_optuna_study_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(tmp_path, monkeypatch)
    theirs = optuna.create_study(study_name=NAME, storage=study.store.url)
    theirs.add_trial(optuna.create_trial(value=1.0))
    study.run(Limits(trials=2))
    for _ in range(2):
        error = mirror.catch_up(study.store, NAME)["optuna"]
        assert error is not None
        assert "Rename one of the two studies" in error
        assert mirror.rebuild(study.store, NAME)["optuna"] == error
    assert len(load(study).trials) == 1


def test_parameters_outside_of_the_space_are_mirrored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(tmp_path, monkeypatch)
    study.run(Limits(trials=1))
    for params in ({"learning_rate": 7, "width": 4096, "other": "x"}, {"learning_rate": 0.2, "width": 16, "other": 1}):
        study.store.enqueue(study.study_id, params, world_size=1, origin="enqueue")
    study.run(Limits(trials=3))
    assert mirror.catch_up(study.store, NAME) == {"optuna": None}
    assert [trial.params for trial in load(study).trials[1:]] == [
        {"learning_rate": 7.0, "width": 4096},
        {"learning_rate": 0.2, "width": 16},
    ]
    assert mirror.rebuild(study.store, NAME) == {"optuna": None}


# ---------------------------------------------------------------------- cut off anywhere

CUTS = [
    (OptunaView, "_studied"), (optuna.Study, "add_trial"), (optuna.storages.RDBStorage, "set_trial_state_values"),
    (optuna_view_module, "_change_attributes"), (optuna.storages.RDBStorage, "delete_study"),
    (optuna.Study, "set_metric_names"), (mirror.Mirror, "_advance_cursor"), (cursors, "_release"),
]  # fmt: skip


def cut_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *, after: bool) -> None:
    """The call-th call is the last one: before it does anything, or just after it has done it."""
    plain, calls = getattr(owner, name), 0

    def cutting(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise Cut
        result = plain(*args, **kwargs)
        if calls == call:
            raise Cut
        return result

    monkeypatch.setattr(owner, name, cutting)


def survive(study: SimulatedStudy, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> bool:
    """Catch up, cut off at a call, twice; True if the call was reached."""
    reached = False
    for after in (False, True):
        with monkeypatch.context() as patch:
            cut_at(patch, owner, name, call, after=after)
            try:
                mirror.catch_up(study.store, NAME)
            except Cut:
                reached = True
    # A process that was killed releases nothing; the claim of this one is lifted by hand.
    with study.store.engine.begin() as connection:
        connection.execute(sa.update(t.view_cursors).values(details={}))
    return reached


@pytest.mark.medium
def test_optuna_view_survives_being_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(tmp_path, monkeypatch, policy=Policy(pruner=MoAsha(variant="promotion")))
    reached = set()
    for i, (owner, name) in enumerate(CUTS):
        drained(study, Limits(trials=90), after_ends=7 if name == "add_trial" else 3)
        if name in {"delete_study", "set_metric_names"}:
            cursors.ask_for_rebuild(study.store, study.study_id)
        if survive(study, monkeypatch, owner, name, call=3 if name == "add_trial" else 1):
            reached.add(name)
        if i % 2:
            both(study)
            check(study)
    both(study)
    check(study)
    assert reached >= {name for _, name in CUTS} - {"set_trial_state_values"}


@given(st.text(st.sampled_from("a./_:\\ é\n%"), max_size=300))
def test_any_name_of_a_metric_is_made_one_that_mlflow_takes(name: str) -> None:
    key = mlflow_key(name)
    assert 0 < len(key) <= 250
    assert posixpath.normpath(key) == key
    assert key != "."
    assert not key.startswith(("/", ".."))
    assert mlflow_key(key) == key


def test_names_that_mlflow_would_merge_are_told_apart() -> None:
    keys = mlflow_keys(["acc@1", "acc#1", "acc_1", "loss"])
    assert (keys["acc_1"], keys["loss"]) == ("acc_1", "loss")
    assert len(set(keys.values())) == 4
    assert all(mlflow_key(key) == key for key in keys.values())
    assert mlflow_keys(["acc@1", "x"])["acc@1"] == "acc_1", "as in earlier versions, where nothing collides"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "call"),
    [("create_run", 3), ("log_batch", 4), ("delete_run", 2), ("update_run", 1)],
)
def test_mlflow_view_survives_being_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_uri: str, name: str, call: int
) -> None:
    from mlflow.tracking import MlflowClient

    policy = Policy(pruner=MoAsha(variant="promotion"))
    study = make_study(tmp_path, monkeypatch, mlflow_uri, policy=policy, epochs=4)
    study.run(Limits(trials=5))
    if name in {"delete_run", "update_run"}:
        both(study)
        study.run(Limits(trials=8))
        if name == "delete_run":
            cursors.ask_for_rebuild(study.store, study.study_id)
        else:
            drained(study, Limits(trials=10), after_ends=1)
    monkeypatch.setattr("studies.storage.views.mlflow_runs.MOST_METRICS", 105)  # several calls for a trial
    assert survive(study, monkeypatch, MlflowClient, name, call)
    both(study)
    check_mlflow(study.record(), mlflow_uri)


# ---------------------------------------------------------------------- trouble


def test_mlflow_being_down_does_not_stop_the_optuna_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://user:secret@127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        study = make_study(tmp_path, monkeypatch, uri)
        study.run(Limits(trials=3))
        found = mirror.catch_up(study.store, NAME)
    assert found["optuna"] is None
    assert found["mlflow"]
    assert "secret" not in found["mlflow"]
    assert cursors.progress(study.store, NAME)["mlflow"].error == found["mlflow"]
    assert mirror.lag(study.store, NAME)["optuna"] == 0 < mirror.lag(study.store, NAME)["mlflow"]
    check(study)


def test_mlflow_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    study = make_study(tmp_path, monkeypatch, f"sqlite:///{tmp_path}/file/mlflow.db")
    study.run(Limits(trials=2))
    found = mirror.catch_up(study.store, NAME)
    assert found["optuna"] is None
    assert "cannot be created" in str(found["mlflow"])
    # Once it is mended, the view catches up and its error is gone.
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "mlflow.db").write_bytes(mlflow_database())
    both(study)
    assert cursors.progress(study.store, NAME)["mlflow"].error is None


def test_mlflow_in_the_stores_own_database_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = make_study(tmp_path, monkeypatch, "sqlite:///study.db")
    study.run(Limits(trials=2))
    assert "own database" in str(mirror.catch_up(study.store, NAME)["mlflow"])
    with pytest.raises(view_rows.ViewError, match="own database") as refused:
        mlflow_connect.tracking_uri("postgresql+psycopg2://a:pw@h/d", ".", "postgresql://b:pw2@h:5432/d")
    assert "pw" not in str(refused.value)
    assert mlflow_connect.tracking_uri("sqlite:///m.db", "/base", "sqlite:////base/s.db") == "sqlite:////base/m.db"
    assert mlflow_connect.tracking_uri("http://h:5000", ".", "sqlite:////s.db") == "http://h:5000"


def test_only_one_process_mirrors_a_view_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(tmp_path, monkeypatch)
    study.run(Limits(trials=2))
    monkeypatch.setattr(mirror, "CLAIM_WAIT_SECONDS", 0.3)
    with cursors.claimed(study.store, study.study_id, "optuna", wait_seconds=0):
        assert "is mirroring" in str(mirror.catch_up(study.store, NAME)["optuna"])
        # A claim dies with its process.
        with study.store.engine.begin() as connection:
            claim = connection.execute(sa.select(t.view_cursors.c.details)).scalars().first()
            claim["claim"]["pid"] = 2**22 + 1
            connection.execute(sa.update(t.view_cursors).values(details=claim))
        assert mirror.catch_up(study.store, NAME) == {"optuna": None}
    with pytest.raises(StoreError, match="nothing"):
        mirror.lag(study.store, "nothing")


def test_a_pass_whose_claim_ran_out_and_was_taken_does_not_write_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended for long: two passes would insert the same trial."""
    study = make_study(tmp_path, monkeypatch)
    study.run(Limits(trials=2))
    monkeypatch.setattr(cursors, "CLAIM_SECONDS", -1.0)  # it runs out at once
    with cursors.claimed(study.store, study.study_id, "optuna", wait_seconds=0) as renew:
        renew()
        with monkeypatch.context() as patch:
            patch.setattr(cursors, "CLAIM_SECONDS", 60.0)
            taken = cursors.claimed(study.store, study.study_id, "optuna", wait_seconds=0)
            taken.__enter__()
        with pytest.raises(cursors.ViewBusyError, match="is mirroring the optuna view now"):
            renew()
        taken.__exit__(None, None, None)


# ---------------------------------------------------------------------- side by side


@pytest.mark.medium
def test_views_follow_a_study_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, either_url: str) -> None:
    study = make_study(tmp_path, monkeypatch, policy=Policy(pruner=MoAsha(variant="promotion")), url=either_url)
    study.on_commit = lambda machine: time.sleep(0.01)
    monkeypatch.setattr(view_pace, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(view_pace, "REST_SECONDS", 0.02)
    monkeypatch.setattr(view_pace, "SHARE", 10.0)
    monkeypatch.setattr(mirror, "BACKOFF_FIRST_SECONDS", 0.01)
    errors: list[str] = []
    note = mirror._note_error
    monkeypatch.setattr(mirror, "_note_error", lambda *args: errors.append(repr(args[3])) or note(*args))
    study.run(Limits(trials=1))
    over = threading.Event()
    follower = threading.Thread(target=mirror.follow, args=(study.store, NAME, over.is_set))
    follower.start()
    try:
        study.run(Limits(trials=12))
    finally:
        over.set()
        follower.join(60)
    assert not follower.is_alive()
    assert errors == []
    assert mirror.lag(study.store, NAME) == {"optuna": 0}
    check(study)
    study.store.close()


@pytest.mark.medium
def test_a_reader_never_sees_a_wrong_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit between the view's two reads is not lost."""
    study = make_study(tmp_path, monkeypatch)
    drained(study, Limits(trials=10), after_ends=2)
    plain, done = optuna_view_module.load_trials, []  # type: ignore[attr-defined]

    def late(store: Store, ids: Any, after: Any = None) -> Any:
        if not done:
            done.append(1)
            study.run(Limits(trials=10))
        return plain(store, ids, after)

    monkeypatch.setattr(optuna_view_module, "load_trials", late)
    mirror.catch_up(study.store, NAME)
    assert mirror.lag(study.store, NAME)["optuna"] > 0
    mirror.catch_up(study.store, NAME)
    check(study)


@pytest.mark.large
def test_views_process_catches_up_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_uri: str) -> None:
    study = make_study(tmp_path, monkeypatch, mlflow_uri)
    study.run(Limits(trials=5))
    process = ViewsProcess(study.store.url, NAME, log_file=tmp_path / "views.log")
    process.start()
    try:
        assert process.wait_until_caught_up(60), (tmp_path / "views.log").read_text()
        arguments = Path(f"/proc/{process.pid}/cmdline")
        if arguments.exists():
            assert "study.db" not in arguments.read_text()
    finally:
        process.stop()
    assert not process.is_running
    process.stop()
    check(study, mlflow_uri)


@pytest.mark.medium
def test_views_of_a_study_that_waits_for_a_disk_do_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They mirror what the study does once there is room."""
    monkeypatch.setattr(mirror, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(view_pace, "POLL_SECONDS", 0.01)
    study = make_study(tmp_path, monkeypatch)
    study.run(Limits(trials=2))
    assert mirror.catch_up(study.store, NAME) == {"optuna": None}

    def follow(seconds: float) -> bool:
        """Follow the study; returns whether that ended by itself."""
        end = time.monotonic() + seconds
        mirror.follow(study.store, NAME, lambda: time.monotonic() > end, ends_with_study=True)
        return time.monotonic() < end

    study.store.commit(study.study_id, None, [StudyChanged(columns={"state": "drained", "stop_reason": "storage"})])
    assert not follow(1.0)
    study.store.commit(study.study_id, None, [StudyChanged(columns={"stop_reason": "stopped"})])
    assert follow(60.0)


@pytest.mark.medium
@pytest.mark.slow
def test_views_are_soon_up_to_date_beside_busy_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the lowest priority would get next to nothing there."""
    study = make_study(tmp_path, monkeypatch, epochs=1)
    drained(study, Limits(trials=300), after_ends=4)
    with study.store.engine.begin() as connection:
        connection.execute(sa.update(t.studies).values(state="running"))  # nobody waits for the views
    process = ViewsProcess(study.store.url, NAME, log_file=tmp_path / "views.log")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in 2 * [*os.sched_getaffinity(0)]]
    process.start()
    try:
        wait_for(lambda: mirror.lag(study.store, NAME) == {"optuna": 0})
        for trials in (60, 120):
            drained(study, Limits(trials=trials), after_ends=10)
            assert mirror.lag(study.store, NAME)["optuna"] > 0
            began = time.monotonic()
            wait_for(lambda: mirror.lag(study.store, NAME) == {"optuna": 0})
            assert time.monotonic() - began < 10
    finally:
        for one in busy:
            one.kill()
            one.wait()
        process.stop()
    check(study)


@pytest.mark.medium
def test_a_view_that_is_refused_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends some seconds after the first failure, and what is wrong can be read."""
    monkeypatch.setattr(views_process, "FAILING_SECONDS", 0.5)
    (tmp_path / "file").write_text("")
    study = make_study(tmp_path, monkeypatch, f"sqlite:///{tmp_path}/file/mlflow.db")
    study.run(Limits(trials=2))
    cursors.set_cursor(study.store, study.study_id, "mlflow", error="what an earlier process met")
    process = ViewsProcess(study.store.url, NAME, log_file=tmp_path / "views.log")
    process.start()
    began = time.monotonic()
    try:
        assert not process.wait_until_caught_up(600)
        assert process.is_running, "it would go on trying"
    finally:
        process.stop()
    assert time.monotonic() - began < 90
    optuna_one, mlflow_one = study.record().views
    assert (optuna_one.view, optuna_one.behind, optuna_one.error) == ("optuna", 0, None)
    assert mlflow_one.behind > 0
    assert "cannot be created" in str(mlflow_one.error)


@pytest.mark.medium
def test_views_process_ends_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(tmp_path, monkeypatch)
    drained(study, Limits(trials=5), after_ends=1)
    with study.store.engine.begin() as connection:
        connection.execute(sa.update(t.studies).values(state="running"))  # its controller was killed
    code = (
        "import sys, time; from studies.storage.views.views_process import ViewsProcess\n"
        f"p = ViewsProcess({study.store.url!r}, {NAME!r}); p.start()\n"
        "assert not {'optuna', 'mlflow'} & set(sys.modules); print(p.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: not _lives(pid))
    # Its last deed is to mirror what its parent had committed.
    check(study)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    assert condition()


def _lives(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# ---------------------------------------------------------------------- the dashboard


def get(url: str, **headers: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return json.load(answer)


@pytest.mark.medium
def test_dashboard_serves_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(tmp_path, monkeypatch)
    study.run(Limits(trials=6))
    code = f"from automl.dashboard_server import serve; serve({study.store.url!r}, study={NAME!r})"
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            said = server.stdout.readline()
            address = said.split()[2]
            base = address.split("/dashboard")[0]
            summaries = get(f"{base}/api/studies")["study_summaries"]
            assert [summary["study_name"] for summary in summaries] == [NAME]
            detail = get(f"{base}/api/studies/{summaries[0]['study_id']}")
            assert detail["objective_names"] == ["val_error", "cost_usd"]
            assert len(detail["trials"]) == 6
            shown = [one["id"] for one in detail["plotly_graph_objects"]]
            assert {"automl-archive", "automl-timeline", "automl-val-error"} <= set(shown)
            with pytest.raises(urllib.error.HTTPError, match="403") as refused:
                get(f"{base}/api/studies", Host="evil.example")
            refused.value.close()
            # The study goes on while people look.
            study.run(Limits(trials=12))
            assert mirror.catch_up(study.store, NAME) == {"optuna": None}
            assert get(f"{base}/api/studies")["study_summaries"][0]["study_name"] == NAME
            server.send_signal(signal.SIGINT)
            assert server.wait(20) == 0
        finally:
            server.kill()
    check(study)


def test_dashboard_says_what_is_wrong(tmp_path: Path) -> None:
    from automl.dashboard_server import DashboardError, make_http_server, serve

    with pytest.raises(StoreError, match="no study yet"):
        serve(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(DashboardError, match="port"):
            make_http_server(lambda *_: [], "127.0.0.1", taken.getsockname()[1])
    with make_http_server(lambda *_: [], "127.0.0.1", None) as server:
        assert server.server_port > 0
