"""Leases: only the controller that holds a study's lease drives the study; other controllers wait.

A heartbeat in the database renews the lease. The lease expires some seconds after the last heartbeat, or immediately
if the holder's process is known to be dead. Every commit checks the lease, so a suspended controller cannot write.

The database's clock decides whether a lease has expired, since clocks of machines may differ by minutes. All other
times of a lease and its charges come from the holder: its clock at the lease's start, then its monotonic clock.
"""

import logging
import math
import os
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError

from studies import steady_clock
from studies.storage.leases import processes
from studies.storage.schema import tables as t
from studies.storage.schema.engine import clock_of
from studies.storage.study_store import LeaseLostError, Store, StoreError, held_lease, new_id
from studies.storage.writing.retrying import retry_patiently

HEARTBEAT_SECONDS = 2.0
EXPIRY_SECONDS = 10.0
_SECOND_LOOK_SECONDS = 2 * HEARTBEAT_SECONDS
_LONGEST_OUTAGE_SECONDS = 1000.0
"""Seconds after which an expired lease is free; controllers wait ten minutes for their database."""
_WAITS_FOR_ROOM = (t.studies.c.state == "drained", t.studies.c.stop_reason == "storage")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """A controller's right to drive a study. Writes check the token, which is unique in all stores."""

    id: int
    token: str = field(repr=False)
    study_id: int
    acquired_at: float  # seconds since 1970, holder's clock

    @staticmethod
    def now() -> float:
        """Return the current time by the clock of `acquired_at`."""
        return steady_clock.now()


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The process that drives a study."""

    lease_id: int
    host: str
    pid: int
    stop_requested: bool

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def acquire(
    store: Store,
    study_id: int,
    *,
    job_id: int | None = None,
    patiently: Callable[[Callable[[], Any]], Any] = retry_patiently,
    at_once: bool = False,
) -> Lease | Holder:
    """Take the lease, or return its living holder. Raises `StoreError` if the study was deleted.

    A dead holder's lease ends at its last heartbeat. A living holder may be late (the database was away, or the machine
    slept), so an expired lease is taken only after two more missing heartbeats, or with `at_once` immediately.
    `job_id` is the job that pays the lease's charges; None: the study's own job.
    """
    token, ran_out_at = new_id(), math.inf if at_once else None
    while True:
        try:
            taken = patiently(partial(_try_acquire, store, study_id, token, job_id, ran_out_at))
        except IntegrityError:  # another controller was quicker, or the study was deleted
            taken = patiently(lambda: _holder_of_existing(store, study_id))
        if isinstance(taken, Lease | Holder):
            return taken
        if taken is not None:
            time.sleep(_SECOND_LOOK_SECONDS)
            ran_out_at = taken


def _try_acquire(
    store: Store, study_id: int, token: str, job_id: int | None, seen_run_out_at: float | None
) -> Lease | Holder | float:
    """Take the lease, or return its holder, or the time when it expired if it may still be renewed."""
    with store.engine.begin() as connection:
        row = _unreleased(connection, study_id)
        if row is not None and row.holder == token:  # an earlier try took it, but its answer was lost
            return Lease(id=row.id, token=token, study_id=study_id, acquired_at=row.acquired_at)
        if row is not None and _alive(row):
            return _holder(row)
        if row is not None and _may_be_renewed(row) and seen_run_out_at not in {row.expires_at, math.inf}:
            return float(row.expires_at)
        if row is not None:
            release_row(connection, row.id, row.heartbeat_at)
        return _insert(connection, study_id, token, job_id)


def _holder_of_existing(store: Store, study_id: int) -> Holder | None:
    with store.snapshot() as connection:
        if connection.execute(sa.select(t.studies.c.id).where(t.studies.c.id == study_id)).first() is None:
            raise StoreError("study: the study was deleted just now. `automl list` lists the studies of this store")
        return _living(connection, study_id)


def current_holder(store: Store, study_id: int) -> Holder | None:
    """Return the process that drives the study, or None."""
    with store.snapshot() as connection:
        return _living(connection, study_id)


def refuse_driven(connection: sa.Connection, study_id: int, name: str) -> None:
    """Raise `StoreError` if a controller drives the study, which would not notice a change in the store."""
    holder = _living(connection, study_id)
    if holder is not None:
        raise driven_error(name, holder)


def driven_error(name: str, holder: object) -> StoreError:
    """Return the error for a command that needs a study without controller."""
    return StoreError(f"study: {name!r} is driven by {holder}. Stop it first: `automl stop {shlex.quote(name)}`")


def was_stopped(store: Store, study_id: int, since: int, before: int | None = None) -> bool:
    """Return whether a user asked to stop, in leases with ids from `since` to below `before`."""
    mine = [t.leases.c.study_id == study_id, t.leases.c.id >= since, t.leases.c.stop_requested]
    if before is not None:
        mine.append(t.leases.c.id < before)
    with store.snapshot() as connection:
        return connection.execute(sa.select(t.leases.c.id).where(*mine)).first() is not None


def tokens_of(store: Store, study_id: int) -> frozenset[str]:
    """Return the tokens of all leases that the study ever had."""
    query = sa.select(t.leases.c.holder).where(t.leases.c.study_id == study_id)
    with store.snapshot() as connection:
        return frozenset(connection.execute(query).scalars())


def driven_studies(connection: sa.Connection) -> frozenset[int]:
    """Return the ids of studies with a living controller; the state of other studies may also be "running"."""
    rows = connection.execute(_with_expiry(connection).where(t.leases.c.released_at.is_(None)))
    return frozenset(row.study_id for row in rows if _alive(row))


def alive_seconds(connection: sa.Connection, study_id: int, *, without: int = -1) -> float:
    """Return the total seconds of all leases, each until its pool closed or until its last heartbeat.

    The last heartbeat also counts for a living holder, so that the sum never decreases.
    """
    query = sa.select(t.leases).where(t.leases.c.study_id == study_id, t.leases.c.id != without)
    ends = ((one, one.pool_closed_at or one.released_at or one.heartbeat_at) for one in connection.execute(query))
    return sum((max(end - lease.acquired_at, 0.0) for lease, end in ends), 0.0)


def release(store: Store, lease: Lease, at: float | None = None) -> None:
    """Release the lease if this process still holds it, at time `at` (None: now)."""
    with suppress(LeaseLostError), store.engine.begin() as connection:
        lease_id = held_lease(connection, lease.study_id, lease.token)
        release_row(connection, lease_id, lease.now() if at is None else at)


def release_row(connection: sa.Connection, lease_id: int, at: float) -> None:
    """Mark a lease as released; its request to stop also stops a study that waits for disk space."""
    where = (t.leases.c.id == lease_id, t.leases.c.released_at.is_(None))
    connection.execute(sa.update(t.leases).where(*where).values(released_at=at, heartbeat_at=at))
    stopped = sa.select(t.leases.c.study_id).where(t.leases.c.id == lease_id, t.leases.c.stop_requested)
    waits = (t.studies.c.id.in_(stopped), *_WAITS_FOR_ROOM)
    connection.execute(sa.update(t.studies).where(*waits).values(stop_reason="stopped"))


def request_stop(store: Store, study_id: int) -> bool:
    """Ask the study's controller to stop with checkpoints. Returns False without a living controller."""
    with store.engine.begin() as connection:
        row = _unreleased(connection, study_id)
        if row is None or not _alive(row):
            return False
        still_held = (t.leases.c.id == row.id, t.leases.c.released_at.is_(None))
        asked = connection.execute(sa.update(t.leases).where(*still_held).values(stop_requested=True))
        return asked.rowcount == 1


def stop_waiting(store: Store, study_id: int) -> bool:
    """Stop a study that waits for disk space, and processes that wait for its lease. Returns whether it waited."""
    latest = sa.select(sa.func.max(t.leases.c.id)).where(t.leases.c.study_id == study_id).scalar_subquery()
    waits = (t.studies.c.id == study_id, *_WAITS_FOR_ROOM)
    with store.engine.begin() as connection:
        if connection.execute(sa.update(t.studies).where(*waits).values(stop_reason="stopped")).rowcount == 0:
            return False
        connection.execute(sa.update(t.leases).where(t.leases.c.id == latest).values(stop_requested=True))
        return True


def _with_expiry(connection: sa.Connection) -> sa.Select[Any]:
    now = clock_of(connection)
    has_run_out, since = now >= t.leases.c.expires_at, now - t.leases.c.expires_at
    return sa.select(t.leases, has_run_out.label("has_run_out"), since.label("run_out_seconds"))


def _unreleased(connection: sa.Connection, study_id: int) -> sa.Row[Any] | None:
    mine = (t.leases.c.study_id == study_id, t.leases.c.released_at.is_(None))
    return connection.execute(_with_expiry(connection).where(*mine)).first()


def _living(connection: sa.Connection, study_id: int) -> Holder | None:
    row = _unreleased(connection, study_id)
    return None if row is None or not _alive(row) else _holder(row)


def _holder(row: sa.Row[Any]) -> Holder:
    return Holder(lease_id=row.id, host=row.host, pid=row.pid, stop_requested=row.stop_requested)


def _alive(row: sa.Row[Any]) -> bool:
    return not row.has_run_out and not processes.is_known_gone(row.process_space, row.pid, row.process_started_at)


def _may_be_renewed(row: sa.Row[Any]) -> bool:
    is_gone = processes.is_known_gone(row.process_space, row.pid, row.process_started_at)
    return not is_gone and row.run_out_seconds < _LONGEST_OUTAGE_SECONDS


def _insert(connection: sa.Connection, study_id: int, token: str, job_id: int | None) -> Lease:
    pid, now = os.getpid(), steady_clock.now()
    row = {
        "study_id": study_id, "holder": token, "host": socket.gethostname(), "pid": pid,
        "process_started_at": processes.started_at(pid) or 0.0, "process_space": processes.space(),
        "acquired_at": now, "heartbeat_at": now, "expires_at": clock_of(connection) + EXPIRY_SECONDS,
        "stop_requested": False, "pool_slots": 0, "usd_per_slot_hour": 0.0, "job_id": job_id,
    }  # fmt: skip
    lease_id = connection.execute(sa.insert(t.leases).values(row).returning(t.leases.c.id)).scalar_one()
    return Lease(id=int(lease_id), token=token, study_id=study_id, acquired_at=now)


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
    """Renew a lease every few seconds during a block, calling `on_requests` each time, and release it at the end.

    `on_lost` is called once if another controller took the lease. With `counts` False, for commands other than the
    search, the time does not count for `budget.hours`.
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
            log.warning("the right to run the study (its lease) cannot be returned (%s); it expires soon", error.orig)


class Heartbeat:
    """A thread that renews a lease; see `kept`."""

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
        """End the thread after its current renewal."""
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
    """Return by how many seconds this machine's clock is ahead of the database's, and the error of this number."""
    with store.snapshot() as connection:
        asked = sa.select(clock_of(connection))
        connection.execute(asked)  # opens the connection, which must not count for the round trip
        before, begun = time.time(), time.monotonic()
        there = float(connection.execute(asked).scalar_one())
        half = (time.monotonic() - begun) / 2.0
    return before + half - there, half


def differences_of_controllers(store: Store) -> dict[str, float]:
    """Return by how many seconds each controller's clock was ahead of the database's, by host."""
    c = t.leases.c
    with store.snapshot() as connection:
        ahead = (c.heartbeat_at - (c.expires_at - EXPIRY_SECONDS)).label("ahead")
        living = (c.released_at.is_(None), c.expires_at > clock_of(connection))
        rows = connection.execute(sa.select(c.host, ahead).where(*living).order_by(c.id)).all()
    return {row.host: float(row.ahead) for row in rows}
