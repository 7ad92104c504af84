"""Heartbeat of a lease: a thread that renews the lease while its holder lives."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from studies.storage.leases.lease import EXPIRY_SECONDS, HEARTBEAT_SECONDS, Lease, release
from studies.storage.schema import tables as t
from studies.storage.schema.engine import clock_of
from studies.storage.study_store import LeaseLostError, Store, held_lease
from studies.storage.writing.retrying import retry_patiently

log = logging.getLogger(__name__)


@contextmanager
def kept(
    store: Store,
    lease: Lease,
    *,
    on_stop: Callable[[], None],
    on_requests: Callable[[], None] = lambda: None,
    on_lost: Callable[[], None] = lambda: None,
    counts: bool = True,
) -> Iterator[None]:
    """Renew a lease by a heartbeat, which also calls `on_requests`, while the block runs, then release it.

    `on_lost` is called once if another controller has taken the lease; frequent commits detect that themselves. If
    `counts` is false, as for a command beside the study, the time does not count for `budget.hours`.
    """
    heart = Heartbeat(store, lease, on_stop=on_stop, on_requests=on_requests, on_lost=on_lost)
    heart.start()
    try:
        yield
    finally:
        heart.stop()
        try:
            retry_patiently(lambda: release(store, lease, at=None if counts else lease.acquired_at))
        except DBAPIError as error:
            log.warning("cannot release the lease (%s); it expires by itself", error.orig)


class Heartbeat:
    """A thread that renews the lease, and calls `on_requests` at each beat."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        *,
        on_stop: Callable[[], None],
        on_requests: Callable[[], None],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._lease = store, lease
        self._on_stop, self._on_requests, self._on_lost = on_stop, on_requests, on_lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="lease-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the heartbeat thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the current beat."""
        self._over.set()
        self._thread.join(timeout=HEARTBEAT_SECONDS)

    def _beat_on(self) -> None:
        while not self._over.wait(HEARTBEAT_SECONDS):
            try:
                if self._beat():
                    self._on_stop()
                self._on_requests()
            except LeaseLostError:
                if not self._over.is_set():  # otherwise the holder released the lease itself
                    self._on_lost()
                return
            except DBAPIError:
                continue  # the database is away: commits wait too, and no other controller can take the lease

    def _beat(self) -> bool:
        with self._store.engine.begin() as connection:
            update = (
                sa.update(t.leases)
                .where(t.leases.c.id == held_lease(connection, self._lease.study_id, self._lease.token))
                .values(heartbeat_at=self._lease.now(), expires_at=clock_of(connection) + EXPIRY_SECONDS)
                .returning(t.leases.c.stop_requested)
            )
            return bool(connection.execute(update).scalar_one())


def difference_here(store: Store) -> tuple[float, float]:
    """Return how many seconds this machine's clock is ahead of the database's, and the uncertainty."""
    with store.snapshot() as connection:
        asked = sa.select(clock_of(connection))
        connection.execute(asked)  # opens the connection, whose time must not count for the round trip
        before, begun = time.time(), time.monotonic()
        there = float(connection.execute(asked).scalar_one())
        half = (time.monotonic() - begun) / 2.0
    return before + half - there, half


def differences_of_controllers(store: Store) -> dict[str, float]:
    """Return by host how many seconds a controller's clock was ahead of the database's at its last heartbeat."""
    c = t.leases.c
    with store.snapshot() as connection:
        ahead = (c.heartbeat_at - (c.expires_at - EXPIRY_SECONDS)).label("ahead")
        living = (c.released_at.is_(None), c.expires_at > clock_of(connection))
        rows = connection.execute(sa.select(c.host, ahead).where(*living).order_by(c.id)).all()
    return {row.host: float(row.ahead) for row in rows}
