"""Encodes columns of a table as numbers. The encoding is learned from the training rows, and applied to any rows.

A number becomes (value - centre) / scale. A missing number becomes the median, and a column marks it. Categories become
whole numbers: 0 for a level that is unknown or rare in training, 1 for missing, then the levels. Centre and scale are
mean and deviation, cut at 10; or, robust, median and quartile distance, bent smoothly (RealMLP, Holzmüller et al. 2024,
arXiv 2407.04491, section 3).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from search_spaces.messages import shown
from trainers.protocol import TaskError
from trainers.tasks.shared.split_task import Rows
from trainers.tasks.table.files import Table, holds_numbers, is_number, texts

Matrix = np.ndarray[Any, np.dtype[np.float32]]
Vector = np.ndarray[Any, np.dtype[np.float64]]

MOSTLY = 0.8  # share of numeric cells from which a text column is numbers with typing errors
DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?$"
_WITH_ZONE = r":[0-9.]+(Z|[+-][0-9]{2}:?[0-9]{2})$"
_RAREST = 2
_COUNTED = 20  # number of rows from which a column that counts rows is left out, because it has only their order
_MOST_LEVELS = 1000
_FARTHEST = 10.0  # bound of standardised values: one typing error must not make a batch diverge
_BOUND = 3.0  # bound that robustly scaled values approach
_DAY_MS = 86_400_000.0
_TOO_FAR = 1e6
"""Usual distances from the median beyond which a value does not affect the scale: 32 bits would be too few."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """Encoding of numbers, or of dates in days. `mean` and `deviation` are centre and scale."""

    name: str
    is_date: bool
    mean: float
    deviation: float
    median: float
    marks: bool  # training rows lack values, and a column marks them


@dataclass(frozen=True, kw_only=True, slots=True)
class Category:
    """Encoding of words: level i becomes the number i + 2."""

    name: str
    levels: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of codes, including unknown and missing."""
        return len(self.levels) + 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """Layout of rows as vectors: numbers first, then marks of missing values, then categories."""

    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    left_out: dict[str, str]
    is_robust: bool = False

    @property
    def dense(self) -> int:
        """Number of columns before the categories."""
        return len(self.numbers) + sum(number.marks for number in self.numbers)

    @property
    def columns(self) -> int:
        """Number of encoded columns."""
        return self.dense + len(self.categories)

    @property
    def places(self) -> dict[str, list[int]]:
        """Places of the table's columns in an encoded row, including marks of missing values."""
        marked = [number.name for number in self.numbers if number.marks]
        places = {number.name: [place] for place, number in enumerate(self.numbers)}
        for place, name in enumerate(marked, start=len(self.numbers)):
            places[name].append(place)
        return places | {one.name: [place] for place, one in enumerate(self.categories, start=self.dense)}

    def form(self) -> dict[str, Any]:
        """Describe `encode` as plain values, for `automl.standalone.table_rows`."""
        return {
            "numbers": [asdict(number) for number in self.numbers],
            "categories": [asdict(category) for category in self.categories],
        } | ({"bound": _BOUND} if self.is_robust else {"farthest": _FARTHEST})

    @property
    def meaning(self) -> tuple[object, ...]:
        """Meaning of an encoded row, for the weights' fingerprint."""
        return (self.numbers, self.categories, *(["robust"] if self.is_robust else []))

    def encode(self, table: Table) -> Matrix:
        """Return encoded rows, float32 [rows, dense + categories]."""
        values = [values_of(table, number.name, is_date=number.is_date) for number in self.numbers]
        limited = _bent if self.is_robust else _cut
        scaled = [limited(_scaled(value, number)) for value, number in zip(values, self.numbers, strict=True)]
        marks = [np.isnan(value) for value, number in zip(values, self.numbers, strict=True) if number.marks]
        levels = [_levels(table, category) for category in self.categories]
        return np.column_stack([*scaled, *marks, *levels]).astype(np.float32)


def fit_encoding(
    table: Table,
    rows: Rows,
    names: Sequence[str],
    *,
    as_numbers: Collection[str],
    as_categories: Collection[str],
    is_robust: bool = False,
    codes: Collection[str] = (),
    left_out: Mapping[str, str] | None = None,
) -> Encoding:
    """Learn the encoding of each column from the training rows. Raises TaskError for a wrong cell in any row.

    `is_robust` scales numbers by quartiles and bends them, instead of standardising and cutting. `codes` are categories
    that look like numbers. `left_out` are columns not to use, with reasons; None leaves out row numbers.
    """
    numbers: list[Number] = []
    categories: list[Category] = []
    keeps_counts, left_out = left_out is not None, dict(left_out or {})
    for name in [name for name in names if name not in left_out]:
        is_category = name in as_categories or name in codes
        kind = "number" if name in as_numbers else "category" if is_category else _kind(table, name)
        if kind == "category":
            found: Number | Category | str = _fit_category(table, rows, name, forced=name in as_categories)
        else:
            found = _fit_number(
                table,
                rows,
                name,
                is_date=kind == "date",
                forced=keeps_counts or name in as_numbers,
                is_robust=is_robust,
            )
        if isinstance(found, str):
            left_out[name] = found
        elif isinstance(found, Category):
            categories.append(found)
        else:
            numbers.append(found)
    if not numbers and not categories:
        why = ", ".join(f"{name} is {reason}" for name, reason in left_out.items())
        raise TaskError(f"{table.path}: no column to learn from ({why}). Add a column that varies")
    return Encoding(numbers=tuple(numbers), categories=tuple(categories), left_out=left_out, is_robust=is_robust)


def values_of(table: Table, name: str, *, is_date: bool = False) -> Vector:
    """Return a column as float64 [rows], with NaN for missing cells."""
    column = table.columns[name]
    if _is_moment(column):  # in days since 1970 in UTC, in whole milliseconds
        moments = pc.cast(column, pa.timestamp("ms")) if pa.types.is_date(column.type) else column
        whole = pc.cast(pc.floor_temporal(moments, unit="millisecond"), pa.timestamp("ms", moments.type.tz))
        return _floats(pc.cast(whole, pa.int64())) / _DAY_MS
    if not pa.types.is_string(column.type):
        return _finite(table, name, _floats(column))
    good = pc.match_substring_regex(column, DATE) if is_date else is_number(column)
    try:
        kept = pc.if_else(good, column, pa.scalar(None, pa.string()))
        found = _milliseconds(kept) if is_date else pc.cast(kept, pa.float64())
    except pa.ArrowInvalid as error:
        raise TaskError(f"{table.path}, column {name!r}: found {error}, allowed: dates such as 2024-12-31") from None
    values = _floats(found) / (_DAY_MS if is_date else 1.0)
    return _finite(table, name, values, pc.fill_null(pc.invert(good), False).to_numpy(zero_copy_only=False))


def _is_moment(column: Any) -> bool:
    return bool(pa.types.is_timestamp(column.type) or pa.types.is_date(column.type))


def _milliseconds(dates: Any) -> Any:
    """Return dates from texts as milliseconds since 1970, int64. Dates without a time zone are in UTC."""
    dates = pc.replace_substring_regex(dates, r"(\.[0-9]{3})[0-9]+", r"\1")
    has_zone, nothing = pc.match_substring_regex(dates, _WITH_ZONE), pa.scalar(None, pa.string())
    plain = pc.cast(pc.if_else(has_zone, nothing, dates), pa.timestamp("ms"))
    zoned = pc.cast(pc.if_else(has_zone, dates, nothing), pa.timestamp("ms", "UTC"))
    return pc.coalesce(pc.cast(plain, pa.int64()), pc.cast(zoned, pa.int64()))


def _finite(table: Table, name: str, values: Vector, no_numbers: Any = False) -> Vector:
    bad = np.isinf(values) | no_numbers
    if bad.any():
        there = max(1, len(bad) - table.columns[name].null_count)
        row, share = int(np.argmax(bad)), 1 - bad.sum() / there
        problem = f"found {shown(table.columns[name][row].as_py())}, where {share:.0%} of the column are numbers"
        cure = "a finite number; or name the column in task_options.categorical, or the word in task_options.missing"
        raise TaskError(f"{table.where(row)}, column {name!r}: {problem}, allowed: {cure}")
    return values


def bin_edges(values: Matrix, bins: int) -> Matrix:
    """Return quantiles as rising edges, float32 [numbers, bins + 1]. Equal quantiles become edges above the largest."""
    # Interpolated quantiles have 64 bits, and may be equal only in 32 bits.
    edges = np.quantile(values, np.linspace(0, 1, bins + 1), axis=0).T.astype(np.float32)
    rows = []
    for one in edges:
        distinct = np.unique(one)
        beyond = float(distinct[-1]) + 1.0 + np.arange(bins + 1 - len(distinct))
        rows.append(np.concatenate([distinct, beyond]))
    return np.asarray(rows, dtype=np.float32)


def _kind(table: Table, name: str) -> Literal["number", "date", "category"]:
    column = table.columns[name]
    if _is_moment(column):
        return "date"
    if holds_numbers(column):
        return "number"
    if pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        return "category"
    if not pa.types.is_string(column.type):
        allowed = "numbers, text, booleans or dates; or name it in task_options.ignore"
        raise TaskError(f"{table.path}, column {name!r}: found the type {column.type}, allowed: {allowed}")
    present = len(column) - column.null_count
    if not present:
        return "category"
    if pc.all(pc.match_substring_regex(column, DATE)).as_py():
        return "date"
    return "number" if pc.sum(is_number(column)).as_py() >= MOSTLY * present else "category"


def _fit_number(table: Table, rows: Rows, name: str, *, is_date: bool, forced: bool, is_robust: bool) -> Number | str:
    values = values_of(table, name, is_date=is_date)
    if not forced and not is_date and len(values) >= _COUNTED and (np.diff(values) == 1).all():
        return "the number of the row"
    marks = bool(np.isnan(values[rows]).any())
    known = values[rows][~np.isnan(values[rows])]
    if len(known) == 0:
        return "empty"
    if known.min() == known.max() and not marks:  # not by the deviation, which may be 1e-17 for equal values
        return "constant"
    median = float(np.median(known))
    distances = np.abs(known - median)
    usual = np.median(distances[distances > 0]) if distances.any() else 0.0
    near = known[distances <= _TOO_FAR * usual]  # without typing errors and codes for missing values
    deviation = 0.0 if near.min() == near.max() else _spread(known, near) if is_robust else float(near.std())
    mean = median if is_robust else float(near.mean())
    return Number(name=name, is_date=is_date, mean=mean, deviation=deviation or 1.0, median=median, marks=marks)


def _spread(known: Vector, near: Vector) -> float:
    """Return the distance between the quartiles; if 0, half the range of the values near the median."""
    low, high = np.quantile(known, [0.25, 0.75])
    return float(high - low) or float(near.max() - near.min()) / 2


def _fit_category(table: Table, rows: Rows, name: str, *, forced: bool) -> Category | str:
    column = texts(table.columns[name]).take(pa.array(rows))
    counted = [(one["counts"], one["values"]) for one in pc.value_counts(column.drop_null()).to_pylist()]
    if not counted:
        return "empty"
    if len(counted) == 1 and column.null_count == 0:
        return "constant"
    frequent = sorted(one for one in counted if one[0] >= _RAREST)
    if not frequent and not forced:
        return "different in every row"
    kept = sorted(frequent, reverse=True)[:_MOST_LEVELS] if frequent else counted
    return Category(name=name, levels=tuple(sorted(level for _, level in kept)))


def _levels(table: Table, category: Category) -> Vector:
    column, levels = texts(table.columns[category.name]), pa.array(category.levels, pa.string())
    plain = _plain(levels).to_pylist()
    times = Counter(plain)
    single = pa.array([one if times[one] == 1 else None for one in plain], pa.string())
    written, meant = pc.index_in(column, levels), pc.index_in(_plain(column), single, skip_nulls=True)
    numbers = pc.add(pc.coalesce(written, meant), 2)
    missing = np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False))
    return np.where(missing, 1.0, _floats(pc.fill_null(pc.cast(numbers, pa.float64()), 0.0)))


def _plain(column: Any) -> Any:
    """Return words in the same form from any program: True becomes true, 1.0 becomes 1."""
    small = pc.utf8_lower(column)
    whole = pc.replace_substring_regex(column, r"^([+-]?[0-9]+)\.0$", r"\1")
    return pc.if_else(pc.is_in(small, pa.array(["true", "false"])), small, whole)


def _scaled(values: Vector, number: Number) -> Vector:
    filled = np.where(np.isnan(values), number.median, values)
    return np.asarray((filled - number.mean) / number.deviation)


def _cut(scaled: Vector) -> Vector:
    return np.clip(scaled, -_FARTHEST, _FARTHEST)


def _bent(scaled: Vector) -> Vector:
    """Return x / sqrt(1 + (x / 3)^2) without an overflow of the square."""
    return np.asarray(scaled / np.hypot(1.0, scaled / _BOUND))


def _floats(column: Any) -> Vector:
    return np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
