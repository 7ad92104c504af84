"""Detects the formats of numbers, dates and codes in columns of text."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from automl.standalone.cells import is_missing, milliseconds_of, parts, reader, value_of
from search_spaces.messages import shown
from trainers.protocol import TaskError
from trainers.tasks.table.columns import DATE
from trainers.tasks.table.files import Table, as_text, is_number

CellFormat = dict[str, Any]
"""Format of a column for `automl.standalone.cells.reader`. `kind` may also be code or category."""

PLAIN: CellFormat = {"kind": "number", "decimal": ".", "unit": "", "missing": [], "plain": True}
PLAIN_DATES: CellFormat = {"kind": "date", "day_first": False, "missing": [], "plain": True}
READ = ("number", "date")  # kinds of formats whose cells become numbers
_SAMPLE = 500
_FEW_WORDS, _MOST_WORDS, _FEW_SHARE = 3, 50, 0.02
"""Limits for different words that count as missing in a column of numbers: always, and if rare."""
_FEW_NUMBERS = 10
_LEAST_SHARE = 0.3
_CODES_SHARE = 0.01
_DATES_SHARE = 0.9
_CODE, _THOUSANDS = r"^0[0-9]+$", r"^-?[1-9][0-9]{0,2}(\.[0-9]{3})?$"


def formats_of(
    table: Table, names: Collection[str], *, decimal: str | None = None, is_day_first: bool | None = None
) -> dict[str, CellFormat]:
    """Return columns' formats. `decimal` and `is_day_first` decide ambiguous columns; None decides by the others."""
    formats = {name: form for name in names if (form := _plain(table.columns[name])) is not None}
    columns = {name: table.columns[name] for name in names if name not in formats}
    counted = {name: cells for name, one in columns.items() if (cells := _counted(one))}
    comma = decimal == "," if decimal else _has_decimal_comma(counted.values())
    is_day_first = comma if is_day_first is None else is_day_first
    for name, cells in counted.items():
        found = _codes(cells) or _numbers(cells, is_comma=comma) or _dates(cells, is_day_first=is_day_first)
        if found is not None:
            formats[name] = found
    return formats


def with_formats(table: Table, formats: Mapping[str, CellFormat]) -> Table:
    """Return a table with numbers and dates as Arrow's types. Raises TaskError for a cell of another kind."""
    columns = dict(table.columns)
    for name, form in formats.items():
        column = columns.get(name)
        if form["kind"] not in READ or column is None or not pa.types.is_string(column.type):
            continue
        if form != _plain(column):
            columns[name] = _converted(table, name, form)
    return replace(table, columns=columns)


def _converted(table: Table, name: str, form: CellFormat) -> Any:
    column, read = pc.dictionary_encode(table.columns[name]), reader(form)
    values: list[float | None] = []
    for text in column.dictionary.to_pylist():
        try:
            values.append(read(text))
        except ValueError:
            row = pc.index(table.columns[name], text).as_py()
            allowed = f"a {form['kind']}; or name the word in task_options.missing or the column in task_options.ignore"
            raise TaskError(f"{table.where(row)}, column {name!r}: found {shown(text)}, allowed: {allowed}") from None
    return _typed(values, form).take(column.indices)


def columns_of(
    rows: Sequence[Mapping[str, object]], formats: Mapping[str, CellFormat], nothing: Collection[str]
) -> dict[str, Any]:
    """Return columns of numbers and dates from Python values. `nothing` are words for missing values."""
    columns = {}
    for name, form in formats.items():
        read, values = reader(form), list[float | None]()
        for number, row in enumerate(rows, start=1):
            text = as_text(row.get(name))
            is_text = text is not None and not isinstance(row[name], int | float)
            try:
                values.append(
                    None if text is None or text.strip() in nothing else read(text if is_text else float(text))
                )
            except ValueError:
                problem = f"found {shown(row[name])}, allowed: a {form['kind']}, or None for a missing value"
                raise TaskError(f"rows: row {number}, column {name!r}: {problem}") from None
        columns[name] = _typed(values, form)
    return columns


def _typed(values: Sequence[float | None], form: CellFormat) -> Any:
    if form["kind"] == "date":
        return pc.cast(pa.array(values, pa.int64()), pa.timestamp("ms"))
    return pa.array(values, pa.float64())


def _plain(column: Any) -> CellFormat | None:
    """Return the format of a column of plain numbers or ISO dates, which other files may write differently."""
    if not pa.types.is_string(column.type) or column.null_count == len(column):
        return None
    if pc.all(is_number(column)).as_py() and not pc.any(pc.match_substring_regex(column, _CODE)).as_py():
        could_be_thousands = pc.all(pc.match_substring_regex(column, _THOUSANDS)).as_py()
        return None if could_be_thousands and pc.any(pc.match_substring(column, ".")).as_py() else dict(PLAIN)
    return dict(PLAIN_DATES) if pc.all(pc.match_substring_regex(column, DATE)).as_py() else None


def _counted(column: Any) -> dict[str, int]:
    """Return the number of rows of each text, without words for missing values; {} for a column of words."""
    if not pa.types.is_string(column.type):
        return {}
    counts = pc.value_counts(column.drop_null())
    few = counts.take(np.unique(np.linspace(0, len(counts) - 1, _SAMPLE, dtype=np.int64))) if len(counts) else counts
    some = [text for text in few.field("values").to_pylist() if not is_missing(text)]
    if sum(parts(text) is not None or _date(text) is not None for text in some) < _LEAST_SHARE * max(1, len(some)):
        return {}
    pairs = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    return {text: count for text, count in pairs if not is_missing(text)}


def _date(text: str) -> int | None:
    day_first = milliseconds_of(text, is_day_first=True)
    return milliseconds_of(text, is_day_first=False) if day_first is None else day_first


def _sample(cells: Collection[str]) -> list[str]:
    return list(cells)[:: max(1, len(cells) // _SAMPLE)]


def _read(
    cells: Collection[str], usual: bool, read: Callable[[str, bool], float | None]
) -> tuple[bool, dict[str, float], str | None]:
    """Return the better of two ways, its values, and in a tie a cell that both ways read differently.

    `read` takes a text and the way; `usual` decides a tie. A sample often decides.
    """
    some = _sample(cells)
    found = {way: sum(read(text, way) is not None for text in some) for way in (True, False)}
    ways = [True, False] if found[True] == found[False] else [found[True] > found[False]]
    values = {way: {text: value for text in cells if (value := read(text, way)) is not None} for way in ways}
    is_tie = len(ways) > 1 and len(values[True]) == len(values[False])
    way = usual if is_tie else max(ways, key=lambda one: len(values[one]))
    other = values[not way] if is_tie else values[way]
    return way, values[way], next((text for text, value in values[way].items() if other.get(text) != value), None)


def _codes(cells: Mapping[str, int]) -> CellFormat | None:
    if not all(text.isdigit() for text in cells):
        return None
    zeros = sum(count for text, count in cells.items() if len(text) > 1 and text[0] == "0")
    return {"kind": "code"} if zeros >= max(2, _CODES_SHARE * sum(cells.values())) else None


def _numbers(cells: Mapping[str, int], *, is_comma: bool) -> CellFormat | None:
    found = {text: read for text in cells if (read := parts(text)) is not None}
    units = Counter[str]()
    for text, (_, unit, _) in found.items():
        units[unit] += cells[text]
    unit = max((one for one in units if one), key=units.__getitem__, default="")
    bodies = {text: body for text, (body, its, _) in found.items() if its in {"", unit}}
    with_marks = [text for text in bodies.values() if "." in text or "," in text]
    has_points = 0 < len(with_marks) < len(bodies) and all("." in text for text in with_marks)
    is_comma, good, unclear = _read(
        bodies, is_comma or has_points, lambda text, comma: value_of(bodies[text], "," if comma else ".")
    )
    words = _missing_words(cells, good, least=0.5)
    if words is None or (words and len(good) < _FEW_NUMBERS):
        is_plain = sum(cells[text] for text in good) >= 0.5 * sum(cells.values())
        return {"kind": "category"} if words is not None and is_plain else None
    form = {"kind": "number", "decimal": "," if is_comma else ".", "unit": unit, "missing": words}
    return form if unclear is None or {"$", "£"}.intersection(unit) else form | {"doubt": unclear}


def _missing_words(cells: Mapping[str, int], good: Collection[str], *, least: float) -> list[str] | None:
    words = [text for text in cells if text not in good]
    rows, bad = sum(cells.values()), sum(cells[text] for text in words)
    is_few = len(words) <= _FEW_WORDS or (len(words) <= _MOST_WORDS and bad <= _FEW_SHARE * rows)
    return words if good and is_few and rows - bad >= least * rows else None


def _dates(cells: Mapping[str, int], *, is_day_first: bool) -> CellFormat | None:
    some = _sample(cells)
    if sum(_date(text) is not None for text in some) < len(some) / 2:
        return None
    has_points = any("." in text for text in some)
    first, good, unclear = _read(
        cells, is_day_first or has_points, lambda text, day_first: milliseconds_of(text, is_day_first=day_first)
    )
    words = _missing_words(cells, good, least=_DATES_SHARE)
    if words is None:
        return None
    form = {"kind": "date", "day_first": first, "missing": words}
    return form if unclear is None or has_points else form | {"doubt": unclear}


def _has_decimal_comma(columns: Collection[Mapping[str, int]]) -> bool:
    for cells in columns:
        bodies = [found[0] for text in list(cells)[:_SAMPLE] if (found := parts(text)) is not None]
        points, commas = ([value_of(body, mark) is not None for body in bodies] for mark in ".,")
        if len(bodies) > len(cells) // 2 and all(commas) and not all(points):
            return True
    return False
