"""One contract for both databases: what is committed is committed whole, by whoever holds the lease, and stays."""

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import HealthCheck, given, settings
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from search_spaces.untrusted_text import storable
from studies.money.budget import Limits
from studies.records.records import Forecast
from studies.storage.leases import lease as leases
from studies.storage.leases.dead_pools import settle_dead_pools
from studies.storage.reading.reader import list_studies, load_resume_state, load_study
from studies.storage.schema import engine
from studies.storage.schema import tables as t
from studies.storage.schema.engine import absolute_url, exists, make_engine, parse_url
from studies.storage.study_store import LeaseLostError, Store, StoreError, StudyExistsError
from studies.storage.writing.changes import (
    AttemptChanged,
    AttemptColumns,
    AttemptOpened,
    Change,
    Charged,
    CheckpointKept,
    Decided,
    EpochMeasured,
    PoolChanged,
    PoolColumns,
    StudyChanged,
    StudyColumns,
    TrialChanged,
    TrialColumns,
)
from studies.storage.writing.deletion import delete_rows
from studies.storage.writing.retrying import retry
from tests.support.any_text import any_text
from tests.support.databases import create_database, database_of
from tests.support.simulated_study import SimulatedStudy, checked, essence

SPEC: dict[str, Any] = {
    "objectives": [{"metric": "val_error"}], "budget": {"usd": 1.0}, "mlflow": "off", "training": {"epochs": 9}
}  # fmt: skip
databases = itertools.count()


both = pytest.mark.usefixtures("either_url")
"""For what may differ between the databases; the rest is asked of SQLite."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind, without our tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/study.db"
    server, name = request.getfixturevalue("postgres_server"), f"empty_store_{next(databases)}"
    create_database(server, name)
    return database_of(server, name)


@pytest.fixture
def study_id(store: Store) -> int:
    return store.create_study("digits", SPEC, "/somewhere", 1.0)


@pytest.fixture
def trial_id(store: Store, study_id: int) -> int:
    return store.enqueue(study_id, {"rate": 0.5}, world_size=1, origin="sampler")


def epoch_of(trial_id: int, epoch: int = 1, **more: Any) -> EpochMeasured:
    values: dict[str, Any] = {"metrics": {"val_error": 0.5}, "wall_seconds": 1.0, "cost_nano_usd": 7,
                              "checkpoint": None, "is_milestone": True, "at": 2.0}  # fmt: skip
    return EpochMeasured(trial_id=trial_id, epoch=epoch, **{**values, **more})


def charge_of(trial_id: int | None, cost: int = 7, since: float = 1.0) -> Charged:
    return Charged(kind="train" if trial_id else "idle", trial_id=trial_id, attempt=1, slots=1, slot_numbers=(0,),
                   since=since, seconds=1.0, usd_per_slot_hour=1.0, cost_nano_usd=cost, at=since + 1.0)  # fmt: skip


def rows(store: Store, table: sa.Table) -> list[Any]:
    with store.engine.connect() as connection:
        return list(connection.execute(sa.select(table).order_by(table.c.id)).all())


def everything(store: Store) -> dict[str, list[Any]]:
    return {table.name: rows(store, table) for table in t.metadata.sorted_tables}


# ---------------------------------------------------------------------- commits


SET_AT_INSERTION = {
    "studies": "uid name spec launched_spec base_folder sampler_attributes earlier_studies counted_examples created_at "
    "last_commit usd_per_slot_hour",
    "trials": "world_size origin created_at enqueue_id cancel_requested_at",
    "attempts": "attempt world_size slots start_epoch started_at lease_id",
    "leases": "holder host pid process_started_at process_space acquired_at heartbeat_at expires_at released_at "
    "stop_requested cluster_address cluster_token trace_parent died job_id",
}


@pytest.mark.parametrize(
    ("columns", "table"),
    [(StudyColumns, t.studies), (TrialColumns, t.trials), (AttemptColumns, t.attempts), (PoolColumns, t.leases)],
)
def test_a_change_has_exactly_the_columns_that_a_controller_may_set(columns, table):
    """So a misspelt column fails at the type check, and none that a migration adds is forgotten."""
    at_insertion = SET_AT_INSERTION[table.name.removeprefix("automl_")].split()
    set_elsewhere = {"id", "study_id", "trial_id", "revision", *at_insertion}
    assert set(columns.__annotations__) == set(table.columns.keys()) - set_elsewhere


@both
def test_what_is_committed_is_read_back(store: Store, study_id: int, trial_id: int) -> None:
    store.commit(study_id, None, [
        TrialChanged(trial_id=trial_id, columns={"state": "running", "number": 0, "started_at": 1.5}),
        AttemptOpened(trial_id=trial_id, attempt=1, slots=(0,), start_epoch=0, at=1.5),
        charge_of(trial_id),
        epoch_of(trial_id, metrics={"val_error": 0.5, "odd": float("nan")}, checkpoint="/a/1.pt"),
        Decided(
            trial_id=trial_id, epoch=1, action="continue", reason="good", numbers={"rank": 1}, at=2.0,
            forecasts={"val_error": Forecast(epochs=(3,), mean=(0.25,), deviation=(0.125,))},
        ),
        StudyChanged(columns={"reserved_nano_usd": 10**15}),
    ])  # fmt: skip
    store.commit(study_id, None, [CheckpointKept(trial_id=trial_id, epoch=1, checkpoint=None)])
    record = load_study(store, "digits")
    (trial,) = record.started
    assert trial.params == {"rate": 0.5}
    assert trial.epochs[0].metrics["val_error"] == 0.5
    assert trial.epochs[0].metrics["odd"] != trial.epochs[0].metrics["odd"], "JSON has no NaN, but it comes back as one"
    assert trial.epochs[0].checkpoint is None
    assert trial.decisions[0].numbers == {"rank": 1}
    assert trial.decisions[0].forecasts["val_error"].interval(0, 0.0) == (0.25, 0.25)
    assert record.charges[0].slot_numbers == (0,)
    assert (trial.paid_nano_usd, record.cost_nano_usd) == (7, 7)
    assert store.require("digits").reserved_nano_usd == 10**15, "32 bits hold two dollars"
    assert store.require("digits").revision == 2
    resume_state = load_resume_state(store, study_id, before_lease=-1)
    assert (resume_state.spent_nano_usd, resume_state.trials[0].wall_seconds) == (7, 1.0)


@both
def test_a_commit_is_all_or_nothing(store: Store, study_id: int, trial_id: int) -> None:
    store.commit(study_id, None, [epoch_of(trial_id)])
    before = everything(store)
    with pytest.raises(IntegrityError):
        store.commit(study_id, None, [
            StudyChanged(columns={"state": "closed"}), charge_of(trial_id), epoch_of(trial_id, 2), epoch_of(trial_id, 1)
        ])  # fmt: skip
    assert everything(store) == before


def test_numbers_and_names_are_given_once(store: Store, study_id: int) -> None:
    ids = [store.enqueue(study_id, {}, world_size=1, origin="sampler") for _ in range(2)]
    store.commit(study_id, None, [TrialChanged(trial_id=ids[0], columns={"number": 0})])
    with pytest.raises(IntegrityError):
        store.commit(study_id, None, [TrialChanged(trial_id=ids[1], columns={"number": 0})])
    with pytest.raises(StudyExistsError, match="'digits' exists already in the store"):
        store.create_study("digits", SPEC, ".", 1.0)


def test_the_ledger_is_append_only(tmp_path: Path) -> None:
    """Whatever a study goes through, no line is changed or taken away."""
    study = SimulatedStudy(tmp_path, slots=2, epochs=9)
    statements: list[str] = []
    sa.event.listen(
        study.store.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2].lower())
    )
    study.run(Limits(usd=0.01))
    study.run(Limits(usd=0.02))
    study.run_until_killed(Limits(usd=0.05), 5)
    study.run(Limits(trials=8))
    about_charges = [s for s in statements if "automl_charges" in s and not s.lstrip().startswith("select")]
    assert about_charges
    assert all(s.lstrip().startswith("insert into automl_charges") for s in about_charges)
    checked(study)
    study.store.close()


@pytest.mark.medium
def test_both_databases_tell_the_same_story(postgres_url: str, tmp_path: Path) -> None:
    stories = []
    for url in (None, postgres_url):
        study = SimulatedStudy(tmp_path, slots=3, epochs=9, url=url)
        study.run(Limits(usd=0.02))
        study.run(Limits(usd=1.0, trials=10))
        stories.append(essence(study.record()))
        study.store.close()
    assert stories[0] == stories[1]


# ---------------------------------------------------------------------- leases


def set_lease(store: Store, **columns: Any) -> None:
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.leases).where(t.leases.c.released_at.is_(None)).values(**columns))


def take(store: Store, study_id: int) -> leases.Lease:
    lease = leases.acquire(store, study_id)
    assert isinstance(lease, leases.Lease), f"held by {lease}"
    return lease


def at_once(count: int, call: Callable[[int], Any]) -> list[Any]:
    """What threads get that call at the same moment, each with its number; what one raises is raised."""
    barrier = threading.Barrier(count)

    def one(number: int) -> Any:
        barrier.wait(30)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@both
def test_of_many_at_once_one_gets_the_lease(store: Store, study_id: int) -> None:
    rivals = [Store(store.url) for _ in range(6)]
    got = at_once(6, lambda number: leases.acquire(rivals[number], study_id))
    for rival in rivals:
        rival.close()
    assert [type(one).__name__ for one in got].count("Lease") == 1
    assert len(rows(store, t.leases)) == 1


@both
def test_a_lease_elsewhere_runs_out_and_ends_with_its_last_heartbeat(store: Store, study_id: int) -> None:
    first, now = take(store, study_id), time.time()
    set_lease(store, process_space="elsewhere", heartbeat_at=now - 9.0, expires_at=now + 1.0)
    assert isinstance(leases.acquire(store, study_id), leases.Holder), "it may be alive"
    set_lease(store, expires_at=now - 0.01)
    second = take(store, study_id)
    assert second.id != first.id
    assert rows(store, t.leases)[0].released_at == pytest.approx(now - 9.0), "nobody knows what it did after that"


@both
def test_time_of_controllers_never_goes_backwards(store: Store, study_id: int) -> None:
    """Not when one dies, not when its lease has run out, not when the next one takes over; the budget agrees."""
    lease, now = take(store, study_id), time.time()

    def seen() -> float:
        record = load_study(store, "digits")
        assert record.budget["hours"].spent == record.alive_seconds / 3600
        return record.alive_seconds

    set_lease(store, acquired_at=now - 60.0, heartbeat_at=now - 1.0, expires_at=now + 9.0)
    alive = seen()
    assert alive == pytest.approx(59.0, abs=1e-3)
    set_lease(store, process_space="elsewhere", heartbeat_at=now - 1.0, expires_at=now - 0.01)
    assert seen() == alive, "nobody knows whether it lived on after its last heartbeat"
    second = take(store, study_id)
    assert load_resume_state(store, study_id, before_lease=second.id).alive_seconds == alive
    assert seen() == pytest.approx(alive, abs=0.5)
    leases.release(store, second)
    assert seen() >= alive
    assert lease.id != second.id


@both
def test_a_list_of_studies_counts_and_sums(store: Store, study_id: int, trial_id: int) -> None:
    second = store.create_study("second", SPEC, ".", 5.0)
    store.enqueue(study_id, {}, world_size=1, origin="sampler")
    columns: TrialColumns = {"state": "running", "number": 0}
    store.commit(study_id, None, [TrialChanged(trial_id=trial_id, columns=columns), charge_of(trial_id, 2**40)])
    store.commit(study_id, None, [charge_of(None, 5)])
    take(store, second)
    first_line, second_line = list_studies(store)
    record = load_study(store, "digits")
    assert (first_line.name, first_line.state, first_line.created_at) == (record.name, record.state, record.created_at)
    assert (
        (first_line.trials, first_line.cost_nano_usd) == (len(record.started), record.cost_nano_usd) == (1, 2**40 + 5)
    )
    assert (second_line.name, second_line.trials, second_line.cost_nano_usd) == ("second", 0, 0)
    assert (first_line.driven, second_line.driven) == (record.driven, load_study(store, "second").driven)
    assert (first_line.driven, second_line.driven) == (False, True)


def test_a_list_of_studies_reads_no_epochs(store: Store, study_id: int) -> None:
    statements: list[str] = []
    sa.event.listen(store.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    for name in ("second", "third"):
        store.create_study(name, SPEC, ".", 5.0)
    statements.clear()
    assert len(list_studies(store)) == 3
    assert sum("automl_" in one for one in statements) == 2, "however many studies there are"
    assert not any("automl_epochs" in one for one in statements)


def test_a_holder_on_this_host_whose_process_is_gone_holds_nothing(store: Store, study_id: int) -> None:
    assert not leases.request_stop(store, study_id)
    leases.release(store, take(store, study_id))
    assert leases.current_holder(store, study_id) is None
    take(store, study_id)
    assert str(leases.current_holder(store, study_id)) == f"process {os.getpid()} on {socket.gethostname()}"
    set_lease(store, pid=2**22 + 1)
    assert not leases.request_stop(store, study_id), "there is nobody to stop"
    take(store, study_id)
    set_lease(store, process_started_at=12.0)
    assert leases.current_holder(store, study_id) is None, "the pid belongs to another process by now"


def test_who_lost_the_lease_writes_nothing(store: Store, study_id: int, trial_id: int) -> None:
    first = take(store, study_id)
    pool = PoolChanged(columns={"pool_opened_at": 1.0, "pool_slots": 1, "usd_per_slot_hour": 1.0})
    store.commit(study_id, first.token, [pool, charge_of(None)])
    set_lease(store, process_space="elsewhere", expires_at=time.time() - 1.0)
    store.commit(study_id, first.token, [charge_of(None, since=2.0)])  # late, but nobody else was there
    take(store, study_id)
    before = everything(store)
    with pytest.raises(LeaseLostError):
        store.commit(study_id, first.token, [charge_of(None, since=3.0), epoch_of(trial_id)])
    with pytest.raises(LeaseLostError):
        store.enqueue(study_id, {}, world_size=1, origin="sampler", study_attributes={"a": 1}, lease_token=first.token)
    assert everything(store) == before


@both
def test_who_was_suspended_while_its_study_was_deleted_writes_nothing_into_the_next_one(
    store: Store, study_id: int, trial_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite gives the ids of deleted rows out again: those of the study, of its trials and of its leases."""
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.02)
    suspended = take(store, study_id)
    set_lease(store, process_space="elsewhere", expires_at=0.0)
    delete_rows(store, study_id, take(store, study_id).token)
    next_id = store.create_study("text", SPEC, "/somewhere", 2.0)
    next_trial = store.enqueue(next_id, {"rate": 0.1}, world_size=1, origin="sampler")
    present = take(store, next_id)
    is_sqlite = store.engine.dialect.name == "sqlite"
    assert ((study_id, trial_id, suspended.id) == (next_id, next_trial, present.id)) is is_sqlite
    before = everything(store)
    with pytest.raises(LeaseLostError):
        store.commit(study_id, suspended.token, [epoch_of(trial_id)])
    with pytest.raises(LeaseLostError):
        store.enqueue(study_id, {}, world_size=1, origin="sampler", lease_token=suspended.token)
    with pytest.raises(LeaseLostError):
        settle_dead_pools(store, suspended)
    with pytest.raises(LeaseLostError):
        delete_rows(store, next_id, suspended.token)
    lost = threading.Event()
    with leases.kept(store, suspended, on_stop=lambda: None, on_lost=lost.set):
        assert lost.wait(10)
    assert everything(store) == before
    store.commit(next_id, present.token, [epoch_of(next_trial)])


def test_nobody_takes_the_lease_of_a_study_that_was_deleted(store: Store, study_id: int) -> None:
    delete_rows(store, study_id, take(store, study_id).token)
    with pytest.raises(StoreError, match="the study was deleted just now"):
        leases.acquire(store, study_id)


def test_a_heart_keeps_the_lease_and_hears_of_a_stop(store, study_id, monkeypatch):
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.02)
    lease, stopped, looked = take(store, study_id), threading.Event(), threading.Event()
    set_lease(store, expires_at=1.0, heartbeat_at=1.0)
    heart = leases.Heartbeat(store, lease, on_stop=stopped.set, on_requests=looked.set)
    heart.start()
    try:
        assert looked.wait(10)
        assert not stopped.is_set()
        (row,) = rows(store, t.leases)
        assert row.expires_at - row.heartbeat_at == pytest.approx(leases.EXPIRY_SECONDS, abs=1.0)
        assert row.expires_at > time.time()
        assert leases.request_stop(store, study_id)
        assert stopped.wait(10)
    finally:
        heart.stop()


# ---------------------------------------------------------------------- a database that is away


@both
def test_commits_wait_for_a_locked_database(store: Store, study_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if store.engine.dialect.name == "sqlite":
        monkeypatch.setattr("studies.storage.schema.engine.SQLITE_BUSY_SECONDS", 0.05)
        options = {}
    else:
        options = {"options": "-c lock_timeout=50"}
    impatient_url = sa.make_url(store.url).update_query_dict(options)
    impatient, told = Store(impatient_url.render_as_string(hide_password=False)), list[str]()
    with store.engine.begin() as connection:  # somebody else is writing
        connection.execute(sa.update(t.studies).values(error="busy"))

        def wait(cause: str) -> None:
            told.append(cause)
            if len(told) == 2:
                connection.rollback()

        retry(lambda: impatient.commit(study_id, None, [charge_of(None)]), warn=wait)
    assert len(told) == 2
    assert "lock" in told[0]
    assert len(rows(store, t.charges)) == 1
    impatient.close()


@pytest.mark.parametrize("either_url", ["postgresql"], indirect=True)
@both
def test_commits_outlive_a_broken_connection(store: Store, study_id: int) -> None:
    told: list[str] = []
    breaks = iter([True, True, False])

    def commit() -> None:
        if next(breaks):
            with store.engine.begin() as connection:
                pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
                other = Store(store.url)
                with other.engine.begin() as killer:
                    killer.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")
                other.close()
                connection.exec_driver_sql("SELECT 1")
        store.commit(study_id, None, [charge_of(None)])

    retry(commit, warn=told.append)
    assert len(told) == 2
    assert len(rows(store, t.charges)) == 1


@pytest.mark.parametrize("either_url", ["postgresql"], indirect=True)
@both
def test_commits_wait_while_a_failover_leaves_the_database_read_only(store: Store, study_id: int) -> None:
    def let_write(yes: str) -> None:
        other = sa.create_engine(store.engine.url, isolation_level="AUTOCOMMIT")
        with other.connect() as connection:
            connection.exec_driver_sql("SET default_transaction_read_only = off")
            name = other.url.database
            connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {yes}')
        other.dispose()
        store.engine.dispose()  # connections keep what was in force when they were made

    told: list[str] = []

    def wait(cause: str) -> None:
        told.append(cause)
        if len(told) == 2:
            let_write("off")

    let_write("on")
    retry(lambda: store.commit(study_id, None, [charge_of(None)]), warn=wait)
    assert len(told) == 2
    assert "read-only" in told[0]
    assert len(rows(store, t.charges)) == 1


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = iter([True] * times + [False])

    def action() -> str:
        if next(left):
            raise error
        return "done"

    return action


def test_pauses_grow_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    away = OperationalError("commit", {}, Exception("database is locked\nsecond line"))
    told: list[str] = []
    assert retry(failing(8, away), warn=told.append) == "done"
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert set(told) == {"the store does not answer (database is locked); waiting for it"}
    with pytest.raises(OperationalError):
        retry(failing(10**6, away), give_up_after_seconds=60.0)


def test_what_a_retry_cannot_mend_is_raised_at_once() -> None:
    wrong = IntegrityError("insert", {}, Exception("unique"))
    with pytest.raises(IntegrityError):
        retry(failing(1, wrong), warn=pytest.fail)
    broken = DBAPIError("select", {}, Exception("server closed the connection"), connection_invalidated=True)
    assert retry(failing(1, broken)) == "done"


# ---------------------------------------------------------------------- opening and migrating


@both
def test_migrations_make_the_tables_that_the_code_uses(store: Store) -> None:
    with store.engine.connect().execution_options(automl_read_only=True) as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": t.VERSION_TABLE,
                "compare_type": True,
                "include_name": lambda name, kind, _: kind != "table" or str(name).startswith("automl_"),
            },
        )
        assert compare_metadata(context, t.metadata) == []
        assert set(sa.inspect(connection).get_table_names()) == {*t.metadata.tables, t.VERSION_TABLE}


def test_opening_twice_changes_nothing(store: Store, study_id: int) -> None:
    before = everything(store)
    again = Store(store.url)
    assert everything(again) == before
    again.close()


def test_many_may_find_an_empty_database_at_once(url: str) -> None:
    for one in at_once(5, lambda _number: Store(url)):
        one.close()


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """Switching a new file to WAL is refused without waiting when two do it: a round fails now and then."""
    for number in range(40):
        engines = [make_engine(f"sqlite:///{tmp_path}/{number}.db") for _ in range(6)]
        for connection in at_once(6, lambda place, engines=engines: engines[place].connect()):
            connection.close()
        for one in engines:
            one.dispose()


def test_whether_there_is_a_store_is_answered_without_making_one(url: str, tmp_path: Path) -> None:
    assert not exists(url)
    assert not list(tmp_path.iterdir())
    Store(url).close()
    assert exists(url)


def test_other_tables_in_the_same_database_are_left_alone(url: str) -> None:
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('of optuna')")
    engine.dispose()
    store = Store(url)
    with store.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == "of optuna"
    store.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "cannot read the URL"),
        ("mysql://me:secret@h/d", "found mysql, allowed: sqlite, postgresql"),
        ("sqlite://", "give a file"),
        ("sqlite:///:memory:", "give a file"),
        ("postgresql://me:secret@127.0.0.1:1/none", "cannot be opened"),
        ("sqlite:////no/such/folder/x.db", "cannot be opened"),
    ],
)
def test_a_store_that_cannot_be_is_one_line_without_its_password(text: str, says: str) -> None:
    with pytest.raises(StoreError, match=says) as raised:
        Store(text)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_relative_files_start_at_the_specs_folder(tmp_path: Path) -> None:
    assert absolute_url("sqlite:///a.db", tmp_path) == f"sqlite:///{tmp_path}/a.db"
    assert parse_url("postgres://h/d").drivername == parse_url("postgresql://h/d").drivername == "postgresql+psycopg"


# ---------------------------------------------------------------------- reading


@both
def test_a_snapshot_sees_one_moment_and_blocks_nobody(store: Store, study_id: int, trial_id: int) -> None:
    writer = Store(store.url)
    count = sa.select(sa.func.count()).select_from(t.epochs)
    with store.snapshot() as connection:
        assert connection.execute(count).scalar_one() == 0
        writer.commit(study_id, None, [epoch_of(trial_id)])
        assert connection.execute(count).scalar_one() == 0
    with store.snapshot() as connection:
        assert connection.execute(count).scalar_one() == 1
    writer.close()


@both
def test_a_snapshot_cannot_write(store: Store, study_id: int) -> None:
    with pytest.raises(DBAPIError), store.snapshot() as connection:
        connection.execute(sa.update(t.studies).values(error="written by a reader"))
    assert store.require("digits").error is None
    store.commit(study_id, None, [StudyChanged(columns={"error": "the next user of the connection may write"})])
    assert store.require("digits").error


def test_a_study_that_does_not_exist_is_named_with_those_that_do(store: Store, study_id: int) -> None:
    with pytest.raises(StoreError, match=r"this store has no study 'digit'\. Its studies are digits"):
        store.require("digit")
    assert store.study_row("digit") is None
    assert store.study_names() == ["digits"]


def test_the_queue_is_in_order_and_empties_as_trials_start(store: Store, study_id: int) -> None:
    ids = [store.enqueue(study_id, {"n": n}, world_size=n + 1, origin="enqueue") for n in range(3)]
    store.commit(study_id, None, [TrialChanged(trial_id=ids[1], columns={"state": "running", "number": 0})])
    queued = store.queued(study_id)
    assert [(one.id, one.params, one.world_size) for one in queued] == [(ids[0], {"n": 0}, 1), (ids[2], {"n": 2}, 3)]


@both
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=any_text)
def test_any_text_from_outside_is_stored_and_read_back(store: Store, study_id: int, trial_id: int, text: str) -> None:
    """Messages of exceptions, names of metrics and facts come from the user's code as they are."""
    changes: list[Change] = [
        TrialChanged(trial_id=trial_id, columns={"reason": text, "error": text, "number": 0, "state": "failed"}),
        StudyChanged(columns={"error": text}),
    ]
    store.commit(study_id, None, changes)
    with store.engine.begin() as connection:
        connection.execute(sa.delete(t.attempts))
        connection.execute(sa.delete(t.epochs))
    opened = AttemptOpened(trial_id=trial_id, attempt=1, slots=(0,), start_epoch=0, at=1.0)
    facts = AttemptChanged(trial_id=trial_id, attempt=1, columns={"facts": {text: text, "nested": [{"a": text}]}})
    measured = EpochMeasured(
        trial_id=trial_id, epoch=1, metrics={text: 1.0, "val_error": 0.5}, wall_seconds=1.0, cost_nano_usd=0,
        checkpoint=None, is_milestone=False, at=1.0,
    )  # fmt: skip
    store.commit(study_id, None, [opened, facts, measured])
    (trial,) = load_study(store, "digits").started
    assert trial.error == storable(text)
    assert trial.attempts[0].facts == {storable(text): storable(text), "nested": [{"a": storable(text)}]}
    assert trial.epochs[0].metrics[storable(text)] == 1.0
    with pytest.raises(StoreError, match="this store has no study"):
        store.require(text + "?")


def test_the_version_of_the_tables_is_that_of_the_last_migration() -> None:
    """It is read from names of files; Alembic follows the chain of migrations."""
    assert ScriptDirectory.from_config(engine._migrations()).get_current_head() == engine._head()
