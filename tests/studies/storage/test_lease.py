"""Who drives a study, seen from hosts whose clocks differ and from containers whose process ids mean nothing here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from studies.storage.leases import lease as leases
from studies.storage.leases import processes
from studies.storage.schema import tables as t
from studies.storage.schema.engine import clock_of
from studies.storage.study_store import Store
from studies.storage.views.cursors import ViewBusyError, claimed

SPEC: dict[str, Any] = {"objectives": [{"metric": "val_error"}], "budget": {}, "mlflow": "off"}


both = pytest.mark.usefixtures("either_url")


@pytest.fixture
def study_id(store: Store) -> int:
    return store.create_study("digits", SPEC, ".", 1.0)


def change_lease(store: Store, **columns: Any) -> None:
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.leases).values(**columns))


def clock_that_is_wrong_by(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process believes from now on; the database and the clock that nobody sets do not care."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + seconds)


@both
def test_a_host_with_a_wrong_clock_leaves_a_living_controller_alone(
    store: Store, study_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = leases.acquire(store, study_id)
    assert isinstance(lease, leases.Lease)
    change_lease(store, process_space="another host")
    clock_that_is_wrong_by(3600.0, monkeypatch)
    assert isinstance(leases.acquire(store, study_id), leases.Holder)
    with store.snapshot() as connection:
        assert leases.driven_studies(connection) == {study_id}
    assert leases.request_stop(store, study_id)


@both
@pytest.mark.parametrize("wrong_by", [-3600.0, 3600.0])
def test_a_controller_with_a_wrong_clock_neither_loses_its_lease_nor_keeps_it_for_ever(
    store: Store, study_id: int, monkeypatch: pytest.MonkeyPatch, wrong_by: float
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.02)
    clock_that_is_wrong_by(wrong_by, monkeypatch)
    lease = leases.acquire(store, study_id)
    assert isinstance(lease, leases.Lease)
    beaten = threading.Event()
    heart = leases.Heartbeat(store, lease, on_stop=lambda: None, on_requests=beaten.set)
    heart.start()
    assert beaten.wait(10)
    heart.stop()
    change_lease(store, process_space="another host")
    monkeypatch.undo()
    assert leases.current_holder(store, study_id) is not None
    with store.engine.begin() as connection:
        row = connection.execute(sa.select(t.leases, clock_of(connection).label("now"))).one()
        assert 0.0 < row.expires_at - row.now <= leases.EXPIRY_SECONDS
        assert row.heartbeat_at - row.acquired_at < 10.0, "its own times are by one clock"
        connection.execute(sa.update(t.leases).values(expires_at=clock_of(connection)))
    assert leases.current_holder(store, study_id) is None


def run_out(store: Store, seconds: float) -> None:
    """Let the lease of a process that cannot be seen from here have run out so many seconds ago."""
    with store.engine.begin() as connection:
        ago = {"expires_at": clock_of(connection) - seconds, "process_space": "another host"}
        connection.execute(sa.update(t.leases).values(ago))


def test_after_an_outage_a_holder_that_lives_has_the_time_to_renew_its_lease(store: Store, study_id: int) -> None:
    lease = leases.acquire(store, study_id)
    with leases.kept(store, lease, on_stop=lambda: None):
        run_out(store, 5.0)
        assert isinstance(leases.acquire(store, study_id), leases.Holder)
        store.commit(study_id, lease.token, [])


def test_a_silent_holder_loses_its_lease_at_the_second_look(
    store: Store, study_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    leases.acquire(store, study_id)
    monkeypatch.setattr(time, "sleep", waited.append)
    run_out(store, 5.0)
    assert isinstance(leases.acquire(store, study_id), leases.Lease)
    assert waited == [2 * leases.HEARTBEAT_SECONDS]
    run_out(store, 2000.0)
    assert isinstance(leases.acquire(store, study_id), leases.Lease)
    assert len(waited) == 1, "nobody waits that long for a database"


def test_a_lease_that_its_holder_has_given_back_is_not_lost(
    store: Store, study_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.001)
    lost = threading.Event()
    for _ in range(3):
        lease = leases.acquire(store, study_id)
        assert isinstance(lease, leases.Lease)
        with leases.kept(store, lease, on_stop=lambda: None, on_lost=lost.set):
            time.sleep(0.01)
    assert not lost.is_set()


def test_a_process_id_of_another_pid_namespace_says_nothing(store: Store, study_id: int) -> None:
    """Two containers may have the same host name, and both a process 1."""
    assert isinstance(leases.acquire(store, study_id), leases.Lease)
    gone = 2**22 + 1  # above Linux's largest process id
    change_lease(store, pid=gone, process_space=f"{processes.space()[:36]}/pid:[1]")
    assert isinstance(leases.acquire(store, study_id), leases.Holder), "it lives in its own namespace"
    change_lease(store, process_space=processes.space())
    assert isinstance(leases.acquire(store, study_id), leases.Lease), "here it can be seen that it is gone"


@pytest.mark.medium
def test_a_process_is_the_same_after_its_clock_was_set_and_gone_when_it_is(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=tmp_path)
    start = processes.started_at(process.pid)
    assert start is not None
    assert not processes.is_known_gone(processes.space(), process.pid, start)
    assert processes.is_known_gone(processes.space(), process.pid, start - 60.0), "another process had this id before"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.is_known_gone(processes.space(), process.pid, start), "a zombie holds nothing"
    process.communicate()
    assert processes.is_known_gone(processes.space(), process.pid, start)
    assert not processes.is_known_gone("another", process.pid, start)


@both
def test_views_are_claimed_by_the_databases_clock(store: Store, study_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with claimed(store, study_id, "optuna", wait_seconds=0.0):
        clock_that_is_wrong_by(3600.0, monkeypatch)
        with pytest.raises(ViewBusyError), claimed(store, study_id, "optuna", wait_seconds=0.0):
            pass
