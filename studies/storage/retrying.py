"""Repeating what a database did not answer: with growing pauses, for a while, or as long as its disk is full."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError

T = TypeVar("T")
log = logging.getLogger(__name__)
PATIENCE_SECONDS = 5.0
"""Sum of the pauses of `retry_patiently`; each attempt waits for a locked database by itself."""
RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS = 0.1, 5.0


def retry(
    action: Callable[[], T],
    meanwhile: str = "waiting for it",
    *,
    warn: Callable[[str], None] = log.warning,
    give_up_after_seconds: float = 600.0,
) -> T:
    """Repeat an action, with growing pauses, as long as the database does not answer.

    Args:
        action: Action that is safe to repeat, such as a transaction.
        meanwhile: What happens meanwhile, for people.
        warn: Function that is called before each pause, with a line that names the cause.
        give_up_after_seconds: Sum of the pauses after which the error is raised.

    Raises:
        OperationalError: The database stayed away for longer than that. A full or read-only disk is waited for without
            end: somebody has to make room, and what is measured would be lost.
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
    """Return whether the database did not answer, so that the same may succeed later.

    A PostgreSQL that takes no writing transaction is about to be, or no more, the one that does.
    """
    is_read_only = getattr(error.orig, "sqlstate", None) == "25006"
    return isinstance(error, OperationalError) or error.connection_invalidated or is_read_only


def is_full(error: DBAPIError) -> bool:
    """Return whether the database answers, and its disk is full, damaged or read-only."""
    cause: Any = error.orig
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return (code & 0xFF) in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}
    return getattr(cause, "sqlstate", None) in {"53100", "58030"}


def retry_patiently(action: Callable[[], T]) -> T:
    """Repeat an action for some seconds if the database is locked or away; a warning says so.

    Raises:
        OperationalError: The database stayed away for longer than that.
    """
    return retry(action, give_up_after_seconds=PATIENCE_SECONDS)
