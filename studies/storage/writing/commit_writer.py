"""Writes the changes of a commit with few SQL statements."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from search_spaces.messages import RunError
from studies.records.records import as_plain
from studies.storage.schema import tables as t
from studies.storage.writing import changes as ch
from studies.storage.writing.changes import Charged

_MOVE = (
    sa.update(t.slot_marks)
    .where(
        t.slot_marks.c.lease_id == sa.bindparam("of_lease"),
        t.slot_marks.c.slot == sa.bindparam("of_slot"),
        t.slot_marks.c.charged_until <= sa.bindparam("since"),
    )
    .values(charged_until=sa.bindparam("until"))
)


class ChargedTwiceError(RunError):
    """A charge begins before the slot's previous charge ends. The commit is not written."""


def open_slots(connection: sa.Connection, lease_id: int, slots: Iterable[int], at: float) -> None:
    """Add new slots to a pool, as charged up to `at`; ignores existing slots."""
    there = marks(connection, lease_id)
    rows = [{"lease_id": lease_id, "slot": slot, "charged_until": at} for slot in slots if slot not in there]
    if rows:
        connection.execute(sa.insert(t.slot_marks), rows)


def marks(connection: sa.Connection, lease_id: int) -> dict[int, float]:
    """Return until when each slot of a pool is charged, in seconds since 1970."""
    query = sa.select(t.slot_marks.c.slot, t.slot_marks.c.charged_until).where(t.slot_marks.c.lease_id == lease_id)
    return {row.slot: row.charged_until for row in connection.execute(query)}


def move(connection: sa.Connection, lease_id: int, charges: Iterable[Charged]) -> None:
    """Store until when slots are charged. Raises `ChargedTwiceError` for charged time or an unknown slot."""
    spans: dict[int, tuple[float, float]] = {}
    for charge in charges:
        for slot in charge.slot_numbers:
            first, last = spans.get(slot, (charge.since, charge.since))
            if not last <= charge.since <= charge.at:
                raise _refusal(slot, charge.since, last)
            spans[slot] = (first, charge.at)
    if not spans:
        return
    rows = [
        {"of_lease": lease_id, "of_slot": slot, "since": since, "until": until}
        for slot, (since, until) in sorted(spans.items())
    ]
    if connection.execute(_MOVE, rows).rowcount != len(rows):
        raise _explained(connection, lease_id, rows)


def _explained(connection: sa.Connection, lease_id: int, rows: Sequence[dict[str, float]]) -> ChargedTwiceError:
    there = marks(connection, lease_id)
    for row in rows:
        slot = int(row["of_slot"])
        if slot not in there:
            return ChargedTwiceError(f"charge: slot {slot} is not in the open pool ({sorted(there)})")
        if row["until"] != there[slot]:  # the marks of accepted charges have moved
            return _refusal(slot, row["since"], there[slot])
    return ChargedTwiceError("charge: a slot-second is charged already")


def _refusal(slot: int, since: float, charged_until: float) -> ChargedTwiceError:
    return ChargedTwiceError(
        f"charge: slot {slot} is charged until {charged_until!r} already, but a new charge begins at {since!r}"
    )


class CommitWriter:
    """Writes a commit's changes. `lease_id` is None only in tests."""

    def __init__(self, connection: sa.Connection, study_id: int, lease_id: int | None, revision: int) -> None:
        self._connection, self._revision = connection, revision
        self._study_id, self._lease_id = study_id, lease_id

    def write(self, rows: list[ch.Change]) -> None:
        """Write all changes except the study's row. Raises `ChargedTwiceError` if time is charged twice."""
        trials: dict[int, dict[str, Any]] = {}
        attempts: dict[tuple[int, int], dict[str, Any]] = {}
        inserts: dict[sa.Table, list[dict[str, Any]]] = {}
        kept: dict[tuple[int, int], str | None] = {}
        for row in rows:
            match row:
                case ch.StudyChanged():
                    pass  # already written with the revision
                case ch.TrialChanged():
                    trials.setdefault(row.trial_id, {}).update(row.columns)
                case ch.AttemptChanged():
                    attempts.setdefault((row.trial_id, row.attempt), {}).update(row.columns)
                case ch.CheckpointKept():
                    kept[row.trial_id, row.epoch] = row.checkpoint
                case ch.PoolChanged():
                    self._update_lease(row.columns)
                case ch.PoolRateChanged():
                    self._insert_rate(row)
                case ch.ViewsToRebuild():
                    where = (t.view_cursors.c.study_id == self._study_id, t.view_cursors.c.view == "optuna")
                    self._connection.execute(sa.update(t.view_cursors).where(*where).values(rebuild=True))
                case _:
                    table, values = self._insert_of(row)
                    inserts.setdefault(table, []).append(values)
        for table, insert in _INSERTS.items():
            if table in inserts:
                self._connection.execute(insert, inserts[table])
        if self._lease_id is not None:
            move(self._connection, self._lease_id, (row for row in rows if isinstance(row, ch.Charged)))
        self._update(trials, attempts, kept)

    def _update(
        self,
        trials: dict[int, dict[str, Any]],
        attempts: dict[tuple[int, int], dict[str, Any]],
        kept: dict[tuple[int, int], str | None],
    ) -> None:
        by_trial = [((one,), {**columns, "revision": self._revision}) for one, columns in trials.items()]
        self._update_rows(t.trials, ("id",), by_trial)
        self._update_rows(t.attempts, ("trial_id", "attempt"), attempts.items())
        by_epoch = [(of, {"checkpoint": path}) for of, path in kept.items()]
        self._update_rows(t.epochs, ("trial_id", "epoch"), by_epoch)

    def _update_rows(
        self, table: sa.Table, key: tuple[str, ...], rows: Iterable[tuple[tuple[int, ...], Mapping[str, Any]]]
    ) -> None:
        """Update rows by key, with one statement for all rows that change the same columns."""
        alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for of, columns in sorted(rows, key=lambda row: row[0]):
            parameters = {f"key_{name}": value for name, value in zip(key, of, strict=True)} | dict(columns)
            alike.setdefault(tuple(sorted(columns)), []).append(parameters)
        for names, together in alike.items():
            self._connection.execute(_update_by_key(table, key, names), together)

    def _insert_of(self, row: ch.Change) -> tuple[sa.Table, dict[str, Any]]:
        match row:
            case ch.AttemptOpened():
                return t.attempts, {**row_of(row), "lease_id": self._lease_id}
            case ch.EpochMeasured():
                return t.epochs, row_of(row)
            case ch.Decided():
                return t.decisions, row_of(row)
            case ch.Charged():
                return t.charges, _charge_row(self._study_id, self._lease_id, row)
            case ch.Confirmed():
                return t.confirmations, {**row_of(row), "study_id": self._study_id}
        raise TypeError(f"no table for a {type(row).__name__}")

    def _update_lease(self, columns: Mapping[str, Any]) -> None:
        if self._lease_id is not None:
            update = sa.update(t.leases).where(t.leases.c.id == self._lease_id)
            self._connection.execute(update.values(**columns))
            opened_at = columns.get("pool_opened_at")
            if opened_at is not None:
                open_slots(self._connection, self._lease_id, range(columns["pool_slots"]), opened_at)

    def _insert_rate(self, row: ch.PoolRateChanged) -> None:
        if self._lease_id is not None:
            open_slots(self._connection, self._lease_id, row.slot_numbers, row.since)
            rate = {"slot_numbers": list(row.slot_numbers), "usd_per_slot_hour": row.usd_per_slot_hour}
            insert = sa.insert(t.pool_rates).values(lease_id=self._lease_id, since=row.since, **rate)
            self._connection.execute(insert)


# Statements are made once, since SQLAlchemy takes longer to make a statement than SQLite to execute it.
_INSERTS = {table: sa.insert(table) for table in (t.attempts, t.epochs, t.decisions, t.charges, t.confirmations)}


@functools.cache
def _update_by_key(table: sa.Table, key: tuple[str, ...], names: tuple[str, ...]) -> sa.Update:
    where = [table.c[name] == sa.bindparam(f"key_{name}") for name in key]
    return sa.update(table).where(*where).values({name: sa.bindparam(name) for name in names})


def insert_charges(connection: sa.Connection, study_id: int, lease_id: int, charges: Sequence[ch.Charged]) -> None:
    """Insert charges of a lease. Raises `ChargedTwiceError` if time is charged twice."""
    move(connection, lease_id, charges)
    rows = [_charge_row(study_id, lease_id, charge) for charge in charges]
    if rows:
        connection.execute(_INSERTS[t.charges], rows)


def _charge_row(study_id: int, lease_id: int | None, charge: ch.Charged) -> dict[str, Any]:
    return {**row_of(charge), "study_id": study_id, "lease_id": lease_id}


Inserted = ch.AttemptOpened | ch.EpochMeasured | ch.Decided | ch.Charged | ch.Confirmed


def row_of(change: Inserted) -> dict[str, Any]:
    """Return the row that a change inserts, without ids of study and lease."""
    kind: Any = type(change)
    row = {name: getattr(change, name) for name in _field_names(kind) if name != "at"}
    match change:
        case ch.AttemptOpened():
            row |= {"world_size": len(change.slots), "slots": list(change.slots), "outcome": "running", "facts": {}}
            row |= {"charged_until": change.at, "started_at": change.at}
        case ch.EpochMeasured():
            row |= {"metrics": finite(change.metrics), "measured_at": change.at}
        case ch.Decided():
            row |= {"numbers": dict(change.numbers), "forecasts": as_plain(change.forecasts), "decided_at": change.at}
        case ch.Charged():
            row |= {"slot_numbers": list(change.slot_numbers), "charged_at": change.at, "until": change.at}
        case ch.Confirmed():
            row |= {"metrics": finite(change.metrics), "confirmed_at": change.at}
    return row


@functools.cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in dataclasses.fields(kind))


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return metrics with None instead of NaN and infinity, for JSON."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
