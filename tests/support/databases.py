"""Empty databases that are made once for the whole test run: migrating one takes longer than most tests."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import sqlalchemy as sa

from studies.storage import mlflow_connect
from studies.storage.engine import make_engine, parse_url
from studies.storage.store import Store


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
