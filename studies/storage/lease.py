"""The lease: of several controllers of a study, one drives it and the others wait.

It lives in the database, is renewed by a heartbeat, and runs out when that stops; at once when the holder ran on this
host and its process is gone. Every commit checks that the lease is still held, so a controller that was suspended and
comes back late cannot write any more.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError

from studies.storage import tables as t
from studies.storage.store import Store, retry_patiently

HEARTBEAT_SECONDS = 2.0
EXPIRY_SECONDS = 10.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """A controller's right to drive a study."""

    id: int
    study_id: int
    acquired_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who drives a study now."""

    host: str
    pid: int
    stop_requested: bool

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def acquire(store: Store, study_id: int) -> Lease | Holder:
    """Take the lease, or return its holder. The lease of a dead holder is released as of its last heartbeat."""
    now = time.time()
    try:
        with store.engine.begin() as connection:
            row = _unreleased(connection, study_id)
            if row is not None and _alive(row, now):
                return Holder(host=row.host, pid=row.pid, stop_requested=row.stop_requested)
            if row is not None:
                release_row(connection, row.id, row.heartbeat_at)
            return _insert(connection, study_id, now)
    except IntegrityError:  # another controller was quicker
        holder = current_holder(store, study_id)
        return holder or acquire(store, study_id)


def current_holder(store: Store, study_id: int) -> Holder | None:
    """The controller that drives the study, or None."""
    with store.snapshot() as connection:
        row = _unreleased(connection, study_id)
    if row is None or not _alive(row, time.time()):
        return None
    return Holder(host=row.host, pid=row.pid, stop_requested=row.stop_requested)


def driven_studies(connection: sa.Connection) -> frozenset[int]:
    """Ids of the studies that a living controller drives: the state of one whose controller died stays `running`."""
    now = time.time()
    rows = connection.execute(sa.select(t.leases).where(t.leases.c.released_at.is_(None)))
    return frozenset(row.study_id for row in rows if _alive(row, now))


def alive_seconds(connection: sa.Connection, study_id: int, *, without: int = -1) -> float:
    """Time in which controllers held the lease, each up to its release or its last heartbeat.

    The time of a living holder counts up to its last heartbeat too, as that of a dead one does once its lease is
    released: so the sum never decreases.
    """
    query = sa.select(t.leases).where(t.leases.c.study_id == study_id, t.leases.c.id != without)
    ends = ((lease, lease.released_at or lease.heartbeat_at) for lease in connection.execute(query))
    return sum((max(end - lease.acquired_at, 0.0) for lease, end in ends), 0.0)


def release(store: Store, lease: Lease) -> None:
    """Give the lease back."""
    with store.engine.begin() as connection:
        release_row(connection, lease.id, time.time())


def release_row(connection: sa.Connection, lease_id: int, at: float) -> None:
    """Mark a lease as released at a moment."""
    where = (t.leases.c.id == lease_id, t.leases.c.released_at.is_(None))
    connection.execute(sa.update(t.leases).where(*where).values(released_at=at, heartbeat_at=at))


def request_stop(store: Store, study_id: int) -> bool:
    """Ask the controller to drain; False if none holds the lease."""
    with store.engine.begin() as connection:
        row = _unreleased(connection, study_id)
        if row is None or not _alive(row, time.time()):
            return False
        connection.execute(sa.update(t.leases).where(t.leases.c.id == row.id).values(stop_requested=True))
        return True


@contextmanager
def kept(
    store: Store, lease: Lease, *, on_stop: Callable[[], None], on_queue: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Renew a lease by a heartbeat as long as the block runs, then release it.

    Args:
        store: Store that holds the lease.
        lease: Lease to renew.
        on_stop: Function that is called when somebody asked for a drain.
        on_queue: Function that is called at each beat, to look for enqueued trials.
    """
    heart = Heartbeat(store, lease, on_stop=on_stop, on_queue=on_queue)
    heart.start()
    try:
        yield
    finally:
        heart.stop()
        try:
            retry_patiently(lambda: release(store, lease))
        except DBAPIError as error:
            log.warning("the lease could not be given back (%s); it runs out by itself", error.orig)


class Heartbeat:
    """A thread that renews the lease, and calls the controller when it has found something in the store.

    Args:
        store: Store that holds the lease.
        lease: Lease to renew.
        on_stop: Function that is called when somebody asked for a drain.
        on_queue: Function that is called at each beat, to look for enqueued trials.
    """

    def __init__(
        self, store: Store, lease: Lease, *, on_stop: Callable[[], None], on_queue: Callable[[], None]
    ) -> None:
        self._store, self._lease = store, lease
        self._on_stop, self._on_queue = on_stop, on_queue
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="lease-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the heartbeat thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after a beat that is under way."""
        self._over.set()
        self._thread.join(timeout=HEARTBEAT_SECONDS)

    def _beat_on(self) -> None:
        while not self._over.wait(HEARTBEAT_SECONDS):
            try:
                if self._beat():
                    self._on_stop()
                self._on_queue()
            except DBAPIError:
                continue  # the database is away: the controller's commits wait as well, and no rival can take the lease

    def _beat(self) -> bool:
        now = time.time()
        update = (
            sa.update(t.leases)
            .where(t.leases.c.id == self._lease.id, t.leases.c.released_at.is_(None))
            .values(heartbeat_at=now, expires_at=now + EXPIRY_SECONDS)
            .returning(t.leases.c.stop_requested)
        )
        with self._store.engine.begin() as connection:
            return bool(connection.execute(update).scalar())


def _unreleased(connection: sa.Connection, study_id: int) -> sa.Row[Any] | None:
    query = sa.select(t.leases).where(t.leases.c.study_id == study_id, t.leases.c.released_at.is_(None))
    return connection.execute(query).first()


def _alive(row: sa.Row[Any], now: float) -> bool:
    if row.host == socket.gethostname():
        started_at = _process_started_at(row.pid)
        # Start times are counted from a boot time that moves when the clock is set.
        gone = started_at is None or abs(started_at - row.process_started_at) > 2.0
        return not gone and bool(now < row.expires_at)
    return bool(now < row.expires_at)


def _process_started_at(pid: int) -> float | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def _insert(connection: sa.Connection, study_id: int, now: float) -> Lease:
    pid = os.getpid()
    row = {
        "study_id": study_id, "holder": uuid.uuid4().hex, "host": socket.gethostname(), "pid": pid,
        "process_started_at": _process_started_at(pid) or 0.0, "acquired_at": now, "heartbeat_at": now,
        "expires_at": now + EXPIRY_SECONDS, "stop_requested": False, "pool_slots": 0, "usd_per_slot_hour": 0.0,
    }  # fmt: skip
    lease_id = connection.execute(sa.insert(t.leases).returning(t.leases.c.id), row).scalar_one()
    return Lease(id=int(lease_id), study_id=study_id, acquired_at=now)
