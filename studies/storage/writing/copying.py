"""Copies a store into an empty store in one transaction, and compares every row at the end."""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from search_spaces.untrusted_text import storable_deep
from studies.storage.leases.lease import driven_error, driven_studies
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError, parse_url, shown
from studies.storage.schema.tables import SafeJson
from studies.storage.study_store import Store, new_id

BATCH = 1000
_NOT_COPIED: dict[str, dict[str, Any]] = {t.view_cursors.name: {"rebuild": True, "details": {}}}
"""Columns with other values in the copy, by table: the copy's views are rebuilt."""


def copy_store(source: Store, target: Store, *, while_driven: bool = False) -> dict[str, int]:
    """Copy all studies as they are at one time. Returns the number of rows of each table.

    `while_driven` allows controllers to continue in the source. In the target, their leases expire, and a resumed study
    charges their unfinished work as lost.

    Raises:
        StoreError: A controller drives a study of the source without `while_driven`, the target is not empty, or the
            target cannot hold a row of the source. Nothing is written.
    """
    with source.snapshot() as reader:
        if not while_driven:
            driven = driven_studies(reader)
            if driven:
                names = reader.execute(sa.select(t.studies.c.name).where(t.studies.c.id.in_(driven))).scalars().all()
                raise driven_error(names[0], "a controller")
        try:
            with target.engine.begin() as writer:
                _refuse_full(writer, target.url)
                for table in t.metadata.sorted_tables:
                    for batch in _rows(table, reader).partitions(BATCH):
                        writer.execute(sa.insert(table), [_as_copied(table, row, while_driven) for row in batch])
                _set_sequences(writer)
                return {table.name: _compare(table, reader, writer, while_driven) for table in t.metadata.sorted_tables}
        except (SQLAlchemyError, ValueError) as error:  # for example a number out of the target's range
            cause = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise StoreError(f"store: {shown(parse_url(target.url))}: cannot hold the copy ({cause})") from None


def _refuse_full(writer: sa.Connection, url: str) -> None:
    for table in t.metadata.sorted_tables:
        count = writer.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
        if count:
            found = f"it has {count} rows in {table.name}. Name an empty store"
            raise StoreError(f"store: {shown(parse_url(url))}: {found}")


def _rows(table: sa.Table, connection: sa.Connection) -> sa.Result[Any]:
    streaming = connection.execution_options(yield_per=BATCH)
    return streaming.execute(sa.select(table).order_by(table.c.id))


def _not_copied(table: sa.Table, row: sa.Row[Any], while_driven: bool) -> dict[str, Any]:
    changed = _NOT_COPIED.get(table.name, {})
    if table is t.leases and while_driven and row.released_at is None:
        # The token in the checkpoint folder marks the folder's owner. With the source's token, the copy's controller
        # would take the folder for its own and delete newer checkpoints of the source.
        changed = changed | {"holder": new_id()}
    return changed


def _as_copied(table: sa.Table, row: sa.Row[Any], while_driven: bool) -> dict[str, Any]:
    values = dict(row._mapping)  # noqa: SLF001 - the public name of SQLAlchemy's mapping has an underscore
    values |= _not_copied(table, row, while_driven)
    # SQLAlchemy would store None in a JSON column as the document `null`.
    return {
        name: sa.null() if value is None and isinstance(table.c[name].type, SafeJson) else value
        for name, value in values.items()
    }


def _set_sequences(writer: sa.Connection) -> None:
    if writer.dialect.name != "postgresql":
        return
    for table in t.metadata.sorted_tables:
        last = sa.select(sa.func.coalesce(sa.func.max(table.c.id), 0) + 1).scalar_subquery()
        sequence = sa.func.pg_get_serial_sequence(table.name, "id")
        writer.execute(sa.select(sa.func.setval(sequence, last, sa.false())))


def _compare(table: sa.Table, reader: sa.Connection, writer: sa.Connection, while_driven: bool) -> int:
    count = 0
    for original, copied in _pairs(_rows(table, reader), _rows(table, writer)):
        count += 1
        if original is None or copied is None or not _is_copy(table, original, copied, while_driven):
            raise StoreError(f"store: row {count} of {table.name} differs in the copy, so nothing was written")
    return count


def _pairs(one: sa.Result[Any], other: sa.Result[Any]) -> Iterator[tuple[sa.Row[Any] | None, sa.Row[Any] | None]]:
    while True:
        pair = one.fetchone(), other.fetchone()
        if pair == (None, None):
            return
        yield pair


def _is_copy(table: sa.Table, original: sa.Row[Any], copied: sa.Row[Any], while_driven: bool) -> bool:
    changed = _not_copied(table, original, while_driven)
    # Rows of earlier versions may have text that some databases refuse; it is escaped in the copy.
    return all(
        storable_deep(original._mapping[name]) == copied._mapping[name]  # noqa: SLF001 - as above
        for name in table.columns.keys()  # noqa: SIM118 - a collection of columns, which iterates over columns
        if name not in changed
    )
