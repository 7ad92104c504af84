"""Whole studies by the command line with checkpoints in a real S3 server, and faults of the store and of processes."""

import importlib.util
import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import automl
from automl.launching.study_run import handed_over
from studies.gangs.ray_actors import RankMaker
from studies.records.records import StudyRecord
from studies.storage.reading.reader import load_study, mentioned_checkpoints
from studies.storage.study_store import Store
from tests.studies.control.test_full_disk import wait_for_storage
from tests.support.command_line import DIGITS, SLOW, InProcess, Workplace, finish
from tests.support.object_stores import BUCKET, FaultyStore
from tests.support.store_address import SECRET
from trainers.checkpoints.locations import environment_of

FOLDER = f"s3://{BUCKET}/studies"
IN_STORE = {"folder": FOLDER, "every_seconds": 0.2}


@pytest.fixture(autouse=True)
def _with_store(object_store: FaultyStore) -> None:
    """A bucket for each test."""


@pytest.fixture
def inside(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    object_store: FaultyStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> InProcess:
    monkeypatch.setenv("AUTOML_CACHE_FOLDER", str(tmp_path_factory.mktemp("copies")))
    return InProcess(tmp_path, capsys, monkeypatch)


def look(place: Workplace, study: str) -> tuple[StudyRecord, set[str]]:
    """The study, and the keys of the checkpoints that its rows mention."""
    with closing(Store(f"sqlite:///{place.folder}/automl.db")) as store:
        mentioned = mentioned_checkpoints(store, store.require(study).id)
        return load_study(store, study), {url.removeprefix(f"s3://{BUCKET}/") for url in mentioned}


def assert_nothing_but(store: FaultyStore, mentioned: set[str]) -> None:
    keys = {key for key in set(store.keys()) if not key.endswith("/.lease")}
    assert keys == mentioned | {f"{key}.manifest" for key in mentioned}
    assert store.uploads() == []


@pytest.mark.large
@pytest.mark.ray
def test_a_killed_study_goes_on_from_the_store_on_another_node_and_its_models_are_taken_from_there(
    place: Workplace, object_store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = place.spec(SLOW, checkpoints={**IN_STORE, "max_gib": 1.0}, budget={"trials": 5})
    first = place.start("launch", spec)  # on a cluster of its own: its ranks keep their copies in another folder
    place.wait_for(lambda rows: any(trial.resume_epoch >= 2 for trial in rows), "slow")
    os.kill(first.pid, signal.SIGKILL)
    finish(first)
    before, _ = look(place, "slow")
    object_store.faults.hidden = set(object_store.keys())  # nothing may depend on what a listing shows
    done = place.run("resume", "slow", "--json")
    object_store.faults.hidden = set()
    record, mentioned = look(place, "slow")
    assert json.loads(done.stdout)["state"] == "closed"
    went_on = [trial for trial in before.started if trial.resume_epoch]
    assert went_on
    for trial in went_on:
        now = record.started[trial.number or 0]
        assert [e.metrics for e in now.epochs][: len(trial.epochs)] == [e.metrics for e in trial.epochs]
        assert now.attempts[-1].start_epoch >= 1
    place.run("gc", "slow", "--yes")  # what the listing hid from the controller that went on
    assert_nothing_but(object_store, mentioned)
    place.audit("slow")
    assert place.json("gc", "slow")["orphans"] == []
    point = next(
        f"{trial.number}@{epoch.epoch}" for trial in record.started for epoch in trial.epochs if epoch.checkpoint
    )
    out = place.folder / "best.pt"
    place.run("export", "slow", point, "--out", out)
    assert out.stat().st_size > 500
    assert (place.folder / "artifacts" / "slow" / "report.html").exists()
    with monkeypatch.context() as patch:
        patch.chdir(place.folder)
        study = automl.load("slow", f"sqlite:///{place.folder}/automl.db")
        trial, epoch = map(int, point.split("@"))
        assert study.load_model(trial, epoch) is not None
        assert study.checkpoint(trial, epoch).startswith(FOLDER)
    assert SECRET not in done.stdout + done.stderr + (place.folder / "automl.db").read_bytes().decode("latin-1")


@pytest.mark.large
@pytest.mark.ray
def test_a_store_that_is_away_pauses_a_study_and_its_audit_reads_no_copies_on_this_machine(place, object_store):
    short = {"training": {"epochs": 2}, "search": {"pruner": "none"}, "budget": {"trials": 2}}
    spec = place.spec(DIGITS, checkpoints=IN_STORE, **short)
    object_store.faults.refuses = lambda method, path: (503, "SlowDown") if method == "PUT" else None

    def be_back() -> None:
        wait_for_storage(place.folder)
        object_store.faults.refuses = lambda _method, _path: None

    done = place.run("launch", spec, "--json", meanwhile=be_back)
    assert "checkpoints cannot be written" in done.stderr
    record, mentioned = look(place, "small")
    assert (record.state, record.stop_reason) == ("closed", "budget_trials")
    assert [(trial.state, trial.failure) for trial in record.started] == [("complete", None)] * 2
    assert "storage" in {attempt.outcome for trial in record.started for attempt in trial.attempts}
    assert_nothing_but(object_store, mentioned)
    place.audit("small")
    key = min(mentioned)
    good = object_store.call("get_object", Key=key)["Body"].read()
    object_store.call("put_object", Key=key, Body=good[:-1])
    (found,) = place.json("audit", "small", code=1)["findings"]
    assert (found["check"], "other bytes than were written" in found["found"]) == ("checkpoints", True)
    object_store.call("delete_object", Key=f"{key}.manifest")
    findings = place.json("audit", "small", code=1)["findings"]
    assert [(one["check"], "is missing" in one["found"]) for one in findings] == [("checkpoints", True)]
    left = f"{key.rsplit('/', 2)[0]}/trial-00007/epoch-0001.attempt-1.pt"
    object_store.call("put_object", Key=left, Body=b"left behind")
    assert place.json("gc", "small")["bytes"] == len(b"left behind")
    object_store.faults.refuses = lambda _method, _path: (403, "AccessDenied")
    said = place.run("gc", "small", code=1).stderr
    assert said == f"automl: s3://{BUCKET}: AccessDenied for a test\n"


@pytest.mark.medium
@pytest.mark.ray
@pytest.mark.slow
def test_a_bucket_that_goes_while_a_study_runs_pauses_it_and_no_trial_goes_back(place, object_store):
    """Reading fails as well: a trial that would go on keeps its checkpoint until the store answers."""
    spec = place.spec(SLOW, checkpoints=IN_STORE, search={"pruner": "none"}, budget={"trials": 2})

    def drain_and_lose_the_bucket() -> None:
        place.wait_for(lambda rows: rows[-1].resume_epoch >= 1 and rows[-1].state == "running", "slow")
        place.order_stop("slow")

    place.run("launch", spec, meanwhile=drain_and_lose_the_bucket, code=130)
    before, _ = look(place, "slow")
    assert any(trial.state == "paused" and trial.resume_epoch for trial in before.started)
    object_store.faults.refuses = lambda method, path: (
        (404, "NoSuchBucket") if "/studies/" in path or method == "HEAD" else None
    )
    said = place.run("resume", "slow", code=2).stderr
    assert f"checkpoints.folder: found '{FOLDER}', but it cannot be written to (s3://{BUCKET} does not exist)" in said

    def is_refused(method: str, path: str) -> tuple[int, str] | None:
        return (500, "InternalError") if method == "GET" and "trial-" in path else None

    object_store.faults.refuses = is_refused  # takes files, and gives none

    def be_back() -> None:
        wait_for_storage(place.folder)
        object_store.faults.refuses = lambda _method, _path: None

    done = place.run("resume", "slow", meanwhile=be_back)
    assert "a checkpoint could not be saved or loaded" in done.stderr
    record, _ = look(place, "slow")
    assert [trial.state for trial in record.started] == ["complete"] * 2
    for trial in before.started:
        attempts = record.started[trial.number or 0].attempts
        if trial.state == "paused" and trial.resume_epoch:
            assert attempts[-1].start_epoch == trial.resume_epoch, "nothing was trained again"
    place.audit("slow")


@pytest.mark.ray
@pytest.mark.slow
def test_models_of_a_study_in_a_store_are_confirmed(place: Workplace) -> None:
    spec = place.spec(DIGITS, checkpoints=IN_STORE, budget={"trials": 3}, training={"epochs": 2})
    place.run("launch", spec)
    assert place.json("confirm", "small", "--seeds", "1")["trials"]
    place.audit("small")


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("s4://bucket/x", "found 's4://bucket/x', allowed: a folder, or a URL that begins with s3://, gs://, az:// or file://"),
        ("S3://bucket", "Did you mean s3://?"),
        ("http://host/x", "allowed: a folder, or a URL that begins with"),
        ("s3:///x", "allowed: s3://BUCKET/FOLDER"),
        ("s3://me:hush@bucket/x", "credentials come from the environment of s3's library"),
        ("gs://bucket/a//b", "allowed: gs://BUCKET/FOLDER without empty parts"),
        ("az://bucket/../b", "allowed: az://BUCKET/FOLDER without empty parts"),
        ("file://host/x", "allowed: file:///FOLDER, with an absolute path"),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_place_is_refused(inside: InProcess, folder: str, says: str) -> None:
    (inside.folder / "spec.yaml").write_text(json.dumps({**DIGITS, "checkpoints": {"folder": folder}}))
    said = inside.refused("launch", "spec.yaml")
    assert "spec.yaml: checkpoints.folder: " in said
    assert says in said
    assert "hush" not in said
    assert says in inside.refused("train", "digits", "--checkpoints", folder)


def test_a_store_whose_library_is_not_installed_is_refused_with_the_cure(inside, monkeypatch):
    find = importlib.util.find_spec

    def without(name: str, *arguments: Any) -> Any:
        return None if name in {"s3fs", "gcsfs", "adlfs"} else find(name, *arguments)

    monkeypatch.setattr("importlib.util.find_spec", without)
    for url, library in ((FOLDER, "s3fs"), ("gs://bucket/x", "gcsfs"), ("az://bucket/x", "adlfs")):
        (inside.folder / "spec.yaml").write_text(json.dumps({**DIGITS, "checkpoints": {"folder": url}}))
        cure = (
            f"needs {library}, which is not installed. "
            "Install it: pip install -c constraints.txt -e '.[object-stores]' in the checkout"
        )
        said = inside.refused("launch", "spec.yaml")
        assert said == f"automl: spec.yaml: checkpoints.folder: '{url}' {cure}"
        assert cure in inside.refused("train", "digits", "--checkpoints", url)


def test_a_store_that_refuses_is_told_before_anything_is_written(inside: InProcess, object_store: FaultyStore) -> None:
    (inside.folder / "spec.yaml").write_text(json.dumps({**DIGITS, "checkpoints": {"folder": "s3://nobodys/x"}}))
    assert (
        "checkpoints.folder: found 's3://nobodys/x', but it cannot be written to (s3://nobodys does not exist). "
        in (inside.refused("launch", "spec.yaml"))
    )
    object_store.faults.refuses = lambda _method, _path: (403, "InvalidAccessKeyId")
    said = inside.refused("launch", "spec.yaml")
    assert "(s3://nobodys: InvalidAccessKeyId for a test). Name a place that can be written" in said
    assert SECRET not in said
    object_store.faults.refuses = lambda _method, _path: None
    (inside.folder / "spec.yaml").write_text(json.dumps({**DIGITS, "checkpoints": {"folder": FOLDER}}))
    assert inside.run("launch", "spec.yaml", "--dry-run")[0] == 0
    assert object_store.keys() == []


def test_a_file_url_is_the_folder(inside: InProcess) -> None:
    url = f"file://{inside.folder}/kept"
    (inside.folder / "spec.yaml").write_text(json.dumps({**DIGITS, "checkpoints": {"folder": url}}))
    code, out, _ = inside.run("launch", "spec.yaml", "--dry-run", "--json")
    assert (code, json.loads(out)["spec"]["checkpoints"]["folder"]) == (0, f"{inside.folder}/kept")


@pytest.mark.medium
def test_a_single_training_goes_on_from_the_store(inside, object_store, tmp_path, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():  # as under torchrun
        monkeypatch.setenv(name, value)
    local, arguments = (("train", "digits", "--json", "--checkpoints", folder) for folder in ("kept", FOLDER))
    inside.run(*local, "--epochs", "2")
    whole = json.loads(inside.run(*local, "--epochs", "4", "--resume")[1])
    code, out, _ = inside.run(*arguments, "--epochs", "2", "--checkpoint-every", "0")
    assert (code, json.loads(out)["checkpoint"]) == (0, f"{FOLDER}/epoch-0002.attempt-1.pt")
    assert len(object_store.keys()) == 3, "the checkpoint, its manifest, and the name of the latest"
    object_store.faults.hidden = set(object_store.keys())
    monkeypatch.setenv("AUTOML_CACHE_FOLDER", str(tmp_path / "other"))
    resumed = json.loads(inside.run(*arguments, "--epochs", "4", "--resume")[1])
    assert resumed["start_epoch"] == 2
    for name in ("val_loss", "train_loss"):
        assert resumed["epochs"][-1]["metrics"][name] == whole["epochs"][-1]["metrics"][name]
    assert sorted(object_store.keys()) == [
        f"studies/{name}" for name in ("epoch-0004.attempt-1.pt", "epoch-0004.attempt-1.pt.manifest", "latest")
    ]


def test_ranks_elsewhere_get_the_variables_of_their_store_and_of_no_other() -> None:
    of_store = {"AWS_SECRET_ACCESS_KEY": SECRET, "GOOGLE_APPLICATION_CREDENTIALS": "/x", "AZURE_STORAGE_KEY": "y"}
    shell = {**of_store, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.2/role", "HOME": "/"}
    assert handed_over((), shell, prefixes=environment_of(FOLDER)) == {"AWS_SECRET_ACCESS_KEY": SECRET}
    assert set(handed_over((), shell, prefixes=environment_of("gs://b"))) == {"GOOGLE_APPLICATION_CREDENTIALS"}
    assert set(handed_over((), shell, prefixes=environment_of("az://b"))) == {"AZURE_STORAGE_KEY"}
    assert handed_over((), shell, prefixes=environment_of("./artifacts")) == {}
    assert SECRET not in repr(RankMaker("cpu", 1, "gloo", shell))
