"""What all tasks that read the user's files share: samples in parts, classes, and the mark of the data in a model."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor, nn

from search_spaces.wording import listed, shown
from trainers.protocol import NoTestPartError, TaskError
from trainers.task import BaseTask, Params
from trainers.tasks.parts.tables import Table, is_number, texts

if TYPE_CHECKING:
    from torch import Tensor


class DataMark(nn.Module):
    """Refuses weights that belong to rows encoded in another way.

    What cells and tokens mean is learned from the training file each time a task is made. If that file has changed, a
    checkpoint or an exported model would take new numbers for old ones, and answer nonsense without a sign of it.
    """

    digest: Tensor

    def __init__(self, *meaning: object) -> None:
        """Remember what decides the encoding: values whose repr says all of it."""
        super().__init__()
        self.register_buffer("digest", torch.tensor(zlib.crc32(repr(meaning).encode())))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Add to the errors of `load_state_dict`, the last argument, if the marks differ."""
        loaded = state_dict.get(f"{prefix}digest")
        if loaded is not None and int(loaded) != int(self.digest):
            rest[-1].append(
                "the training data have changed since these weights were trained, and are encoded otherwise"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)


_SMALLEST = 2


def fit_classes(table: Table, column: str) -> tuple[str, ...]:
    """Return the classes of a label column: sorted, as numbers if all are.

    Raises:
        TaskError: A label is missing, there are fewer than two classes, or one of them has a single row.
    """
    labels = texts(table.columns[column])
    check_no_gap(table, column)
    counts = {one["values"]: one["counts"] for one in pc.value_counts(labels).to_pylist()}
    classes = sorted(counts, key=_sort_key(counts))
    if len(classes) < _SMALLEST:
        problem = f"found one label only, {shown(classes[0])}, allowed: at least two classes"
        raise TaskError(f"{table.path}: column {column!r}: {problem}")
    rare = [one for one in classes if counts[one] < _SMALLEST]
    if rare:
        where = table.where(pc.index(labels, rare[0]).as_py())
        more = f", like {len(rare) - 1} other classes" if len(rare) > 1 else ""
        allowed = "two rows of each class, one to train on and one for validation"
        hint = "; for numbers to be estimated, kind: regression" if _all_numbers(counts) else ""
        raise TaskError(
            f"{where}, column {column!r}: found {shown(rare[0])} in this row only{more}, allowed: {allowed}{hint}"
        )
    return tuple(classes)


def encode_classes(table: Table, column: str, classes: Sequence[str]) -> Rows:
    """Return the class of each row, int64 [rows].

    A label that is no class but is one without the dot at its end counts as that: the test part of UCI's Adult data
    is written that way.

    Raises:
        TaskError: A label is missing, or no class.
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
    """Check that every row has a value.

    Raises:
        TaskError: The first row that has none, and how many there are.
    """
    values = table.columns[column]
    if values.null_count:
        row = pc.index(pc.is_null(values), True).as_py()
        more = f" ({values.null_count} rows have none)" if values.null_count > 1 else ""
        problem = f"found no value in the target column {column!r}{more}"
        raise TaskError(f"{table.where(row)}: {problem}, allowed: a value in every row")


def _all_numbers(words: Sequence[str] | dict[str, int]) -> bool:
    return bool(pc.all(is_number(pa.array(list(words), pa.string()))).as_py())


def _sort_key(words: dict[str, int]) -> Callable[[str], Any]:
    return float if _all_numbers(words) else str


Rows = np.ndarray[Any, np.dtype[np.int64]]
"""Indices of rows, int64 [n], ascending."""

_SEED = 0


def split(classes: Rows | None, rows: int, *, validation: float, test: float = 0.0) -> tuple[Rows, Rows, Rows]:
    """Return the rows for training, validation and testing.

    Args:
        classes: Class of each row, int64 [rows], of which each part gets its share; None to draw from all alike.
        rows: Number of rows.
        validation: Share of the rows, from 0 to 1.
        test: Share of the rows, from 0 to 1.

    Raises:
        TaskError: Too few rows for a part that should have some.
    """
    order = np.random.default_rng(_SEED).permutation(rows)
    groups = [order] if classes is None else [order[classes[order] == one] for one in np.unique(classes)]
    parts: tuple[list[Rows], list[Rows], list[Rows]] = ([], [], [])
    for group in groups:
        for_validation = _counts(len(group), validation)
        for_test = min(_counts(len(group), test), len(group) - for_validation - 1)
        parts[1].append(group[:for_validation])
        parts[2].append(group[for_validation : for_validation + for_test])
        parts[0].append(group[for_validation + for_test :])
    joined = tuple(np.sort(np.concatenate(part)).astype(np.int64) for part in parts)
    if len(joined[0]) == 0 or (validation > 0 and len(joined[1]) == 0):
        raise TaskError(f"found {rows} rows, of which none is left for training or validation; allowed: more rows")
    return joined[0], joined[1], joined[2]


def _counts(rows: int, share: float) -> int:
    """Return how many of a group's rows are a part: at least one if there should be any, and never all."""
    return min(max(1, round(rows * share)), rows - 1) if share > 0 else 0


def part_sizes(parts: Mapping[str, tuple[Any, Any]]) -> str:
    """Return how many rows each part has, in words."""
    uses = {"train": "to train on", "validation": "for validation", "test": "for testing, never seen by the search"}
    return ", ".join(f"{len(parts[name][1])} {use}" for name, use in uses.items() if name in parts)


def check_share(value: float, name: str, *, lowest: float) -> float:
    """Return a share of the rows.

    Raises:
        TaskError: It is no number from `lowest` up to 0.5.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= 0.5:
        raise TaskError(f"task_options.{name}: found {value!r}, allowed: a number from {lowest:g} to 0.5")
    return float(value)


class SplitTask(BaseTask):
    """A task whose constructor has split its samples; each task's `encode` says what one looks like.

    Attributes:
        no_test: Message of the error when there are no test samples.
    """

    no_test = "found no test rows, allowed: a file in task_options.test, or a share in test_share"
    _parts: Mapping[str, Any]
    """Inputs and targets as arrays, first dimension samples, of "train", "validation" and, if there is one, "test"."""

    @property
    def training_samples(self) -> int:
        """How many samples there are to train on."""
        return len(self._parts["train"][1])

    def train_data(self, _params: Params) -> tuple[Tensor, Tensor]:
        """Return the training samples [n, ...] and their targets [n]: int64 classes, or float32 numbers."""
        return self._part("train")

    def validation_data(self, _params: Params) -> tuple[Tensor, Tensor]:
        """Return the validation samples, as `train_data`."""
        return self._part("validation")

    def test_data(self, _params: Params) -> tuple[Tensor, Tensor]:  # noqa: PT019 - no test of pytest
        """Return the test samples, as `train_data`.

        Raises:
            NoTestPartError: There are none.
        """
        if "test" not in self._parts:
            raise NoTestPartError(self.no_test)
        return self._part("test")

    def _part(self, name: str) -> tuple[Tensor, Tensor]:
        import torch

        inputs, targets = self._parts[name]
        return torch.from_numpy(inputs), torch.from_numpy(targets)
