"""A table's target column: classes or numbers, and losses."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from search_spaces.messages import listed, shown
from trainers.protocol import TaskError
from trainers.tasks.shared.split_task import Rows
from trainers.tasks.table.columns import MOSTLY, Vector, values_of
from trainers.tasks.table.files import Table, find_column, is_number, texts

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Target:
    """Target column, with its classes in order, or a number's mean and deviation."""

    column: str
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0
    variance: float = 1.0  # of the validation rows in squared units of the target, for R2

    def __repr__(self) -> str:
        """Return the text that `DataMark` hashes. A change of this text would make stored weights unusable."""
        said = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))
        return f"_Target({', '.join(said)})"


def fit_target(
    table: Table, column: str, rows: tuple[Rows, Rows, Rows], validation: Table | None, classes: tuple[str, ...]
) -> Target:
    """Learn the target's classes, or its mean and deviation, from the training rows."""
    if classes:
        return Target(column=column, classes=classes)
    numbers = target_numbers(table, column)
    judged = numbers[rows[1]] if validation is None else target_numbers(validation, column)
    known = numbers[rows[0]]
    if known.std() == 0:
        problem = f"every training row has the same number, {known[0]:g}"
        raise TaskError(f"{table.path}: column {column!r}: {problem}. Name a target that varies")
    return Target(
        column=column,
        mean=float(known.mean()),
        deviation=float(known.std()),
        variance=float(judged.var()) or float(known.var()),
    )


_SMALLEST = 2


def fit_classes(table: Table, column: str, *, may_lack: bool = False) -> tuple[str, ...]:
    """Return a column's classes in order, by value if all are numbers. TaskError for a rare or only class."""
    labels = texts(table.columns[column])
    check_no_gap(table, column)
    counts = {one["values"]: one["counts"] for one in pc.value_counts(labels).to_pylist()}
    classes = sorted(counts, key=float if _all_numbers(counts) else str)
    if len(classes) < _SMALLEST:
        problem = f"the only label is {shown(classes[0])}. A classifier needs at least two"
        raise TaskError(f"{table.path}: column {column!r}: {problem}")
    rare = [one for one in classes if counts[one] < _SMALLEST]
    if rare:
        where = table.where(pc.index(labels, rare[0]).as_py())
        more = f" ({len(rare) - 1} other classes have one row, too)" if len(rare) > 1 else ""
        allowed = "two rows of each class, one to train on and one for validation"
        hint = "; to estimate numbers, set kind: regression" if _all_numbers(counts) else ""
        hint += f"; task_options.missing=[{', '.join(rare[:5])}] leaves such rows out" if may_lack else ""
        raise TaskError(f"{where}, column {column!r}: only this row has {shown(rare[0])}{more}. Give {allowed}{hint}")
    return tuple(classes)


def encode_classes(table: Table, column: str, classes: Sequence[str]) -> Rows:
    """Return the class of each row, int64 [rows]. Raises TaskError for an unknown label.

    Ignores a dot at the end of an unknown label, as in the test part of UCI's Adult data.
    """
    check_no_gap(table, column)
    labels = texts(table.columns[column])
    known = pa.array(classes, pa.string())
    plain = pc.if_else(pc.is_in(labels, known), labels, pc.replace_substring_regex(labels, r"\.$", ""))
    numbers = pc.index_in(plain, known)
    if numbers.null_count:
        row = pc.index(pc.is_null(numbers), True).as_py()
        problem = (
            f"found the label {shown(labels[row].as_py())}, allowed: the training data's classes, {listed(classes)}"
        )
        raise TaskError(f"{table.where(row)}, column {column!r}: {problem}")
    return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.int64)


def check_no_gap(table: Table, column: str) -> None:
    """Raise TaskError if a row has no value in the column."""
    values = table.columns[column]
    if values.null_count:
        row = pc.index(pc.is_null(values), True).as_py()
        more = f" ({values.null_count} rows have none)" if values.null_count > 1 else ""
        problem = f"no value in the target column {column!r}{more}"
        raise TaskError(f"{table.where(row)}: {problem}. Give every row a value")


def spellings(table: Table, column: str, *, merged: bool | None) -> tuple[dict[str, str], list[list[str]]]:
    """Return the label of each other spelling, and groups of labels that differ only in case and blanks.

    The most frequent spelling is the label. Labels of one repeated letter, such as the genotypes AA and Aa, are merged
    only if `merged` is true. False merges no labels.
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    for one in pc.value_counts(texts(table.columns[column]).drop_null()).to_pylist():
        groups.setdefault(folded(one["values"]), []).append((-one["counts"], one["values"]))
    several = {key: [word for _, word in sorted(group)] for key, group in groups.items() if len(group) > 1}
    chosen = {key: words[0] for key, words in several.items() if merged or (merged is None and _is_word(key))}
    labels = {word: label for key, label in chosen.items() for word in several[key]}
    return labels, list(several.values())


_UNSEEN = re.compile("[\u200b-\u200f\u2060\ufeff\u00ad]")
_WHOLE = re.compile(r"^([+-]?[0-9]+)\.0+$")


def folded(label: str) -> str:
    """Return a label without case, repeated blanks, final full stop, and the .0 of whole numbers.

    Normalises wide and composed letters (NFKC). Removes invisible characters and surrounding quotes.
    """
    plain = _UNSEEN.sub("", unicodedata.normalize("NFKC", label)).strip("'\" ")
    return " ".join(_WHOLE.sub(r"\1", plain).split()).rstrip(". ").casefold()


def _is_word(key: str) -> bool:
    return len(set(key)) > 1 or key.isdigit() or key in set("ynjmfwt")


def with_labels(table: Table, column: str, labels: Mapping[str, str]) -> Table:
    """Replace other spellings of a label by the label."""
    cells = table.columns.get(column)
    if not labels or cells is None or not pa.types.is_string(cells.type):
        return table
    plain = {folded(word): label for word, label in labels.items()}
    encoded = pc.dictionary_encode(cells)
    words = [labels.get(word, plain.get(folded(word), word)) for word in encoded.dictionary.to_pylist()]
    return replace(table, columns={**table.columns, column: pa.array(words, pa.string()).take(encoded.indices)})


def _all_numbers(words: Sequence[str] | dict[str, int]) -> bool:
    return bool(pc.all(is_number(pa.array(list(words), pa.string()))).as_py())


MOST_WHOLE_CLASSES = 20  # largest number of different whole numbers that count as classes


def mean_of_members(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    """Return each sample's loss, shape [n]: the mean over members for outputs [n, members, classes]."""
    if outputs.dim() == 2:
        return loss(outputs, targets)
    members = outputs.shape[1]
    return loss(outputs.flatten(0, 1), targets.repeat_interleave(members)).view(-1, members).mean(1)


def learned_part(targets: Tensor) -> Tensor:
    """Return the target to learn, [n]. Targets of ranked rows have more columns."""
    return targets if targets.dim() == 1 else targets[:, 0]


def query_column(table: Table, query: str | int | None, kind: str, target: str, *, is_name_first: bool) -> str | None:
    """Return the column of queries; None if rows are not ranked."""
    if query is None:
        if kind == "ranking":
            raise TaskError("task_options.query is missing: kind ranking needs the column of queries")
        return None
    if kind not in {"auto", "ranking"}:
        raise TaskError(f"task_options.kind: found {kind!r} with a query, allowed: ranking, or no query")
    column = find_column(table, query, "task_options.query", is_name_first=is_name_first)
    if column == target:
        raise TaskError(f"task_options.query: found {column!r}, the target, allowed: another column")
    return column


def target_numbers(table: Table, column: str) -> Vector:
    """Return the target as float64 [rows]. Raises TaskError for a missing number."""
    check_no_gap(table, column)
    return values_of(table, column)


def has_classes(table: Table, column: str) -> bool:
    """Return whether the target has classes: words, booleans, or a few whole numbers."""
    cells = table.columns[column]
    if pa.types.is_boolean(cells.type):
        return True
    if pa.types.is_string(cells.type) and not _is_numeric(table, column):
        numbers, present = pc.sum(is_number(cells)).as_py() or 0, len(cells) - cells.null_count
        if numbers >= MOSTLY * present and len(pc.unique(cells)) > MOST_WHOLE_CLASSES:
            values_of(table, column)
        return True
    return is_whole(table, column) and len(pc.unique(cells)) <= MOST_WHOLE_CLASSES


def is_whole(table: Table, column: str) -> bool:
    """Return whether a target has only whole numbers, which may be classes or numbers."""
    if not _is_numeric(table, column):
        return False
    values = values_of(table, column)
    known = values[~np.isnan(values)]
    return bool((known == np.round(known)).all())


def _is_numeric(table: Table, column: str) -> bool:
    cells = table.columns[column]
    if pa.types.is_string(cells.type):
        return bool(pc.all(is_number(cells)).as_py())
    return not pa.types.is_boolean(cells.type)


def feature_columns(table: Table, target: str, ignored: Sequence[str]) -> tuple[str, ...]:
    """Return the columns without target and ignored columns. Raises TaskError if no column is left."""
    features = tuple(name for name in table.names if name != target and name not in ignored)
    if not features:
        raise TaskError(f"{table.path}: there is no column beside the target {target!r}. Keep at least one")
    return features
