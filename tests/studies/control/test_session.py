"""Several controllers of one study: one drives, others stand by; a stop stops the study, a death does not."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from automl.stored.auditing import audit
from studies.control.machine.state import ENDS_BY_BUDGET, StudyMachine
from studies.control.session import Session, none_meanwhile, set_aside
from studies.money.budget import Limits
from studies.records.records import NANO
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.schema import tables as t
from studies.storage.study_store import LeaseLostError, Store, StoreError
from studies.storage.writing.changes import Charged, PoolChanged, StudyChanged, StudyColumns
from studies.storage.writing.deletion import delete_rows
from studies.storage.writing.retrying import PATIENCE_SECONDS
from tests.support.sessions import Unhurried, make_study, session_of
from tests.support.simulated_study import SimulatedStudy, check_epochs, noisy_curve, smooth_curve
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.control.session.STAND_BY_SECONDS", 0.01)
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.02)


both = pytest.mark.usefixtures("either_url")


@pytest.fixture
def store(store: Store, tmp_path: Path) -> Store:
    make_study(store, tmp_path)
    return store


class Pair:
    """A controller that drives, held at its first epochs, and others that stand by."""

    def __init__(self, store: Store, standbys: int) -> None:
        self.store, self.go_on = store, threading.Event()
        self.standing = threading.Semaphore(0)
        self._has_begun = threading.Event()
        self._threads = ThreadPoolExecutor(1 + standbys)
        self.session = session_of(store, on_commit=self._hold)
        self.leader = self._threads.submit(self.session.run)
        assert self._has_begun.wait(30)
        waiting = [session_of(store, on_stand_by=lambda _: self.standing.release()) for _ in range(standbys)]
        self.standbys = [self._threads.submit(one.run) for one in waiting]
        for _ in range(standbys):
            assert self.standing.acquire(timeout=30)

    def _hold(self, machine: StudyMachine) -> None:
        if any(trial.epochs_done for trial in machine.trials.values()):
            self._has_begun.set()
            assert self.go_on.wait(60)

    def close(self) -> None:
        """End all threads."""
        self.go_on.set()
        self._threads.shutdown()


@pytest.fixture
def pair(store: Store) -> Iterator[Callable[[int], Pair]]:
    made: list[Pair] = []

    def make(standbys: int) -> Pair:
        made.append(Pair(store, standbys))
        return made[-1]

    yield make
    for one in made:
        one.close()


@both
@pytest.mark.medium
def test_a_stop_stops_the_study_and_not_only_the_controller_that_drives_it(store, pair):
    study = pair(2)
    assert leases.request_stop(store, store.require("simulated").id)
    # the heart has to beat once, or the study is over before
    wait_until(lambda: study.session._drain_reason is not None)
    study.go_on.set()
    machine = study.leader.result(60)
    assert machine.stop_reason == "stopped"
    assert [standby.result(60) for standby in study.standbys] == [None, None], "they have nothing to do"
    row = store.require("simulated")
    assert (row.state, row.stop_reason) == ("drained", "stopped")
    assert leases.current_holder(store, row.id) is None
    before = load_study(store, "simulated")
    assert session_of(store).run() is not None, "a later resume goes on"
    after = load_study(store, "simulated")
    check_epochs(after)
    assert after.state == "closed"
    assert len(after.started) >= len(before.started)


@pytest.mark.medium
def test_a_controller_that_dies_of_its_drain_is_replaced_by_one_that_drains(store, monkeypatch):
    """Somebody asked for a stop, the controller died before it had drained: the standby must not train on for hours."""
    row = store.require("simulated")
    held = leases.acquire(store, row.id)
    assert isinstance(held, leases.Lease)

    def dies(_: str) -> None:
        assert leases.request_stop(store, row.id)
        with store.engine.begin() as connection:
            connection.execute(sa.update(t.leases).values(expires_at=0.0))

    machine = session_of(store, on_stand_by=dies).run()
    assert (machine.state, machine.stop_reason) == ("drained", "stopped")
    assert not load_study(store, "simulated").started


def away_for(times: int, action: Callable[..., Any]) -> Callable[..., Any]:
    """The same action, of a database that does not answer for so many calls."""
    left = [times]

    def later(*args: Any, **more: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OperationalError("SELECT", {}, Exception("the server closed the connection"))
        return action(*args, **more)

    return later


@pytest.mark.parametrize("what", ["_try_acquire", "was_stopped"])
def test_a_database_that_is_away_ends_no_controller_that_stands_by(store, monkeypatch, what):
    row, slept = store.require("simulated"), []
    held = leases.acquire(store, row.id)
    assert isinstance(held, leases.Lease)

    def fall_silent(_: str) -> None:
        leases.release(store, held)
        monkeypatch.setattr(leases, what, away_for(12, getattr(leases, what)))
        monkeypatch.setattr(time, "sleep", slept.append)

    lease = session_of(store, on_stand_by=fall_silent)._wait_for_lease()
    assert isinstance(lease, leases.Lease)
    assert sum(slept) > 2 * PATIENCE_SECONDS
    monkeypatch.undo()
    leases.release(store, lease)


def test_a_controller_that_stands_by_is_interrupted_while_the_database_is_away(store, monkeypatch):
    assert isinstance(leases.acquire(store, store.require("simulated").id), leases.Lease)

    def fall_silent(_: str) -> None:
        monkeypatch.setattr(leases, "was_stopped", away_for(1000, leases.was_stopped))
        monkeypatch.setattr(time, "sleep", lambda _: session.drain("interrupted"))

    session = session_of(store, on_stand_by=fall_silent)
    assert session.run() is None


class Endless(Unhurried):
    """A pool whose first epochs do not end, so that nothing is committed."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.trains = threading.Event()

    def start(self, *args: Any) -> None:
        super().start(*args)
        self.trains.set()

    def wait(self, seconds: float) -> list[Any]:
        if not self.trains.is_set():
            return super().wait(seconds)
        time.sleep(0.01)
        return []


@both
@pytest.mark.medium
def test_a_controller_whose_lease_was_taken_ends_before_its_next_commit(store: Store) -> None:
    """After a laptop's sleep both would train on the same devices until an epoch has ended."""
    row = store.require("simulated")
    pool = Endless(lambda params, size: smooth_curve(params, size, epochs=9), opened_at=time.time())
    with ThreadPoolExecutor(1) as threads:
        leader = threads.submit(session_of(store, pool=pool).run)
        assert pool.trains.wait(30)
        with store.engine.begin() as connection:
            connection.execute(sa.update(t.leases).values(expires_at=0.0, process_space="another host"))
            held = sa.select(t.leases.c.id).where(t.leases.c.released_at.is_(None))
            leases.release_row(connection, connection.execute(held).scalar_one(), time.time())
        rival = leases.acquire(store, row.id)
        assert isinstance(rival, leases.Lease)
        try:
            with pytest.raises(LeaseLostError):
                leader.result(20)
        finally:
            pool.trains.clear()
    leases.release(store, rival)


def test_a_study_that_waits_for_a_disk_is_stopped_for_those_that_stand_by_too(store: Store) -> None:
    row, standing = store.require("simulated"), threading.Event()
    lease = leases.acquire(store, row.id)
    assert not leases.stop_waiting(store, row.id), "it runs"
    with ThreadPoolExecutor(1) as threads:
        standby = threads.submit(session_of(store, on_stand_by=lambda _: standing.set()).run)
        assert standing.wait(30)
        drained: StudyColumns = {"state": "drained", "stop_reason": "storage"}
        store.commit(row.id, lease.token, [StudyChanged(columns=drained)])
        assert leases.stop_waiting(store, row.id)
        leases.release(store, lease)
        assert standby.result(30) is None
    after = store.require("simulated")
    assert (after.state, after.stop_reason) == ("drained", "stopped")


def test_a_stop_that_comes_between_the_drain_for_want_of_room_and_the_release_ends_the_waiting(store: Store) -> None:
    """It marks the lease, which nobody looks at any more: the process that waits for room has none."""
    row = store.require("simulated")
    lease = leases.acquire(store, row.id)
    drained: StudyColumns = {"state": "drained", "stop_reason": "storage"}
    store.commit(row.id, lease.token, [StudyChanged(columns=drained)])
    assert leases.request_stop(store, row.id)
    leases.release(store, lease)
    assert store.require("simulated").stop_reason == "stopped"
    assert not leases.request_stop(store, row.id)


@pytest.mark.medium
def test_a_session_that_is_interrupted_hands_over(store: Store, pair: Callable[[int], Pair]) -> None:
    """Ctrl-C ends one controller; whoever stands by was started to go on then."""
    study = pair(1)
    study.session.drain("interrupted")
    study.go_on.set()
    machine = study.leader.result(60)
    assert machine.stop_reason == "interrupted"
    (standby,) = study.standbys
    machine = standby.result(60)
    assert machine.state == "closed"
    check_epochs(load_study(store, "simulated"))


def with_budget(store: Store, **budget: float) -> Session:
    row = store.require("simulated")
    store.change_spec(row.id, {**row.spec, "budget": budget})
    return session_of(store)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("budget", "more"),
    [
        ({"usd": 0.05}, {"usd": 0.0505}),
        ({"hours": 0.005}, {"hours": 0.00505}),
        ({"usd": 0.03, "trials": 50, "finish": 0.1}, {"usd": 0.0303}),
        ({"trials": 3}, {"trials": 4}),
    ],
)
def test_a_study_that_its_budget_has_closed_is_reopened_by_more_budget_alone(store, budget, more):
    """It closes a little before its limit: each further launch opened it again, and asked an autoscaler for nodes."""
    assert with_budget(store, **budget).run() is not None
    ended = store.require("simulated")
    assert ended.stop_reason in ENDS_BY_BUDGET
    assert session_of(store).run() is None
    assert with_budget(store, **{**budget, "trials": 3}).run() is None, "less is not more"
    assert store.require("simulated").revision == ended.revision, "views would be made anew"
    assert with_budget(store, **{**budget, **more}).run() is not None


@pytest.mark.medium
def test_a_cheaper_pool_reopens_a_study_that_its_dollars_have_closed(store: Store) -> None:
    assert with_budget(store, usd=0.05).run() is not None
    assert session_of(store).run() is None
    store.set_price(store.require("simulated").id, 0.01)
    assert session_of(store).run() is not None
    assert session_of(store).run() is None


def test_a_session_that_stood_by_does_not_go_on_with_an_old_spec(store: Store) -> None:
    """The spec was changed while nobody drove the study: a budget that is no longer in force must not be spent."""
    row = store.require("simulated")
    held = leases.acquire(store, row.id)
    assert isinstance(held, leases.Lease)

    def change(_: str) -> None:
        leases.release(store, held)
        store.change_spec(row.id, {**row.spec, "budget": {"trials": 2}})

    with pytest.raises(StoreError, match=r"the spec of .* changed while this process waited for the study"):
        session_of(store, on_stand_by=change).run()
    assert not load_study(store, "simulated").started
    assert leases.current_holder(store, row.id) is None


@both
@pytest.mark.parametrize("next_name", ["another", "simulated"])
def test_a_session_that_stood_by_for_a_study_that_was_deleted_drives_no_other_one(store, tmp_path, next_name):
    """In SQLite the next study has its id; with the same name and spec it is still another study."""
    row = store.require("simulated")
    held = leases.acquire(store, row.id)

    def delete(_: str) -> None:
        delete_rows(store, row.id, held.token)
        store.create_study(next_name, row.spec, str(tmp_path), 1.0)

    with pytest.raises(StoreError, match="deleted"):
        session_of(store, on_stand_by=delete).run()
    assert not load_study(store, next_name).started
    assert leases.current_holder(store, store.require(next_name).id) is None


@pytest.mark.medium
def test_a_controller_deletes_checkpoints_that_nobody_committed(store: Store, tmp_path: Path) -> None:
    """A rank wrote them, and its controller died, or the end of a budget cut it, before they were committed."""
    row = store.require("simulated")
    folder = tmp_path / "artifacts" / f"simulated-{row.uid[:8]}"
    store.change_spec(row.id, {**row.spec, "checkpoints": {"folder": "artifacts"}})
    orphan, note = folder / "trial-00000" / "epoch-0003.attempt-1.pt", folder / "trial-00000" / "note.txt"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"weights")
    note.write_bytes(b"mine")
    late = folder / "trial-00001"

    def write(machine: StudyMachine) -> None:
        assert not orphan.exists()
        late.mkdir(exist_ok=True)
        (late / "epoch-0003.attempt-1.pt").write_bytes(b"weights")
        (late / ".epoch-0005.attempt-1.pt.17.tmp").write_bytes(b"wei")

    assert session_of(store, on_commit=write).run() is not None
    assert note.exists()
    assert not late.exists()


@both
@pytest.mark.medium
def test_a_study_that_is_over_settles_what_a_confirmation_that_was_killed_has_left(store: Store) -> None:
    """No controller comes that would do so, and what a confirmation costs may be more than the budget."""
    assert session_of(store).run() is not None
    beside = {"views", "checkpoints"}  # nothing mirrors this study, and its pool writes no files
    row = store.require("simulated")
    spent = load_study(store, "simulated").cost_nano_usd / NANO
    store.change_spec(row.id, {**row.spec, "budget": {**row.spec["budget"], "usd": spent}})
    lease = leases.acquire(store, row.id)
    since, price = lease.acquired_at, 3600.0
    opened = PoolChanged(columns={"pool_opened_at": since, "pool_slots": 1, "usd_per_slot_hour": price})
    confirm = Charged(kind="confirm", trial_id=None, attempt=None, slots=1, slot_numbers=(0,), since=since, seconds=4.0,
                      usd_per_slot_hour=price, cost_nano_usd=4 * NANO, at=since + 4.0)  # fmt: skip
    store.commit(row.id, lease.token, [opened, confirm])
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.leases).where(t.leases.c.id == lease.id).values(
            pid=2**22 + 1, heartbeat_at=since + 5.0, expires_at=0.0
        ))  # fmt: skip
    assert {one["check"] for one in audit(store, "simulated")["findings"]} - beside == {"slot_seconds", "left_running"}
    assert session_of(store).run() is None
    assert {one["check"] for one in audit(store, "simulated")["findings"]} <= beside
    record = load_study(store, "simulated")
    assert record.overshoot_nano_usd == 5 * NANO, "four dollars of the training, one for the second after it"
    assert record.state == "closed"


@pytest.mark.medium
def test_what_a_search_knows_of_trials_is_always_up_to_date(tmp_path: Path) -> None:
    """Only trials that changed are read anew; what is known of all is the same as if each were read."""
    study = SimulatedStudy(tmp_path, policy=Policy(pruner=MoAsha(variant="promotion")), curve=noisy_curve)
    looks = 0

    def compare(machine: StudyMachine) -> None:
        nonlocal looks
        looks += 1
        live = machine._live
        setup, started = live.setup, live.registry.started
        snapshots = [trial.snapshot(setup.search_usd_per_slot_hour) for trial in started]
        assert list(live.searched.snapshots()) == snapshots
        assert list(live.searched.observations()) == [
            replace(trial.observation(setup.objectives, setup.epochs, setup.constraints), snapshot=snapshot)
            for trial, snapshot in zip(started, snapshots, strict=True)
        ]

    study.on_commit = compare
    study.run_until_killed(Limits(trials=12), 60)
    study.run(Limits(trials=12))
    assert looks > 100


def test_objects_are_set_aside_until_the_block_ends_and_nothing_is_collected_meanwhile() -> None:
    class Node:
        def __init__(self) -> None:
            self.itself = self

    before, old = gc.get_freeze_count(), Node()
    found = weakref.ref(old)
    with set_aside():
        assert gc.get_freeze_count() > before
        del old
        new = weakref.ref(Node())
        gc.collect()
        assert (new(), found() is not None) == (None, True)
    gc.collect()
    assert (found(), gc.get_freeze_count()) == (None, 0)
    with suppress(KeyError), none_meanwhile():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with none_meanwhile():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.medium
def test_a_study_asks_its_advisor_in_its_own_folder_and_leaves_no_process(store: Store, tmp_path: Path) -> None:
    """The second question is never answered: the study ends all the same, and so does the program."""
    code = """
import json, os, pathlib, sys, time
told = json.load(sys.stdin)
pathlib.Path(f"asked-{len(list(pathlib.Path().glob('asked-*')))}").write_text(f"{os.getpid()} {sorted(told)}")
if len(list(pathlib.Path().glob("asked-*"))) > 1:
    time.sleep(1000)
print(json.dumps([{"learning_rate": 0.125}]))
"""
    (tmp_path / "advise.py").write_text(code, encoding="utf-8")
    row = store.require("simulated")
    search = {
        "sampler": "cokriging",
        "pruner": "none",
        "advisor": {"command": ["python", "advise.py"], "seconds": 900.0},
    }
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.studies).values(spec={**row.spec, "search": search, "budget": {"trials": 400}}))
    asked: list[str] = []

    def look(_machine: StudyMachine) -> None:
        texts = [one.read_text(encoding="utf-8") for one in tmp_path.glob("asked-1")]
        asked[:] = [one for one in texts if one.endswith("]")]
        if asked:
            session.drain("enough")

    session = session_of(store, on_commit=look)
    assert session.run() is not None
    pid, _, keys = asked[0].partition(" ")
    assert keys == "['constraints', 'epochs', 'objectives', 'space', 'trials']"
    assert not psutil.pid_exists(int(pid))
