"""Empty databases that are made once for the whole test run: migrating one takes longer than most tests."""

import functools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from studies.storage.schema.engine import make_engine, parse_url
from studies.storage.study_store import Store
from studies.storage.views import mlflow_connect


@functools.cache
def empty_database() -> bytes:
    """A store's database with our tables and nothing in them."""
    with tempfile.TemporaryDirectory() as folder:
        Store(f"sqlite:///{folder}/empty.db").close()
        return Path(folder, "empty.db").read_bytes()


@functools.cache
def mlflow_database() -> bytes:
    """A database with MLflow's tables and nothing in them; MLflow takes seven seconds to make them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mlflow.db")
        mlflow_connect.open_client(f"sqlite:///{path}")
        engine = sa.create_engine(f"sqlite:///{path}")
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        engine.dispose()
        return path.read_bytes()


def create_database(server: str, name: str, *, template: str | None = None) -> None:
    """Make a database on a PostgreSQL server, empty or as a copy of another one."""
    engine = make_engine(server)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
    engine.dispose()


def database_of(server: str, name: str) -> str:
    """The URL of a database on a PostgreSQL server."""
    return parse_url(server).set(database=name).render_as_string(hide_password=False)


@contextmanager
def statements(store: Store) -> Iterator[list[tuple[str, Any]]]:
    """The statements that a store is asked in the block, each with its parameters."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: object, *_rest: object) -> None:
        asked.append((statement, parameters))

    sa.event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        sa.event.remove(store.engine, "before_cursor_execute", note)


def plans(store: Store, asked: Sequence[tuple[str, Any]]) -> list[str]:
    """What SQLite does for each of these queries, behind the query."""
    assert store.engine.dialect.name == "sqlite"
    found = []
    with store.snapshot() as connection:
        for statement, parameters in asked:
            if statement.startswith("SELECT"):
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
                found.append("\n".join([statement, *(row[3] for row in plan)]))
    return found
