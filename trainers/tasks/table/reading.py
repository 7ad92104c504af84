"""Meaning of a table's cells, learned from the training file and applied to any rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from automl.standalone.cells import is_missing, reader
from trainers.tasks.table.cell_formats import READ, CellFormat, columns_of, formats_of, with_formats
from trainers.tasks.table.columns import Vector
from trainers.tasks.table.files import Form, Table, holds_numbers, is_number, only_rows, table_of, texts, without_words
from trainers.tasks.table.targets import MOST_WHOLE_CLASSES, spellings, with_labels


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Formats of columns, spellings of labels, and columns that number rows."""

    form: Form
    target: str
    formats: dict[str, CellFormat] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    spelt: list[list[str]] = field(default_factory=list)
    identifiers: dict[str, str] = field(default_factory=dict)

    @property
    def has_code_target(self) -> bool:
        """Return whether the target is a code, such as digits with leading zeros, and so a class."""
        return self.formats.get(self.target, {}).get("kind") == "code"

    @property
    def categories(self) -> tuple[str, ...]:
        """Columns of categories that look like numbers."""
        kinds = {"code", "category"}
        return tuple(name for name, one in self.formats.items() if one["kind"] in kinds and name != self.target)

    def read(self, table: Table) -> Table:
        """Return a table with numbers and dates instead of texts, without rows without a target."""
        if self.form.reading == 1:
            return table
        table = without_words(table, self.form, kept=self.target)
        table = with_labels(with_formats(table, self.formats), self.target, self.labels)
        if (cells := table.columns.get(self.target)) is None or not 0 < cells.null_count < len(cells):
            return table
        return only_rows(table, pc.is_valid(cells).to_numpy(zero_copy_only=False))

    def rows(self, rows: Sequence[dict[str, object]], names: Sequence[str]) -> Table:
        """Return a table from rows of Python values, as `read` does."""
        table = table_of(rows, names, self.form)
        read = {name: form for name, form in self.formats.items() if name in names and form["kind"] in READ}
        table = without_words(table, self.form) if self.form.reading > 1 else table
        return replace(table, columns={**table.columns, **columns_of(rows, read, self.form.missing)})

    def exported(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the formats of unusual numbers and dates, for `automl.standalone.table_rows`."""
        keys = ("kind", "decimal", "unit", "day_first", "missing")
        cells = {
            name: {key: form[key] for key in keys if key in form}
            for name, form in self.formats.items()
            if name in names and form["kind"] in READ and "plain" not in form
        }
        return {"cells": cells} if cells else {}


def learn_reading(
    table: Table,
    form: Form,
    target: str,
    features: Sequence[str],
    *,
    kind: str,
    numeric: Sequence[str],
    categorical: Sequence[str],
    decimal: str | None,
    is_day_first: bool | None,
    is_merged: bool | None,
) -> Reading:
    """Learn the meaning of cells from the training table. Version 1, for existing studies, learns nothing."""
    plain = Reading(form=form, target=target)
    if form.reading == 1:
        return plain
    cleaned = without_words(table, form, kept=target)
    names = [name for name in features if name not in categorical]
    formats = formats_of(cleaned, [*names, target], decimal=decimal, is_day_first=is_day_first)
    of_target = _format_of_target(cleaned.columns[target], formats.pop(target, None), kind)
    given = {"number": decimal, "date": is_day_first}
    formats = {
        name: {key: value for key, value in one.items() if key != "doubt" or given.get(one["kind"]) is None}
        for name, one in formats.items()
        if not (name in numeric and one["kind"] not in READ)
    }
    formats |= {} if of_target is None else {target: of_target}
    labels, spelt = ({}, []) if of_target is not None else spellings(cleaned, target, merged=is_merged)
    known = replace(plain, formats=formats, labels=labels, spelt=spelt)
    rows = known.read(table)
    dates = {name for name, one in formats.items() if one["kind"] == "date"}
    own = [name for name in features if name not in {*numeric, *categorical, *dates}]
    return replace(known, identifiers=identifiers(rows, own, others=len(features) - len(own)))


def _format_of_target(cells: Any, form: CellFormat | None, kind: str) -> CellFormat | None:
    if form is None or form["kind"] == "code":
        return form
    if form["kind"] != "number" or form["missing"] or kind == "classification":
        return None
    texts_of_target = pc.unique(cells.drop_null()).to_pylist()
    words = [text for text in texts_of_target if not is_missing(text)]
    if kind != "auto" or len(words) > MOST_WHOLE_CLASSES:
        return form
    read = reader(form)
    try:
        is_whole = all(float(read(word) or 0).is_integer() for word in words)
    except ValueError:  # infinity, which is refused later with its line
        return form
    return None if is_whole and (form["unit"] or len(words) == len(texts_of_target)) else form


def usual_words(table: Table, target: str) -> Mapping[str, int]:
    """Return the numbers of rows of labels that usually mean a missing value."""
    cells = texts(table.columns[target]).drop_null()
    return {one["values"]: one["counts"] for one in pc.value_counts(cells).to_pylist() if is_missing(one["values"])}


_FEWEST = 20  # number of rows below which different numbers may be chance
_DENSE, _DENSE_IN_ORDER = 2.0, 20.0
"""Limits for the range of row numbers per row, for rows drawn from a larger table."""
_MOST_BLOCKS, _FEW_BLOCKS = 10, 3
"""Limits for restarts of row numbers: in the file's order or without a column name, and in any order."""
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
"""Names of quantities, which may grow with the rows."""


def identifier(table: Table, name: str) -> str | None:
    """Return the reason why a column only numbers or names the rows, and would teach the file's order, or None."""
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
    """Return the columns that only number or name the rows, with reasons; {} if no other column would be left."""
    found = {name: why for name in names if (why := identifier(table, name)) is not None}
    return found if len(found) < len(names) + others else {}
