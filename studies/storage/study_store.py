"""The store: the controller that holds a study's lease writes the study; all commands read it."""

import functools
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.dml import ReturningUpdate

from search_spaces.messages import RunError
from studies.records.records import CANCELLABLE_STATES, TrialState
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError, clock_of, open_engine
from studies.storage.writing import changes as ch
from studies.storage.writing.commit_writer import CommitWriter
from studies.storage.writing.retrying import retry_patiently

StudyRow = sa.Row[Any]  # row of the table of studies


class LeaseLostError(RunError):
    """Another controller has taken over the study. Stop immediately, and write nothing."""


class StudyExistsError(StoreError):
    """The store already has a study with this name."""


def new_id() -> str:
    """Return a random id that identifies repetitions of a commit or an insertion."""
    return uuid.uuid4().hex


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedTrial:
    """A configuration that waits to start."""

    id: int
    params: Mapping[str, Any]
    world_size: int
    origin: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialLine:
    """A trial without its measurements."""

    id: int
    number: int | None
    state: TrialState
    origin: str
    reason: str


class Store:
    """A database (sqlite:///FILE or postgresql://...). Raises `StoreError` if it cannot be opened."""

    def __init__(self, url: str, *, engine: sa.Engine | None = None) -> None:
        self.url = url
        self.engine = engine or open_engine(url)

    def close(self) -> None:
        """Close all connections to the database."""
        self.engine.dispose()

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """Open a read transaction, which does not see later commits."""
        options: dict[str, Any] = {"automl_read_only": True}
        if self.engine.dialect.name == "postgresql":
            options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    def study_names(self) -> list[str]:
        """Return the names of all studies, oldest first."""
        with self.snapshot() as connection:
            return list(connection.execute(sa.select(t.studies.c.name).order_by(t.studies.c.id)).scalars())

    def study_row(self, name: str) -> sa.Row[Any] | None:
        """Return the row of the study with this name, or None."""
        with self.snapshot() as connection:
            return connection.execute(sa.select(t.studies).where(t.studies.c.name == name)).first()

    def require(self, name: str) -> sa.Row[Any]:
        """Return the study's row. Raises `StoreError` if it does not exist."""
        row = self.study_row(name)
        if row is None:
            names = self.study_names()
            known = f"Its studies are {', '.join(names[-10:])}" if names else "It has no study yet"
            raise StoreError(f"study: this store has no study {name!r}. {known}")
        return row

    def create_study(
        self,
        name: str,
        spec: Mapping[str, Any],
        base_folder: str,
        at: float,
        earlier_studies: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Insert a running, empty study, and return its id. Raises `StudyExistsError` if the name is taken."""
        row = {
            "uid": new_id(), "name": name, "state": "running", "spec": dict(spec), "launched_spec": dict(spec),
            "base_folder": base_folder, "sampler_attributes": {}, "reserved_nano_usd": 0, "reserved_seconds": 0.0,
            "overshoot_nano_usd": 0, "revision": 0, "created_at": at, "earlier_studies": list(earlier_studies) or None,
        }  # fmt: skip
        return retry_patiently(lambda: self._insert_or_find_study(row))

    def _insert_or_find_study(self, row: Mapping[str, Any]) -> int:
        try:
            return self._insert_study(row)
        except IntegrityError:
            found = self.study_row(row["name"])
            if found is None:
                raise
            if found.uid == row["uid"]:  # the first attempt made it, but its answer was lost
                return int(found.id)
        raise StudyExistsError(f"study: {row['name']!r} exists already in the store. Take another name")

    def _insert_study(self, row: Mapping[str, Any]) -> int:
        with self.engine.begin() as connection:
            study_id = int(connection.execute(sa.insert(t.studies).returning(t.studies.c.id), row).scalar_one())
            views: list[dict[str, Any]] = [
                {"study_id": study_id, "view": view, "revision": 0, "rebuild": False, "details": {}}
                for view in ("optuna", "mlflow")
            ]
            connection.execute(sa.insert(t.view_cursors), views)
        return study_id

    def change_spec(
        self,
        study_id: int,
        spec: Mapping[str, Any],
        *,
        resets_price: bool = False,
        check: Callable[[sa.Connection], None] = lambda _: None,
    ) -> None:
        """Replace the spec. `resets_price` deletes the price from `set_price`.

        `check` runs in the transaction, and raises if the spec must not change now.
        """
        with self.engine.begin() as connection:
            check(connection)
            row = sa.update(t.studies).where(t.studies.c.id == study_id).values(spec=dict(spec))
            connection.execute(row.values(usd_per_slot_hour=None) if resets_price else row)

    def keep_counted(self, study_id: int, examples: Sequence[Mapping[str, Any]]) -> None:
        """Store the sizes counted for example configurations, so that every process uses the same."""
        with self.engine.begin() as connection:
            counted = [dict(one) for one in examples]
            connection.execute(sa.update(t.studies).where(t.studies.c.id == study_id).values(counted_examples=counted))

    def enqueue(
        self,
        study_id: int,
        params: Mapping[str, Any],
        *,
        world_size: int,
        origin: str,
        attributes: Mapping[str, Any] | None = None,
        study_attributes: Mapping[str, Any] | None = None,
        lease_token: str | None = None,
        enqueue_id: str | None = None,
    ) -> int:
        """Insert a configuration that waits to start, and return its id. Raises LeaseLostError if the lease is lost.

        `origin` is "sampler", "enqueue" or "baseline". Only controllers pass a `lease_token`. Repeated calls with
        the same `enqueue_id` (from `new_id`) insert once.
        """
        enqueue_id = enqueue_id or new_id()
        row = {
            "study_id": study_id, "state": "queued", "params": dict(params), "world_size": world_size, "origin": origin,
            "sampler_attributes": dict(attributes or {}), "reason": "", "resume_epoch": 0, "revision": 0,
            "enqueue_id": enqueue_id, "created_at": time.time(),
        }  # fmt: skip
        try:
            return self._insert_trial(row, study_attributes, lease_token)
        except IntegrityError:
            with self.snapshot() as connection:
                found = connection.execute(sa.select(t.trials.c.id).where(t.trials.c.enqueue_id == enqueue_id)).scalar()
            if found is None:
                raise
            return int(found)  # an earlier attempt inserted it, but its answer was lost

    def _insert_trial(
        self, row: Mapping[str, Any], study_attributes: Mapping[str, Any] | None, lease_token: str | None
    ) -> int:
        with self.engine.begin() as connection:
            if lease_token is not None:
                held_lease(connection, row["study_id"], lease_token)
            if study_attributes:
                update = sa.update(t.studies).where(t.studies.c.id == row["study_id"])
                connection.execute(update.values(sampler_attributes=dict(study_attributes)))
            return int(connection.execute(sa.insert(t.trials).returning(t.trials.c.id), row).scalar_one())

    def queued(self, study_id: int) -> list[QueuedTrial]:
        """Return waiting configurations, oldest first."""
        c = t.trials.c
        query = sa.select(c.id, c.params, c.world_size, c.origin, c.sampler_attributes.label("attributes"))
        query = query.where(c.study_id == study_id, c.state == "queued").order_by(c.id)
        with self.snapshot() as connection:
            return [QueuedTrial(**row) for row in connection.execute(query).mappings()]

    def find_trial(self, study_id: int, *, number: int | None = None, trial_id: int | None = None) -> TrialLine | None:
        """Return the trial with this number or row id, without epochs, or None."""
        c = t.trials.c
        which = c.id == trial_id if number is None else c.number == number
        query = sa.select(c.id, c.number, c.state, c.origin, c.reason).where(c.study_id == study_id, which)
        with self.snapshot() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else TrialLine(**row)

    def request_cancel(self, trial_id: int) -> bool:
        """Ask the study's current or next controller to end a trial. Returns False if it has ended."""
        which = (t.trials.c.id == trial_id, t.trials.c.state.in_(CANCELLABLE_STATES))
        with self.engine.begin() as connection:
            update = sa.update(t.trials).where(*which).values(cancel_requested_at=clock_of(connection))
            return connection.execute(update).rowcount == 1

    def cancel_requests(self, study_id: int) -> list[int]:
        """Return the ids of unfinished trials that a user asked to cancel."""
        query = sa.select(t.trials.c.id).where(
            t.trials.c.study_id == study_id,
            t.trials.c.state.in_(CANCELLABLE_STATES),
            t.trials.c.cancel_requested_at.is_not(None),
        )
        with self.snapshot() as connection:
            return list(connection.execute(query.order_by(t.trials.c.id)).scalars())

    def set_price(self, study_id: int, usd_per_slot_hour: float) -> None:
        """Set the price of a slot, which replaces the spec's price."""
        with self.engine.begin() as connection:
            row = sa.update(t.studies).where(t.studies.c.id == study_id)
            connection.execute(row.values(usd_per_slot_hour=usd_per_slot_hour))

    def price_that_was_set(self, study_id: int) -> float | None:
        """Return the price from `set_price`; None if never set."""
        query = sa.select(t.studies.c.usd_per_slot_hour).where(t.studies.c.id == study_id)
        with self.snapshot() as connection:
            price: float | None = connection.execute(query).scalar_one()
        return price

    def commit(
        self, study_id: int, lease_token: str | None, changes: Iterable[ch.Change], *, commit_id: str | None = None
    ) -> None:
        """Write all changes in one transaction, in order. Raises `LeaseLostError` if the lease is lost.

        If a connection broke during a commit, repeat the call with the same `commit_id` (from `new_id`): it is written
        once. `lease_token` is None only in tests.
        """
        rows = list(changes)
        with self.engine.begin() as connection:
            lease_id = None if lease_token is None else held_lease(connection, study_id, lease_token)
            of_study = [row.columns for row in rows if isinstance(row, ch.StudyChanged)]
            columns = {name: value for one in of_study for name, value in one.items()}
            commit_id = commit_id or new_id()
            revision = connection.execute(
                _new_revision(tuple(sorted(columns))), {**columns, "of_study": study_id, "commit_id": commit_id}
            ).scalar()
            if revision is not None:
                CommitWriter(connection, study_id, lease_id, int(revision)).write(rows)
            elif connection.execute(sa.select(t.studies.c.id).where(t.studies.c.id == study_id)).first() is None:
                raise StoreError(f"study: this store has no study with the id {study_id}")


@functools.cache  # SQLAlchemy takes longer to make a statement than SQLite to execute it
def _new_revision(names: tuple[str, ...]) -> ReturningUpdate[int]:
    """Return a statement that sets columns and the next revision, unless `commit_id` was applied."""
    commit_id: sa.BindParameter[str] = sa.bindparam("commit_id")
    columns: dict[str, Any] = {name: sa.bindparam(name) for name in names}
    return (
        sa.update(t.studies)
        .where(t.studies.c.id == sa.bindparam("of_study"), t.studies.c.last_commit.is_distinct_from(commit_id))
        .values(**columns, revision=t.studies.c.revision + 1, last_commit=commit_id)
        .returning(t.studies.c.revision)
    )


_HELD_LEASE = (
    sa.select(t.leases.c.id)
    .where(
        t.leases.c.study_id == sa.bindparam("of_study"),
        t.leases.c.holder == sa.bindparam("token"),  # unique, whereas SQLite reuses the ids of deleted rows
        t.leases.c.released_at.is_(None),
    )
    .with_for_update()
)


def held_lease(connection: sa.Connection, study_id: int, token: str) -> int:
    """Return the id of the lease with this token, and lock its row. Raises `LeaseLostError` if it was released."""
    lease_id: int | None = connection.execute(_HELD_LEASE, {"of_study": study_id, "token": token}).scalar()
    if lease_id is None:
        raise LeaseLostError("another process has taken over this study")
    return lease_id


def as_time(seconds: float | None) -> datetime | None:
    """Return a UTC time from seconds since 1970."""
    return None if seconds is None else datetime.fromtimestamp(seconds, tz=UTC)


__all__ = [
    "LeaseLostError", "QueuedTrial", "Store", "StoreError", "StudyExistsError", "StudyRow", "as_time", "held_lease",
    "new_id",
]  # fmt: skip
