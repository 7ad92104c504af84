"""Meaning of the cells of a table: learned from the training file, applied to any rows of the same columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.compute as pc

from automl.standalone.cells import is_missing, reader
from trainers.tasks.table.cell_formats import READ, CellFormat, columns_of, formats_of, with_formats
from trainers.tasks.table.files import Form, Table, only_rows, table_of, texts, without_words
from trainers.tasks.table.identifiers import identifiers
from trainers.tasks.table.targets import MOST_WHOLE_CLASSES, spellings, with_labels


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Formats of columns, spellings of labels, and columns that only number the rows."""

    form: Form
    target: str
    formats: dict[str, CellFormat] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    spelt: list[list[str]] = field(default_factory=list)
    identifiers: dict[str, str] = field(default_factory=dict)

    @property
    def has_code_target(self) -> bool:
        """True if the target's digits with leading zeros are classes."""
        return self.formats.get(self.target, {}).get("kind") == "code"

    @property
    def categories(self) -> tuple[str, ...]:
        """Columns of categories that look like numbers."""
        kinds = {"code", "category"}
        return tuple(name for name, one in self.formats.items() if one["kind"] in kinds and name != self.target)

    def read(self, table: Table) -> Table:
        """Return a table with numbers and dates in place of their texts, without the rows that lack the target."""
        if self.form.reading == 1:
            return table
        table = without_words(table, self.form, kept=self.target)
        table = with_labels(with_formats(table, self.formats), self.target, self.labels)
        if (cells := table.columns.get(self.target)) is None or not 0 < cells.null_count < len(cells):
            return table
        return only_rows(table, pc.is_valid(cells).to_numpy(zero_copy_only=False))

    def rows(self, rows: Sequence[dict[str, object]], names: Sequence[str]) -> Table:
        """Return rows from Python as `read` returns a table."""
        table = table_of(rows, names, self.form)
        read = {name: form for name, form in self.formats.items() if name in names and form["kind"] in READ}
        table = without_words(table, self.form) if self.form.reading > 1 else table
        return replace(table, columns={**table.columns, **columns_of(rows, read, self.form.missing)})

    def exported(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the formats of columns that are not written plainly, for `automl.standalone.table_rows`."""
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
    """Learn the meaning of cells from the training table. Version 1, used by existing studies, learns nothing."""
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
    """Return the format of a target that is a number, or of codes; None if its texts are the classes."""
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
    except ValueError:  # infinity, which is refused with its line
        return form
    return None if is_whole and (form["unit"] or len(words) == len(texts_of_target)) else form


def usual_words(table: Table, target: str) -> Mapping[str, int]:
    """Return how many rows have a usual word for missing values as their label."""
    cells = texts(table.columns[target]).drop_null()
    return {one["values"]: one["counts"] for one in pc.value_counts(cells).to_pylist() if is_missing(one["values"])}
