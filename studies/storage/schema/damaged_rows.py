"""Searches a store for values that this program never writes: evidence of damage, not of a defect."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import sqlalchemy as sa

from search_spaces.messages import shown
from studies.records.records import CHARGE_KINDS, TRIAL_STATES, Action, StopReason, StudyState
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from trainers.protocol import Failure

LATEST_SECONDS = 253_402_300_799.0
"""Last second of the year 9999: later moments cannot be converted to a date."""
_SCALARS = int | float | str | bool | None


def _is_list_of_slots(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)


def _is_mapping_of(kinds: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(isinstance(one, kinds) for one in value.values())


def _is_list_of_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


_is_numbers = _is_mapping_of(int | float | None)
_WORDS: Mapping[str, frozenset[str]] = {
    "automl_studies.state": frozenset(get_args(StudyState)),
    "automl_studies.stop_reason": frozenset(get_args(StopReason)),
    "automl_trials.state": frozenset(TRIAL_STATES),
    "automl_trials.failure": frozenset(get_args(Failure)),
    "automl_decisions.action": frozenset(get_args(Action)),
    "automl_charges.kind": frozenset(CHARGE_KINDS),
}
_SHAPES: Mapping[str, Callable[[Any], bool]] = {
    "params": _is_mapping_of(_SCALARS),
    "metrics": _is_numbers,
    "reference_point": _is_numbers,
    "numbers": _is_mapping_of(_SCALARS),
    "slots": _is_list_of_slots,
    "slot_numbers": _is_list_of_slots,
    "earlier_studies": _is_list_of_mappings,
    "counted_examples": _is_list_of_mappings,
}
"""Check for each JSON column; columns without a check must be mappings."""


def damage(store: Store) -> str:
    """Return the first invalid value of a store and its place; empty if all values are valid."""
    with store.snapshot() as connection:
        for table in t.metadata.sorted_tables:
            for place, value in _damaged(connection, table):
                return f"{place}: found {shown(value)}, which automl never writes there"
    return ""


def _damaged(connection: sa.Connection, table: sa.Table) -> Iterator[tuple[str, Any]]:
    names = [column.name for column in table.columns]
    # Textual SQL, so that SQLAlchemy does not convert values.
    for row in connection.execute(sa.text(f"SELECT {', '.join(names)} FROM {table.name} ORDER BY id")):  # noqa: S608 - ours
        for column, value in zip(table.columns, row, strict=True):
            if not (_fits(column, value) if value is not None else column.nullable):
                yield f"{table.name}, row {row.id}, {column.name}", value


def _fits(column: sa.Column[Any], value: Any) -> bool:
    if isinstance(column.type, sa.Boolean):
        return value in (0, 1)
    if isinstance(column.type, sa.Integer):
        return isinstance(value, int)
    if isinstance(column.type, sa.Float):
        is_number = isinstance(value, int | float) and math.isfinite(value)
        return is_number and (not column.name.endswith("_at") or 0 <= value <= LATEST_SECONDS)
    if isinstance(column.type, sa.JSON) or isinstance(getattr(column.type, "impl", None), sa.JSON):
        return _fits_json(column.name, value)
    words = _WORDS.get(f"{column.table.name}.{column.name}")
    return isinstance(value, str) and (words is None or value in words)


def _fits_json(name: str, value: Any) -> bool:
    if isinstance(value, str):  # SQLite returns text, PostgreSQL the value itself
        try:
            value = json.loads(value)
        except ValueError:
            return False
    if value is None:
        return True
    shape = _SHAPES.get(name)
    return isinstance(value, dict) if shape is None else shape(value)
