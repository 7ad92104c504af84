"""Repeats database actions for some time while the database is away, and forever while its disk is full."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

T = TypeVar("T")
log = logging.getLogger(__name__)
PATIENCE_SECONDS = 5.0
"""Sum of the pauses of `retry_patiently`; each attempt also waits for a locked database."""
RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS = 0.1, 5.0


def retry(
    action: Callable[[], T],
    meanwhile: str = "waiting for it",
    *,
    warn: Callable[[str], None] = log.warning,
    give_up_after_seconds: float = 600.0,
) -> T:
    """Repeat an action with growing pauses while the database does not answer, then raise `OperationalError`.

    Retries never end while the disk is full or read-only, since measurements would be lost.
    """
    pause, waited = RETRY_FIRST_SECONDS, 0.0
    while True:
        try:
            return action()
        except DBAPIError as error:
            if not is_away(error):
                raise
            if waited >= give_up_after_seconds and not is_full(error):
                raise
            warn(f"the store does not answer ({str(error.orig).splitlines()[0]}); {meanwhile}")
            time.sleep(pause)
            waited += pause
            pause = min(2 * pause, RETRY_MOST_SECONDS)


def is_away(error: DBAPIError) -> bool:
    """Return whether the database does not answer or is a PostgreSQL standby: a retry may succeed."""
    is_read_only = getattr(error.orig, "sqlstate", None) == "25006"
    return isinstance(error, OperationalError) or error.connection_invalidated or is_read_only


def is_full(error: DBAPIError) -> bool:
    """Return whether the database answers but its disk is full, damaged or read-only."""
    cause: Any = error.orig
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return (code & 0xFF) in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}
    return getattr(cause, "sqlstate", None) in {"53100", "58030"}


def retry_patiently(action: Callable[[], T]) -> T:
    """Repeat an action for some seconds while the database is locked or away, then raise `OperationalError`."""
    return retry(action, give_up_after_seconds=PATIENCE_SECONDS)


COPY_SECONDS = 1.0  # seconds between two checks whether there is a log to copy
COPY_COMMITS = 50  # number of commits that are copied together, about 1,000 pages


@contextmanager
def copied_beside(engine: sa.Engine) -> Iterator[None]:
    """Copy SQLite's write-ahead log in a thread during the block."""
    if engine.dialect.name != "sqlite":
        yield
        return
    copier = WalCopier(engine)
    sa.event.listen(engine, "commit", copier.note_commit)
    thread = threading.Thread(target=copier.copy_on, name="wal-copier", daemon=True)
    thread.start()
    try:
        yield
    finally:
        copier.stop()
        thread.join()
        sa.event.remove(engine, "commit", copier.note_commit)


class WalCopier:
    """Copies SQLite's write-ahead log into the database file after each `COPY_COMMITS` commits."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._over = threading.Event()
        self._commits = 0

    def note_commit(self, connection: sa.Connection) -> None:  # noqa: ARG002 - the interface of an event
        """Count a commit; may miss simultaneous commits."""
        self._commits += 1

    def copy_on(self) -> None:
        """Copy the log until `stop` is called."""
        while not self._over.wait(COPY_SECONDS):
            if self._commits >= COPY_COMMITS:
                self._commits = 0
                try:
                    copy(self._engine)
                except sqlite3.Error as error:  # for example a full disk: commits fail as well, and handle it
                    log.debug("the write-ahead log could not be copied (%s)", error)

    def stop(self) -> None:
        """Make `copy_on` return."""
        self._over.set()


def copy(engine: sa.Engine) -> None:
    """Copy the log as far as possible without waiting for readers. Raises `sqlite3.Error`."""
    # Not with `engine.connect()`, which begins a transaction, in which SQLite cannot copy.
    with closing(engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
        cursor.fetchall()
