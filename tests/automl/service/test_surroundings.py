"""`automl doctor --service`: each thing that can be wrong around a service is told, with what to do."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from studies.queueing import access_tokens
from studies.records.records import NANO
from studies.storage.leases import lease as leases
from studies.storage.leases import processes
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from tests.support.command_line import InProcess
from tests.support.service import TestedService, spec_of
from tests.support.team_service import team_service

OLD_STORE = Path(__file__).parents[2] / "studies" / "storage" / "old_stores" / "v0016.sqlite.sql"


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    for name in ("AUTOML_STORE", "AUTOML_SERVER", "AUTOML_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return InProcess(tmp_path, capsys, monkeypatch)


@pytest.fixture
def service(place: InProcess) -> Iterator[TestedService]:
    one = TestedService(place.folder)
    yield one
    one.close()


def findings(place: InProcess, *arguments: str) -> dict[str, dict[str, Any]]:
    """What the doctor finds, by what it has looked at; its exit code says whether all of it is well."""
    code, out, err = place.run("doctor", "--service", "--json", *arguments)
    found = json.loads(out)
    assert code == (0 if all(one["ok"] for one in found) else 1), err
    assert all(one["ok"] == (one["cure"] == "") for one in found)
    return {one["what"]: one for one in found}


def wrong(place: InProcess, what: str, *arguments: str) -> tuple[str, str]:
    found = findings(place, *arguments)[what]
    assert not found["ok"], found
    return found["found"], found["cure"]


def right(place: InProcess, what: str, *arguments: str) -> str:
    found = findings(place, *arguments)[what]
    assert found["ok"], found
    return found["found"]


def test_all_is_well_around_a_service_with_a_worker(service: TestedService, place: InProcess) -> None:
    service.queue.register("w", device="cpu", slots=2)
    service.token("root", "ops", "admin")
    found = findings(place)
    assert [what for what, one in found.items() if not one["ok"]] == []
    assert list(found) == ["store", "tokens", "workers", "queue", "limits", "artifacts", "clocks", "views", "packages",
                           "extras"]  # fmt: skip
    assert found["workers"]["found"].startswith("1 alive with 2 slots, 0 in use: w on ")
    assert found["tokens"]["found"] == "1 valid token of 1 user"
    assert found["queue"]["found"] == "no job waits, 0 jobs running"
    assert "is current" in found["store"]["found"]
    code, out, _ = place.run("doctor", "--service")
    assert code == 0
    assert len(out.splitlines()) == len(found), "one line each"
    assert not (place.folder / "artifacts").exists(), "nothing is made"


def test_a_store_that_is_not_there_or_of_another_schema_is_left_as_it_is(place: InProcess) -> None:
    found, cure = wrong(place, "store")
    assert "automl.db has no automl tables" in found
    assert "automl serve" in cure
    assert not (place.folder / "automl.db").exists()
    connection = sqlite3.connect(place.folder / "automl.db")
    connection.executescript(OLD_STORE.read_text())
    found, cure = wrong(place, "store")
    assert re.search(r"schema 0016, but this version of automl knows 0016 to \d{4}$", found)
    assert "automl list" in cure
    version = "SELECT version_num FROM automl_alembic_version"
    assert connection.execute(version).fetchone() == ("0016",)
    assert "tokens" not in findings(place), "what cannot be read is not looked at"
    connection.execute("UPDATE automl_alembic_version SET version_num = '0015'")
    connection.commit()
    assert wrong(place, "store")[1] == "name another store: this one is too old to be upgraded"
    connection.execute("UPDATE automl_alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    assert wrong(place, "store")[1] == "update automl on this machine"
    found, _ = wrong(place, "store", "--store", "postgresql://ann:secret@127.0.0.1:9/none")
    assert "cannot be opened" in found
    assert "secret" not in found


def test_tokens(service: TestedService, place: InProcess) -> None:
    assert "every user of its machine is an admin" in right(place, "tokens")
    service.token()
    assert wrong(place, "tokens")[0] == "1 valid token of 1 user, but no admin has a token"
    assert "--role admin" in wrong(place, "tokens")[1]
    _, root = access_tokens.create(service.store, name="root", user="root", project="ops", role="admin", days=3)
    found, cure = wrong(place, "tokens")
    assert f"these expire soon: {root.id} (root of root) in 3 d" in found or "in 2 d 23 h" in found
    assert cure == f"`automl token rotate {root.id}`"
    access_tokens.rotate(service.store, root.id, days=30, grace_seconds=60)
    assert right(place, "tokens") == "3 valid tokens of 2 users", "one that was rotated ends as it should"
    with service.store.engine.begin() as connection:
        connection.execute(sa.update(t.tokens).where(t.tokens.c.id == root.id).values(expires_at=1.0))
    assert right(place, "tokens") == f"2 valid tokens of 2 users, 1 expired and still listed ({root.id})"
    with service.store.engine.begin() as connection:
        connection.execute(sa.update(t.tokens).values(expires_at=1.0))
    assert "nobody can use the service" in wrong(place, "tokens")[0]


def silence(store: Store, seconds: float, **columns: Any) -> None:
    """Let all workers have stopped answering some seconds ago."""
    with store.engine.begin() as connection:
        values = {"expires_at": t.workers.c.expires_at - 10.0 - seconds, **columns}
        connection.execute(sa.update(t.workers).values(values))


def test_workers_that_are_dead_or_silent(service: TestedService, place: InProcess) -> None:
    assert wrong(place, "workers")[0] == "none is alive"
    worker = service.queue.register("w", device="cpu", slots=1)
    service.studies().submit(spec_of("a"))
    service.queue.take_turn(worker, 1)
    silence(service.store, 300.0, host="far", process_space="elsewhere")
    found, cure = wrong(place, "workers")
    assert "w on far (process " in found
    assert "has not answered for 5 min" in found
    assert found.endswith("and holds vision.a")
    assert "check far" in cure
    silence(service.store, -600.0, process_space=processes.space(), process_started_at=1.0)
    found = wrong(place, "workers")[0]
    assert found.startswith("none is alive; w on far"), "it is known to be gone before its heartbeat runs out"
    assert found.endswith("has died, and holds vision.a")
    service.queue.register("other", device="cpu", slots=1)
    with service.store.engine.begin() as connection:
        connection.execute(sa.update(t.workers).where(t.workers.c.name == "w").values(ended_at=1.0))
        connection.execute(sa.update(t.workers).where(t.workers.c.name == "other").values(host="far"))
    found, cure = wrong(place, "workers")
    assert "an SQLite file, which far cannot lock safely" in found
    assert "store copy" in cure


@pytest.mark.medium
def test_a_worker_that_is_frozen_on_this_machine_is_found(service: TestedService, place: InProcess) -> None:
    program = (
        "import sys, time; from studies.storage.study_store import Store; "
        "from studies.queueing.job_queue import JobQueue; "
        "JobQueue(Store(sys.argv[1])).register('ice', device='cpu', slots=1); print('on', flush=True); time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", program, service.store.url], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"on\n"
            assert right(place, "workers").startswith("1 alive")
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            found, cure = wrong(place, "workers")
            assert "ice on " in found
            assert "is stopped" in found
            assert f"`kill -CONT {process.pid}`" in cure
            silence(service.store, 1.0, ended_at=time.time())
            assert "is stopped" in wrong(place, "workers")[0], "also when others have given it up"
        finally:
            process.kill()


def test_why_the_oldest_job_waits_and_which_no_worker_can_take(service: TestedService, place: InProcess) -> None:
    studies = service.studies()
    studies.submit(spec_of("a", resources={"slots": 1}))
    found, cure = wrong(place, "queue")
    assert found.startswith("1 job waiting, 0 running; the oldest, vision.a, for ")
    assert found.endswith("no worker is alive; no living worker can take vision.a (no worker is alive)")
    assert "`automl worker --slots 1`" in cure
    worker = service.queue.register("w", device="cpu", slots=2)
    assert right(place, "queue").endswith("it is next, and waits for free slots")
    studies.submit(spec_of("b", resources={"slots": 8}))
    studies.submit(spec_of("c", resources={"slots": 1, "device": "cuda"}))
    found, _ = wrong(place, "queue")
    assert "vision.b (wants 8 slots, the largest worker has 2)" in found
    assert "vision.c (wants a GPU, and no worker has one)" in found
    assert service.queue.take_turn(worker, 2).job.study == "vision.a"
    assert "1 running; the oldest, vision.b, for" in wrong(place, "queue")[0]
    for name in ("b", "c"):
        studies.cancel(name)
    service.studies("root", "ops", "admin").submit(spec_of("d"), priority=5)
    studies.submit(spec_of("e", resources={"slots": 1}))
    with service.store.engine.begin() as connection:
        connection.execute(sa.update(t.jobs).where(t.jobs.c.study == "vision.e").values(queued_at=1.0))
    assert "the oldest, vision.e" in right(place, "queue")
    assert right(place, "queue").endswith("waits behind 1 job, by priority and by the slots that their users have used")


def test_limits_that_are_used_up(service: TestedService, place: InProcess) -> None:
    service.queue.set_limit("user", "ann", 5 * NANO)
    service.queue.set_limit("project", "vision", NANO)
    worker = service.queue.register("w", device="cpu", slots=2)
    assert right(place, "limits") == "2 limits, 0 used up or promised to running jobs"
    service.studies().submit(spec_of("a"))
    service.queue.take_turn(worker, 2)
    promised = "project vision: $0 of $1 are spent, $1 promised to running jobs"
    assert right(place, "limits") == f"2 limits, 1 used up or promised to running jobs: {promised}"
    service.studies().submit(spec_of("b"))
    found, cure = wrong(place, "limits")
    assert f"limits leave no money for 1 job; the first is vision.b, which waits for money: {promised}" in found
    assert "automl limit set" in cure
    assert right(place, "queue").endswith(f"waits for money: {promised}"), "a worker could take it"


def test_the_artifacts_of_the_latest_job_have_to_be_writable(service: TestedService, place: InProcess) -> None:
    assert f"{place.folder}/artifacts does not exist yet, and can be created" in right(place, "artifacts")
    (place.folder / "artifacts").mkdir()
    service.studies().submit(spec_of("a"))
    assert f"{place.folder}/artifacts can be written, " in right(place, "artifacts")
    (place.folder / "file").write_text("")
    found, cure = wrong(place, "artifacts", "--artifacts", "file")
    assert found == f"{place.folder}/file is a file, but must be a folder"
    assert "--artifacts" in cure
    found, _ = wrong(place, "artifacts", "--artifacts", "/proc/none")
    assert found.startswith("/proc: ")


def test_a_clock_that_is_off_is_told(service: TestedService, place: InProcess) -> None:
    assert "between this machine and the database" in right(place, "clocks")
    study = service.store.create_study("a", {}, "/", 1.0)
    lease = leases.acquire(service.store, study)
    assert isinstance(lease, leases.Lease)
    assert "which drives studies" in right(place, "clocks")
    with service.store.engine.begin() as connection:
        values = {"host": "far", "heartbeat_at": t.leases.c.heartbeat_at + 90.0}
        connection.execute(sa.update(t.leases).values(values))
    found, cure = wrong(place, "clocks")
    assert "between far, which drives studies, and the database" in found
    assert "NTP" in cure


def test_a_view_that_cannot_be_written_is_told(service: TestedService, place: InProcess) -> None:
    study = service.store.create_study("a", {}, "/", 1.0)
    row = {"study_id": study, "view": "mlflow", "revision": 0, "rebuild": False, "details": {}, "error": None}
    with service.store.engine.begin() as connection:
        connection.execute(sa.delete(t.view_cursors))
        connection.execute(sa.insert(t.view_cursors).values(row))
    assert right(place, "views") == "the views of 1 study are written"
    with service.store.engine.begin() as connection:
        connection.execute(sa.update(t.view_cursors).values(error="MLflow does\nnot answer"))
    found, cure = wrong(place, "views")
    assert found == (
        "1 error in copying studies to Optuna or MLflow. Last error (study a, mlflow): MLflow does not answer"
    )
    assert cure == "fix the cause, then run `automl sync a`"


def test_the_services_address_is_asked_as_well(place: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with team_service(place.folder) as service:
        (place.folder / "empty").mkdir()
        monkeypatch.chdir(place.folder / "empty")
        ask = ("--server", service.url, "doctor", "--service", "--json")
        code, out, _ = place.run(*ask)
        found = {one["what"]: one for one in json.loads(out)}
        assert code == 1
        assert found["service"]["found"].startswith(f"{service.url} is alive and ready, answered in ")
        assert "AUTOML_TOKEN" in found["own token"]["cure"]
        assert found["store"]["found"] == "not checked: --store names none"
        monkeypatch.setenv("AUTOML_TOKEN", service.ann)
        monkeypatch.setenv("AUTOML_STORE", service.store.url)
        monkeypatch.setenv("AUTOML_SERVER", service.url)
        there = findings(place)
        assert there["own token"] == {"what": "own token", "ok": True, "found": "accepted", "cure": ""}
        assert "this machine and the service (in whole seconds)" in there["clocks"]["found"]
        assert there["clocks"]["ok"]
        service.store.engine.dispose()
    found, cure = wrong(place, "service")
    assert "does not answer" in found
    assert "automl serve" in cure


def test_what_does_not_go_together_is_refused(place: InProcess) -> None:
    assert "--bandwidth and --service exclude each other" in place.refused("doctor", "--service", "--bandwidth")
    assert "--backend and --service exclude each other" in place.refused("doctor", "--service", "--backend", "gloo")
    assert "--artifacts needs --service" in place.refused("doctor", "--artifacts", "somewhere")
    assert "To check the service, run `automl --server URL doctor --service`" in place.refused(
        "--server", "http://x:1", "doctor"
    )


@pytest.mark.medium
def test_a_store_on_postgresql_is_looked_at_like_any(place: InProcess, postgres_url: str) -> None:
    found = findings(place, "--store", postgres_url)
    assert found["store"]["ok"]
    assert found["clocks"]["ok"], found["clocks"]
    assert found["workers"]["found"] == "none is alive"
