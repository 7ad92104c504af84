"""Findings of an audit, and its database queries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """An inconsistency in a study; `where` names the trial, charge or file."""

    check: str
    where: str
    found: str


class Asker:
    """Runs plain SQL about one study, in one transaction; `study_id` is the value of `:study`."""

    def __init__(self, connection: sa.Connection, study_id: int) -> None:
        self._connection, self._study_id = connection, study_id

    @property
    def clock(self) -> str:
        """SQL for the database's clock in seconds since 1970."""
        if self._connection.dialect.name == "sqlite":
            return "((julianday('now') - 2440587.5) * 86400.0)"
        return "EXTRACT(EPOCH FROM clock_timestamp())"

    def __call__(self, sql: str, **parameters: Any) -> list[sa.Row[Any]]:
        """Return all rows of a statement."""
        known = {"study": self._study_id, **parameters} if ":study" in sql else parameters
        return list(self._connection.execute(sa.text(sql), known).all())

    def has_table(self, name: str) -> bool:
        """Return whether there is a table of this name."""
        return sa.inspect(self._connection).has_table(name)


def plain(value: Any) -> Any:
    """Return a JSON column's value: SQLite returns it as text, PostgreSQL as an object."""
    return json.loads(value) if isinstance(value, str) else value
