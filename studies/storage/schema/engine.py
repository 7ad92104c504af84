"""Opens databases: SQLite's settings, upgrades of the tables, and errors that show URLs without passwords."""

import functools
import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError

from search_spaces.messages import UserError, install_command
from studies.storage.schema.tables import VERSION_TABLE, metadata

SQLITE_BUSY_SECONDS = 30.0
SQLITE_RETRY_SECONDS = 0.02
_MIGRATIONS = Path(__file__).parent.parent / "migrations"
SQLITE_LONGEST_WAL_PAGES = 8192
"""Length of the write-ahead log (32 MiB) at which a commit copies it; `WalCopier` copies it earlier."""
SQLITE_CACHE_KIB = 32 * 1024
"""Cache of a connection, allocated on demand: an index of a large study exceeds the default of 2 MiB."""
POSTGRESQL_TIMEOUTS = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""Settings of libpq, in seconds; the last in milliseconds. Without them, the kernel waits two hours for an answer of a
vanished host, and 15 minutes for an acknowledgement."""
MIGRATION_LOCK = 7_209_432_116
"""Id of the migrations' advisory lock: an arbitrary number, unlikely to be used by other programs."""


class StoreError(UserError):
    """The store cannot be opened, or lacks a requested object."""


class StoreAwayError(StoreError):
    """The database or its file cannot be reached. A retry may succeed."""


def shown(url: sa.URL) -> str:
    """Return the URL with its password hidden."""
    return url.render_as_string(hide_password=True)


def parse_url(text: str) -> sa.URL:
    """Parse a SQLAlchemy URL, with psycopg for `postgresql://`. Raises `StoreError` for an unsupported URL."""
    try:
        url = sa.make_url(text)
    except ArgumentError:
        raise StoreError("store: cannot read the URL. Give sqlite:///FILE or postgresql://HOST/DATABASE") from None
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in {"sqlite", "postgresql"}:
        raise StoreError(f"store: {shown(url)}: found {url.get_backend_name()}, allowed: sqlite, postgresql")
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        problem = "a database in memory cannot be read by several processes, so give a file: sqlite:///FILE"
        raise StoreError(f"store: {shown(url)}: {problem}")
    return url


def absolute_url(text: str, folder: Path) -> str:
    """Return the URL, with its password; the path of a SQLite file is resolved against `folder`."""
    url = parse_url(text)
    if url.get_backend_name() == "sqlite" and not str(url.database).startswith("file:"):
        url = url.set(database=str((folder / str(url.database)).absolute()))
    return url.render_as_string(hide_password=False)


def exists(url_text: str) -> bool:
    """Return whether the database has our tables, without creating them. Raises `StoreError` if it is unreachable."""
    url = parse_url(url_text)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        return False
    engine = make_engine(url_text)
    try:
        with engine.connect().execution_options(automl_read_only=True) as connection:
            return sa.inspect(connection).has_table("automl_studies")
    except SQLAlchemyError as error:
        raise StoreError(_cannot_open(url, error)) from None
    finally:
        engine.dispose()


def open_engine(url_text: str) -> sa.Engine:
    """Connect to a database, and create or upgrade its `automl_` tables.

    Raises StoreAwayError if it does not answer; StoreError if it cannot be written, or its tables are newer or too old.
    """
    url = parse_url(url_text)
    engine = make_engine(url_text)
    try:
        _migrate(engine)
    except BaseException as error:
        engine.dispose()
        if isinstance(error, ModuleNotFoundError):
            raise StoreError(f"store: {shown(url)}: {error}. Install it: {install_command('postgresql')}") from None
        if isinstance(error, OperationalError | OSError):
            raise StoreAwayError(_cannot_open(url, error)) from None
        if isinstance(error, SQLAlchemyError):
            raise StoreError(_cannot_open(url, error)) from None
        raise
    return engine


def make_engine(url_text: str) -> sa.Engine:
    """Return an engine, not yet connected, that lets several processes use SQLite."""
    url = parse_url(url_text)
    try:
        if url.get_backend_name() != "sqlite":
            return sa.create_engine(url, pool_pre_ping=True, connect_args=connect_args(url))
        engine = sa.create_engine(url, connect_args=connect_args(url))
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise StoreError(f"store: {shown(url)}: {error}. Install it: {install_command('postgresql')}") from None
    sa.event.listen(engine, "connect", _set_pragmas)
    sa.event.listen(engine, "begin", _begin_immediately)
    return engine


def connect_args(url: sa.URL) -> dict[str, Any]:
    """Return connection timeouts for the database's driver; values in the URL have priority."""
    if url.get_backend_name() == "sqlite":
        return {"timeout": SQLITE_BUSY_SECONDS}
    if url.get_backend_name() == "postgresql":
        return {name: value for name, value in POSTGRESQL_TIMEOUTS.items() if name not in url.query}
    return {}


def _set_pragmas(connection: Any, _: object) -> None:
    # The driver would begin transactions lazily, as readers; a reader that starts to write may be refused at once
    # ("database is locked"), regardless of the busy timeout. So SQLAlchemy begins them, as writers.
    connection.isolation_level = None
    cursor = connection.cursor()
    _switch_to_wal(cursor)
    for pragma in (
        "synchronous=FULL",
        "foreign_keys=ON",
        f"wal_autocheckpoint={SQLITE_LONGEST_WAL_PAGES}",
        f"cache_size=-{SQLITE_CACHE_KIB}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _switch_to_wal(cursor: Any) -> None:
    # Changing the mode of a new file turns a reader into a writer. If another process does so at the same time, SQLite
    # refuses that at once, without the busy timeout.
    deadline = time.monotonic() + SQLITE_BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(SQLITE_RETRY_SECONDS)


def clock_of(connection: sa.Connection) -> sa.ColumnElement[float]:
    """Return SQL for the database's clock, which all controllers share, in seconds since 1970."""
    if connection.dialect.name == "sqlite":
        return sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)", sa.Float)
    return sa.literal_column("CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)", sa.Float)


def _begin_immediately(connection: sa.Connection) -> None:
    read_only = connection.get_execution_options().get("automl_read_only", False)
    if connection.info.get("automl_read_only") != read_only:
        connection.exec_driver_sql(f"PRAGMA query_only={'ON' if read_only else 'OFF'}")
        connection.info["automl_read_only"] = read_only
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def is_current(url_text: str) -> bool:
    """Return whether the `automl_` tables have this program's version; writes nothing."""
    url = parse_url(url_text)
    engine = sa.create_engine(url, connect_args=connect_args(url))
    try:
        with engine.connect() as connection:
            return _version(connection) == _head()
    finally:
        engine.dispose()


def schemas(url_text: str) -> tuple[str | None, str, str]:
    """Return the version of the tables (None without tables), and the oldest and newest readable version.

    Raises `StoreError` if the database cannot be read.
    """
    url = parse_url(url_text)
    engine = make_engine(url_text)
    try:
        with engine.connect().execution_options(automl_read_only=True) as connection:
            return _version(connection), _versions()[0], _head()
    except SQLAlchemyError as error:
        raise StoreError(_cannot_open(url, error)) from None
    finally:
        engine.dispose()


def _migrate(engine: sa.Engine) -> None:
    with engine.connect().execution_options(automl_read_only=True) as connection:
        if _version(connection) == _head():
            return
    _upgrade(engine, _migrations())


def _migrations() -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


@functools.cache
def _versions() -> list[str]:
    # Read from file names, since loading Alembic is slow.
    return sorted(path.name[1:5] for path in (_MIGRATIONS / "versions").glob("v*.py"))


def _head() -> str:
    return _versions()[-1]


def _upgrade(engine: sa.Engine, config: Any) -> None:
    from alembic import command

    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            # If processes find no tables, one creates them and the others wait. SQLite's begin is exclusive anyway.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
        config.attributes["connection"] = connection
        found = _version(connection)
        if found is None:
            metadata.create_all(connection, checkfirst=False)
            command.stamp(config, "head")
        elif found in _versions():
            command.upgrade(config, "head")
        else:
            raise StoreError(f"store: {shown(engine.url)}: {_why_not(found)}")


def _why_not(found: str) -> str:
    if found > _head():
        return f"made by a newer version of automl (schema {found}, this one knows {_head()}). Update automl"
    return f"schema {found} is older than {_versions()[0]}, the oldest that can be upgraded. Name another store"


def _version(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - a constant


def _cannot_open(url: sa.URL, error: BaseException) -> str:
    cause = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
    return f"store: {shown(url)}: cannot be opened ({cause[0]})"
