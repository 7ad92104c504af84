"""Rows of a CSV or Parquet file: classify them, or estimate a number, from columns of numbers and of categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from search_spaces.wording import listed, shown
from trainers.protocol import TaskError
from trainers.task import Params
from trainers.tasks.parts import options
from trainers.tasks.parts.columns import MOSTLY, Matrix, Vector, bin_edges, fit_encoding, values_of
from trainers.tasks.parts.labels import check_no_gap, encode_classes, fit_classes
from trainers.tasks.parts.new_rows import check_columns, check_rows
from trainers.tasks.parts.split_task import SplitTask
from trainers.tasks.parts.splits import Rows, check_share, part_sizes, split
from trainers.tasks.parts.tables import Table, find_column, is_number, read_like, read_table, table_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from search_spaces.space import Space

_KINDS = ("auto", "classification", "regression")
_MOST_WHOLE_CLASSES = 20
"""A target of whole numbers with more different values than this is one to estimate."""
_BATCHES = (16, 32, 64, 128, 256, 512)
_STEPS_AN_EPOCH = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class _Target:
    """The column to learn, and its scale.

    Attributes:
        column: Name of the column.
        classes: Class labels, sorted; empty for a number.
        mean: Mean of the training rows' numbers.
        deviation: Standard deviation of the training rows' numbers.
        variance: Variance of the validation rows' numbers in squared units of the target; what R2 compares with.
    """

    column: str
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0
    variance: float = 1.0


class Tabular(SplitTask):
    """Learn one column of a table from the others.

    A classifier is trained by cross entropy, and measured by `val_error` and `val_accuracy`. A number is standardised,
    trained by squared error, and measured in its own units: `val_mse`, `val_mae`, and `val_r2`.
    """

    parameters = ("architecture", "width", "depth", "dropout", "embedding", "bins")
    path_options = ("train", "validation", "test")

    def __init__(
        self,
        train: str,
        target: str | int = "last",
        *,
        test: str | None = None,
        validation: str | None = None,
        kind: str = "auto",
        header: bool | str | None = None,
        delimiter: str | None = None,
        encoding: str = "utf-8",
        missing: Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        categorical: Sequence[str] = (),
        numeric: Sequence[str] = (),
        validation_share: float = 0.15,
        test_share: float = 0.0,
    ) -> None:
        """Read the files and learn from the training rows how cells become numbers.

        Args:
            train: A CSV, TSV or Parquet file.
            target: The column to learn: its name, its number from 0, or "last".
            test: A file of the same columns, which the search never sees.
            validation: A file of the same columns; without it, `validation_share` of the training file.
            kind: "classification", "regression", or "auto": numbers that are not whole, or take more than 20 values,
                are estimated.
            header: Whether the first line names the columns; None finds out.
            delimiter: One character; None finds out.
            encoding: Encoding of text files.
            missing: Cells that hold nothing, besides empty ones; None takes ?, NA, nan, null and the like.
            ignore: Columns not to use.
            categorical: Columns of numbers that are categories.
            numeric: Columns that must be numbers.
            validation_share: Share of the rows of `train` for validation.
            test_share: Share of the rows of `train` for testing, when there is no `test`.

        Raises:
            TaskError: A file, an option or a cell is wrong; one line.
        """
        self._form = options.form(delimiter=delimiter, header=header, encoding=encoding, missing=missing)
        options.choice(kind, "kind", _KINDS)
        shares = {
            "validation": check_share(validation_share, "validation_share", lowest=0.001),
            "test": check_share(test_share, "test_share", lowest=0.0),
        }
        wanted = {
            name: options.names(value, name)
            for name, value in (("ignore", ignore), ("categorical", categorical), ("numeric", numeric))
        }
        paths = {"train": train, "validation": validation, "test": test}
        table, others = self._read_all(
            {name: options.path(path, name) for name, path in paths.items() if path is not None}, target
        )
        column = find_column(table, target, "task_options.target")
        columns = {
            name: [find_column(table, one, f"task_options.{name}") for one in names] for name, names in wanted.items()
        }
        self._columns = table.names
        self._features = _features(table, column, columns["ignore"])
        self._is_classifier = kind == "classification" or (kind == "auto" and _has_classes(table, column))
        self._could_be_either = kind == "auto" and _is_whole(table, column)
        classes = fit_classes(table, column) if self._is_classifier else ()
        labels = encode_classes(table, column, classes) if classes else None
        shares |= dict.fromkeys(others, 0.0)
        rows = split(labels, len(table), validation=shares["validation"], test=shares["test"])
        self.encoding = fit_encoding(
            table, rows[0], self._features, as_numbers=columns["numeric"], as_categories=columns["categorical"]
        )
        self._target = _fit_target(table, column, rows, others.get("validation"), classes)
        self._parts = self._encode_parts(table, rows, others)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names that `metrics` gives."""
        return ("val_error", "val_accuracy") if self._is_classifier else ("val_mse", "val_mae", "val_r2")

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, in the order of the model's outputs; empty for a number."""
        return self._target.classes

    def describe(self) -> tuple[str, ...]:
        """Return what was found in the files, one line each."""
        column, other = self._target.column, "classification" if not self.classes else "regression"
        what = (
            f"{len(self.classes)} classes, {listed(map(shown, self.classes))}"
            if self.classes
            else "a number to estimate"
        )
        cure = f" (--set task_options.kind={other} if that is wrong)" if self._could_be_either else ""
        dates = sum(number.is_date for number in self.encoding.numbers)
        kinds = f"{len(self.encoding.numbers)} of numbers" + (f" ({dates} dates)" if dates else "")
        left_out = ", ".join(f"{name} ({why})" for name, why in self.encoding.left_out.items())
        return (
            f"target: column {column!r}, {what}{cure}",
            f"columns: {kinds}, {len(self.encoding.categories)} of categories"
            + (f"; left out: {left_out}" if left_out else ""),
            f"rows: {part_sizes(self._parts)}",
        )

    def encode(self, rows: Sequence[Mapping[str, object]] | str | Path) -> Tensor:
        """Return new rows as the model takes them, float32 [n, columns].

        Args:
            rows: A list of mappings from column to value, or a file; target and ignored columns may be absent. A
                mapping says None for a value that is missing.

        Raises:
            TaskError: A column is unknown or absent, or a cell of a column of numbers is no number.
        """
        import torch

        needed = [name for name in self._features if name not in self.encoding.left_out]
        if isinstance(rows, str | Path):
            table = read_table(rows, self._form, expected=self._features)
            check_columns(str(table.path), table.names, known=self._columns, needed=needed)
        else:
            check_rows(rows, known=self._columns, needed=needed)
            table = table_of([dict(row) for row in rows], self._features, self._form)
        return torch.from_numpy(self.encoding.encode(table))

    def decode(self, outputs: Tensor) -> list[str] | list[float]:
        """Return what the model's outputs say: labels, or numbers in the units of the target."""
        if self._is_classifier:
            return [self.classes[index] for index in outputs.argmax(dim=-1).tolist()]
        return [value * self._target.deviation + self._target.mean for value in outputs.tolist()]

    def preprocessing(self) -> dict[str, Any]:
        """Return what `encode` does to a row, as plain values."""
        return {
            "kind": "table",
            "known": list(self._columns),
            "missing": list(self._form.missing),
        } | self.encoding.form()

    def postprocessing(self) -> dict[str, Any]:
        """Return what `decode` does to outputs, as plain values."""
        if self._is_classifier:
            return {"kind": "classes", "labels": list(self.classes)}
        return {"kind": "number", "mean": self._target.mean, "deviation": self._target.deviation, "error": "val_mse"}

    def model(self, params: Params) -> nn.Module:
        """Return the network that `architecture` names; outputs [n, classes], or [n] standardised numbers."""
        from trainers.tasks.parts.tabular_network import TabularNetwork

        bins = cast("int", params.get("bins", 16))
        numbers = len(self.encoding.numbers)
        edges = bin_edges(self._parts["train"][0][:, :numbers], bins) if bins and numbers else None
        return TabularNetwork(
            dense=self.encoding.dense,
            category_sizes=[category.size for category in self.encoding.categories],
            edges=edges,
            outputs=len(self.classes) or None,
            is_residual=params.get("architecture", "mlp") == "residual",
            width=cast("int", params.get("width", 128)),
            depth=cast("int", params.get("depth", 2)),
            dropout=cast("float", params.get("dropout", 0.1)),
            embedding=cast("int", params.get("embedding", 8)),
            meaning=(self.encoding.numbers, self.encoding.categories, self._target),
        )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's cross entropy in nats, or squared error of the standardised number; shape [n]."""
        return super().loss(outputs, targets) if self._is_classifier else (outputs - targets).square()

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return each metric of each sample, shape [n].

        The mean of `val_r2` over the validation rows is 1 - squared error / variance of those rows.
        """
        if self._is_classifier:
            return super().metrics(outputs, targets)
        error = (outputs - targets).double() * self._target.deviation
        squared = error.square()
        return {"val_mse": squared, "val_mae": error.abs(), "val_r2": 1 - squared / self._target.variance}

    def space(self) -> Space:
        """Return the default search space; batches are such that an epoch has some steps."""
        from search_spaces.parameters import Categorical, Float, Int
        from search_spaces.space import Space

        rows = len(self._parts["train"][1])
        batches = [batch for batch in _BATCHES if batch * _STEPS_AN_EPOCH <= rows][-2:] or [_BATCHES[0]]
        return Space(
            {
                "learning_rate": Float(low=2e-4, high=5e-3, log=True),
                "batch_per_rank": Categorical(batches),
                "optimizer": Categorical(["adamw"]),
                "weight_decay": Float(low=1e-5, high=1e-1, log=True),
                "architecture": Categorical(["mlp", "residual"]),
                "width": Int(low=64, high=384, log=True),
                "depth": Int(low=1, high=4),
                "dropout": Float(low=0.0, high=0.5),
                "embedding": Int(low=4, high=24, log=True),
                "bins": Categorical([0, 16, 48]),
            }
        )

    def _read_all(self, paths: Mapping[str, str], target: str | int) -> tuple[Table, dict[str, Table]]:
        """Return the training table, and the others with its columns."""
        train = read_table(paths["train"], self._form, expected=[target] if isinstance(target, str) else [])
        return train, {name: read_like(train, path, self._form) for name, path in paths.items() if name != "train"}

    def _encode_parts(
        self, table: Table, rows: tuple[Rows, Rows, Rows], others: Mapping[str, Table]
    ) -> dict[str, tuple[Matrix, Any]]:
        inputs, targets = self.encoding.encode(table), self._targets(table)
        own = zip(("train", "validation", "test"), rows, strict=True)
        parts = {name: (inputs[chosen], targets[chosen]) for name, chosen in own if len(chosen)}
        return parts | {name: (self.encoding.encode(one), self._targets(one)) for name, one in others.items()}

    def _targets(self, table: Table) -> Any:
        if self.classes:
            return encode_classes(table, self._target.column, self.classes)
        numbers = _numbers(table, self._target.column)
        return ((numbers - self._target.mean) / self._target.deviation).astype(np.float32)


def _numbers(table: Table, column: str) -> Vector:
    check_no_gap(table, column)
    return values_of(table, column)


def _fit_target(
    table: Table, column: str, rows: tuple[Rows, Rows, Rows], validation: Table | None, classes: tuple[str, ...]
) -> _Target:
    """Learn the target's classes or its scale.

    Raises:
        TaskError: A row has no target, or the number is the same in every training row.
    """
    if classes:
        return _Target(column=column, classes=classes)
    numbers = _numbers(table, column)
    judged = numbers[rows[1]] if validation is None else _numbers(validation, column)
    known = numbers[rows[0]]
    if known.std() == 0:
        problem = f"found the same number, {known[0]:g}, in every training row"
        raise TaskError(f"{table.path}: column {column!r}: {problem}, allowed: a target that varies")
    return _Target(
        column=column,
        mean=float(known.mean()),
        deviation=float(known.std()),
        variance=float(judged.var()) or float(known.var()),
    )


def _has_classes(table: Table, column: str) -> bool:
    """Whether the target is a class: a word, a boolean, or one of a few whole numbers.

    Raises:
        TaskError: It is a column of many numbers in which a word slipped.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = table.columns[column]
    if pa.types.is_boolean(cells.type):
        return True
    if pa.types.is_string(cells.type) and not _is_numeric(table, column):
        numbers, present = pc.sum(is_number(cells)).as_py() or 0, len(cells) - cells.null_count
        if numbers >= MOSTLY * present and len(pc.unique(cells)) > _MOST_WHOLE_CLASSES:
            values_of(table, column)
        return True
    return _is_whole(table, column) and len(pc.unique(cells)) <= _MOST_WHOLE_CLASSES


def _is_whole(table: Table, column: str) -> bool:
    """Whether a target could be classes as well as a number."""
    if not _is_numeric(table, column):
        return False
    values = values_of(table, column)
    known = values[~np.isnan(values)]
    return bool((known == np.round(known)).all())


def _is_numeric(table: Table, column: str) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = table.columns[column]
    if pa.types.is_string(cells.type):
        return bool(pc.all(is_number(cells)).as_py())
    return not pa.types.is_boolean(cells.type)


def _features(table: Table, target: str, ignored: Sequence[str]) -> tuple[str, ...]:
    features = tuple(name for name in table.names if name != target and name not in ignored)
    if not features:
        raise TaskError(f"{table.path}: found no column beside the target {target!r}, allowed: at least one")
    return features
