"""Encodes rows of a table, mappings from column to cell, as in training.

A cell is a text as in a CSV file, or a Python number, boolean or date. None and words such as NA are missing values.
The median replaces missing numbers; some columns also encode that a value is missing.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from .batches import Encoded, encoded
from .cells import is_missing, reader
from .errors import InputError

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})([ T]([0-9]{2}:[0-9]{2})(:[0-9]{2})?(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_WHOLE = re.compile(r"([+-]?[0-9]+)\.0")
_DAY_MS = 86_400_000.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNKNOWN, _MISSING, _FIRST_LEVEL = 0, 1, 2


class _Number:
    __slots__ = ("deviation", "is_date", "marks", "mean", "median", "name", "read", "takes_floats")

    def __init__(self, form: Mapping[str, Any], cells: Mapping[str, Any] | None, *, takes_floats: bool) -> None:
        self.read = None if cells is None else reader(cells)
        self.name, self.is_date, self.marks = str(form["name"]), bool(form["is_date"]), bool(form["marks"])
        self.takes_floats = takes_floats and not self.is_date
        self.mean, self.deviation, self.median = form["mean"], form["deviation"], form["median"]


class _Category:
    __slots__ = ("meant", "name", "written")

    def __init__(self, form: Mapping[str, Any]) -> None:
        self.name = str(form["name"])
        self.written = {level: number for number, level in enumerate(form["levels"], _FIRST_LEVEL)}
        times = Counter(map(_plain, self.written))
        self.meant = {one: number for level, number in self.written.items() if times[one := _plain(level)] == 1}

    def number(self, text: str | None) -> int:
        if text is None:
            return _MISSING
        number = self.written.get(text)
        return self.meant.get(_plain(text), _UNKNOWN) if number is None else number


class TableRows:
    """Encodes rows of a table with statistics of the training columns.

    Args:
        form: `numbers`, mappings of name, is_date, mean, deviation, median, marks; `categories`, mappings of name and
            levels; `missing`, words for missing values; `known`, columns that a row may have; `farthest`, where scaled
            values are cut, or `bound`, the limit that they approach. Optional `cells`, the format for `cells.reader` of
            columns whose numbers and dates are not written plainly.
    """

    kind = "table"
    dtype = "float32"
    fill = 0

    def __init__(self, form: Mapping[str, Any]) -> None:
        self._categories = list(map(_Category, form["categories"]))
        self._nothing = frozenset(form["missing"])
        self._no_values = frozenset(float(word) for word in self._nothing if _NUMBER.fullmatch(word))  # such as -999
        cells, takes_floats = form.get("cells", {}), not self._no_values
        self._numbers = [_Number(one, cells.get(one["name"]), takes_floats=takes_floats) for one in form["numbers"]]
        self._known = frozenset(form["known"])
        self._bound = form.get("bound")
        self._farthest = math.inf if self._bound else float(form["farthest"])
        self.columns = tuple(one.name for one in self._numbers) + tuple(one.name for one in self._categories)
        self._needed = frozenset(self.columns)
        marks = sum(one.marks for one in self._numbers)
        self.shape = (len(self.columns) + marks,)

    def check_columns(self, names: Sequence[object], where: str, row: int = 0) -> None:
        """Raise InputError for columns unknown from training, and for missing columns that the model uses."""
        have = set(names)
        if have >= self._needed and have <= self._known:
            return
        unknown = [name for name in names if name not in self._known]
        missing = [name for name in self.columns if name not in have]
        found = [f"the unknown column {', '.join(map(repr, unknown))}"] if unknown else []
        found += [f"no column {', '.join(map(repr, missing))}"] if missing else []
        near = difflib.get_close_matches(str(unknown[0]), missing or list(self._known), n=1) if unknown else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        allowed = f"{', '.join(map(repr, self.columns))}; None for a missing value{hint}"
        raise InputError(row, f"{where}: found {' and '.join(found)}, allowed: {allowed}")

    def encode(self, row: Any, number: int) -> Encoded:
        """Encode a row as float32 [columns]. Raises InputError for wrong columns or an invalid value."""
        where = f"row {number + 1}"
        if not isinstance(row, Mapping):
            raise InputError(number, f"{where}: found {_shown(row)}, allowed: a mapping from each column to its cell")
        self.check_columns(list(row), where, number)
        scaled: list[float] = []
        marks: list[float] = []
        for column in self._numbers:
            cell = row[column.name]
            if type(cell) is float and column.takes_floats and math.isfinite(cell):
                value = cell  # reading its text would give the same value
            else:
                value = self._number(cell, column, number)
            is_missing = math.isnan(value)
            known = column.median if is_missing else value
            scaled.append(self._limited((known - column.mean) / column.deviation))
            if column.marks:
                marks.append(float(is_missing))
        levels = [one.number(self._text(row[one.name])) for one in self._categories]
        return encoded(self.dtype, self.shape, [*scaled, *marks, *levels])

    def _limited(self, distance: float) -> float:
        if self._bound:
            return float(distance / math.hypot(1.0, distance / self._bound))
        if distance > self._farthest:
            return self._farthest
        return max(distance, -self._farthest)

    def _text(self, cell: object) -> str | None:
        if isinstance(cell, Decimal):  # as training reads columns of decimals
            cell = float(cell)
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return None
        if isinstance(cell, bool):
            text = str(cell).lower()
        elif isinstance(cell, float | int) and cell in self._no_values:
            return None
        elif isinstance(cell, float):
            text = repr(float(cell)).removesuffix(".0")  # numpy's own floats would print their type
        else:
            text = str(cell).strip()
        return None if text in self._nothing else text

    def _number(self, cell: object, column: _Number, row: int) -> float:
        """Return a cell as a number, a date as days since 1970, a missing value as NaN."""
        text = self._text(cell)
        if text is None:
            return math.nan
        if column.read is not None:
            return self._read(text if isinstance(cell, str) else cell, column, row)
        if column.is_date:
            return math.nan if is_missing(text) else _days(text, row, column.name)
        value = float(text) if _NUMBER.fullmatch(text) else math.nan if is_missing(text) else math.inf
        if math.isinf(value):
            where = f"row {row + 1}, column {column.name!r}"
            raise InputError(row, f"{where}: found {_shown(cell)}, allowed: a finite number, or None if it is missing")
        return value

    @staticmethod
    def _read(cell: object, column: _Number, row: int) -> float:
        try:
            value = column.read(cell) if column.read is not None else None
        except ValueError:
            what = "a date" if column.is_date else "a finite number"
            where = f"row {row + 1}, column {column.name!r}"
            allowed = f"{what} as in the training data, or None for a missing value"
            raise InputError(row, f"{where}: found {_shown(cell)}, allowed: {allowed}") from None
        return math.nan if value is None else value / _DAY_MS if column.is_date else value


def _plain(text: str) -> str:
    small = text.lower()
    if small in {"true", "false"}:
        return small
    whole = _WHOLE.fullmatch(text)
    return text if whole is None else whole[1]


def _days(text: str, row: int, name: str) -> float:
    """Return a date as days since 1970, in whole milliseconds."""
    try:
        found = _DATE.fullmatch(text)
        if found is None:
            raise ValueError
        day, _, minutes, seconds, fraction, zone = found.groups()
        # Python before 3.11 reads no Z, and no zone without a colon.
        zone = "+00:00" if zone in {None, "Z"} else f"{zone[:3]}:{zone[-2:]}"
        moment = datetime.fromisoformat(f"{day}T{minutes or '00:00'}{seconds or ':00'}{zone}")
        whole = (moment - _EPOCH).total_seconds() * 1000
        return (whole + int(f"{(fraction or '.')[1:]:0<3}"[:3])) / _DAY_MS
    except ValueError:
        where = f"row {row + 1}, column {name!r}"
        raise InputError(row, f"{where}: found {_shown(text)}, allowed: a date such as 2024-12-31") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
