"""Copying SQLite's write-ahead log into its database beside those who write, not within one of their commits.

By default the connection whose commit makes the log pass 1,000 pages copies it, and that commit waits for it and for
two more syncs of the disk: one commit in fifty of a controller. Here a thread of the controller copies, which locks
nobody out. But a log is begun anew only when all of it was copied, and beside a controller that never rests there is
always a page more. So commits still copy a log that is much longer, which is short work, since most of it was copied
before.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import sqlalchemy as sa

COPY_SECONDS = 1.0
"""Time between two looks at whether there is something to copy."""
COPY_COMMITS = 50
"""Number of commits that are copied together: about as many as make 1,000 pages."""
log = logging.getLogger(__name__)


@contextmanager
def copied_beside(engine: sa.Engine) -> Iterator[None]:
    """Copy the log in a thread for as long as the block runs; other databases do so by themselves."""
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
    """Copies the log whenever there were enough commits.

    Args:
        engine: Engine whose commits are counted.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._over = threading.Event()
        self._commits = 0

    def note_commit(self, connection: sa.Connection) -> None:  # noqa: ARG002 - the interface of an event
        """Count a commit; one that two threads count at the same time may be lost."""
        self._commits += 1

    def copy_on(self) -> None:
        """Copy until `stop` is called."""
        while not self._over.wait(COPY_SECONDS):
            if self._commits >= COPY_COMMITS:
                self._commits = 0
                self._try_to_copy()

    def stop(self) -> None:
        """Let `copy_on` return."""
        self._over.set()

    def _try_to_copy(self) -> None:
        try:
            copy(self._engine)
        except sqlite3.Error as error:  # a full disk, say: commits meet it as well, and know what to do
            log.debug("the write-ahead log could not be copied (%s)", error)


def copy(engine: sa.Engine) -> None:
    """Copy as much of the log as is possible without waiting for anybody.

    Raises:
        sqlite3.Error: It cannot be copied.
    """
    # Not by `engine.connect()`, which begins a transaction: within one nothing can be copied.
    with closing(engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
        cursor.fetchall()
