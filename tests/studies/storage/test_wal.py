"""SQLite's write-ahead log is copied beside a controller, and does not grow without bounds where nobody does that."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from studies.storage.schema import engine as engines
from studies.storage.study_store import Store
from studies.storage.writing import retrying

SPEC = {"objectives": [], "budget": {}, "mlflow": "off"}
PAGE_BYTES = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.db"


@pytest.fixture
def made(path: Path) -> Iterator[tuple[Store, int]]:
    """A store with a log of its own, and the id of a study in it."""
    store = Store(f"sqlite:///{path}")
    yield store, store.create_study("digits", SPEC, "/somewhere", 1.0)
    store.close()


def commit_some(store: Store, study_id: int, number: int) -> None:
    for _ in range(number):
        store.commit(study_id, None, [])


def log_pages(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size // PAGE_BYTES


def in_database_file_alone(path: Path, tmp_path: Path) -> int:
    """The revision that somebody finds who has the database without its log."""
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    with sqlite3.connect(f"file:{copy}?immutable=1", uri=True) as connection:
        return int(connection.execute("SELECT revision FROM automl_studies").fetchone()[0])


def test_the_log_is_copied_without_a_commit_that_does_it(made: tuple[Store, int], path: Path, tmp_path: Path) -> None:
    store, study_id = made
    retrying.copy(store.engine)
    commit_some(store, study_id, 5)
    assert in_database_file_alone(path, tmp_path) == 0
    retrying.copy(store.engine)
    assert in_database_file_alone(path, tmp_path) == 5


def test_a_thread_copies_it_beside_the_commits(made, path, tmp_path, monkeypatch):
    monkeypatch.setattr(retrying, "COPY_SECONDS", 0.001)
    monkeypatch.setattr(retrying, "COPY_COMMITS", 1)
    store, study_id = made
    retrying.copy(store.engine)
    with retrying.copied_beside(store.engine):
        for _ in range(100_000):  # as long as the thread needs
            commit_some(store, study_id, 1)
            if in_database_file_alone(path, tmp_path):
                break
    assert in_database_file_alone(path, tmp_path) > 0


def test_a_writer_that_never_rests_keeps_the_log_short(made, path, monkeypatch):
    """Beside it the thread never finds a log that it can copy to its end, so commits have to do that now and then."""
    monkeypatch.setattr(retrying, "COPY_SECONDS", 0.001)
    monkeypatch.setattr(retrying, "COPY_COMMITS", 1)
    monkeypatch.setattr(engines, "SQLITE_LONGEST_WAL_PAGES", 100)
    store, study_id = made
    with retrying.copied_beside(store.engine):
        commit_some(store, study_id, 400)
    assert log_pages(path) < 300


def test_nothing_that_was_committed_is_lost_with_the_process(path: Path) -> None:
    """Each connection still syncs the log at each commit."""
    store = Store(f"sqlite:///{path}")
    with store.engine.connect() as connection:
        found = {
            name: connection.execute(sa.text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "wal_autocheckpoint")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "wal_autocheckpoint": engines.SQLITE_LONGEST_WAL_PAGES}
    store.close()


def test_other_databases_are_left_alone() -> None:
    with retrying.copied_beside(sa.create_engine("postgresql+psycopg://nobody@nowhere/nothing")):
        pass  # nothing is opened
