"""Finds columns that number or name the rows, from which a model would learn the order of the file."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainers.tasks.table.columns import Vector
from trainers.tasks.table.files import Table, holds_numbers, is_number

_FEWEST = 20  # number of rows below which all different numbers say nothing
_DENSE, _DENSE_IN_ORDER = 2.0, 20.0
"""Most numbers in the range of a column for each row, from which the rows of a larger table were drawn."""
_MOST_BLOCKS, _FEW_BLOCKS = 10, 3
"""Most times that the numbers of rows start again: in the file's order or without a name, and in any order."""
_MOSTLY_DIFFERENT = 0.9
_NAME = re.compile(
    r"(?!(house|haus)[_ .-]?n)(unnamed: ?[0-9]+(_level.*)?|(row[_ .-]?)?(index|idx|nr|no|num|number|id|nummer|key)\.?|"
    r"#|rows?|rowid|level_0|"
    r"uuid|guid|lfd.*|.*[_ .-](id|idx|index|uuid|guid|no|nr|key|nummer|number)|id[_ .-].*)",
    re.IGNORECASE,
)
_CAMEL = re.compile(r".*[a-z](ID|Id|Nr|No|Key|Index)")
_UNNAMED = re.compile(r"unnamed: ?[0-9]+.*|index|level_0|row_?(nr|no|number|id|index)", re.IGNORECASE)
_QUANTITY = re.compile(
    r".*(day|week|month|hour|minute|year|tag|woche|monat|stunde|jahr|date|time|zeit|depth|tiefe|height|length|distance|"
    r"dose|wave|freq|step|cycle|epoch|speed|price|preis|amount|betrag|anzahl|weight|gewicht|size).*|"
    r"(.*[_ .-])?(age|alter|count|temp|temperatur.*|t|(?-i:x))([_ .-].*)?|"
    r".*[_ ([](cm|mm|m|km|kg|g|s|ms|h|hz|nm|usd|eur)[])]?|(house|haus)[_ .-]?(no|nr|num|number|nummer)\.?",
    re.IGNORECASE,
)
"""Names of quantities, which may grow with the rows. R calls a column of row numbers X."""


def identifier(table: Table, name: str) -> str | None:
    """Return why a column numbers or names the rows, in words; None if it does not."""
    column = table.columns[name]
    is_unnamed = name in table.index or _UNNAMED.fullmatch(name) is not None
    is_named = is_unnamed or _NAME.fullmatch(name) is not None or _CAMEL.fullmatch(name) is not None
    present = len(column) - column.null_count
    if present < _FEWEST:
        return None
    if pa.types.is_string(column.type) and not pc.all(is_number(column)).as_py():
        different = pc.count_distinct(column).as_py() / present
        return "different in almost every row" if _MOSTLY_DIFFERENT <= different < 1 else None
    if not pa.types.is_string(column.type) and not holds_numbers(column):
        return None
    values = pc.cast(column.drop_null(), pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if not np.isfinite(values).all() or (values != np.round(values)).any():
        return None
    return _row_number(values, is_named=is_named, is_unnamed=is_unnamed, is_quantity=bool(_QUANTITY.fullmatch(name)))


def _row_number(values: Vector, *, is_named: bool, is_unnamed: bool, is_quantity: bool) -> str | None:
    levels, counts = np.unique(values, return_counts=True)
    order = np.diff(values)
    could_count = levels[0] in {0, 1} or ((np.abs(order) == 1).all() and len(levels) == len(values))
    if len(levels) < _FEWEST or (not is_named and (is_quantity or not could_count)):
        return None
    steps = np.diff(levels)
    step = np.gcd.reduce(steps.astype(np.int64))
    span = (levels[-1] - levels[0]) / float(step) + 1
    if len(levels) == len(values):
        is_ordered = (order > 0).all() or (order < 0).all()
        most = _DENSE_IN_ORDER if is_ordered else _DENSE if step == 1 else 1.0
        if span <= most * len(values):
            return "a row number"
    if is_unnamed and len(levels) * _MOST_BLOCKS >= len(values):
        return "a row number"
    if is_named and len(levels) >= _MOSTLY_DIFFERENT * len(values):
        return "an identifier"
    if is_quantity or counts.max() > _MOST_BLOCKS or len(levels) == len(values):
        return None
    is_dense = span == len(levels) and counts.max() <= _FEW_BLOCKS and bool((np.diff(counts) <= 0).all())
    blocks = int((order != 1).sum()) + 1
    is_restarted = blocks <= min(_MOST_BLOCKS, len(values) / _FEWEST)
    return "a row number that starts again" if is_restarted or is_dense else None


def identifiers(table: Table, names: Sequence[str], *, others: int) -> dict[str, str]:
    """Return the columns that number or name the rows, each with the reason, unless none but they would be left."""
    found = {name: why for name in names if (why := identifier(table, name)) is not None}
    return found if len(found) < len(names) + others else {}
