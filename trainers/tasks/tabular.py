"""Rows of a CSV or Parquet file: classify them, or estimate a number, from columns of numbers and of categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.wording import listed, shown
from trainers.contract.task import Params
from trainers.tasks.shared import task_options
from trainers.tasks.shared.new_rows import check_columns, check_rows
from trainers.tasks.shared.split_task import Rows, SplitTask, check_share, part_sizes, split
from trainers.tasks.shared.trivial_models import mean_of_table, most_frequent_class
from trainers.tasks.table.columns import Matrix, fit_encoding
from trainers.tasks.table.files import Table, as_written, find_column, read_like, read_table, table_of
from trainers.tasks.table.folds import count_folds, folds_note, trained_levels, with_folds
from trainers.tasks.table.targets import (
    encode_classes,
    feature_columns,
    fit_classes,
    fit_target,
    has_classes,
    is_whole,
    learned_part,
    mean_of_members,
    query_column,
    target_numbers,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from search_spaces.space import Space

_SCALINGS = ("standard", "robust")
_KINDS = ("auto", "classification", "regression", "ranking")


class Tabular(SplitTask):
    """Learn one column of a table from the others.

    A classifier is trained by cross entropy, and measured by `val_error` and `val_accuracy`. A number is standardised,
    trained by squared error, and measured in its own units: `val_mse`, `val_mae`, and `val_r2`.
    """

    parameters = (
        *("architecture", "width", "depth", "dropout", "embedding", "bins", "waves", "wave_scale"),
        *("trees", "tree_rate", "leaves", "leaf_rows", "row_share", "column_share", "l2"),
    )
    path_options = ("train", "validation", "test")
    options_of_new_studies = MappingProxyType({"folds": "auto"})

    def __init__(
        self,
        train: str,
        target: str | int = "last",
        *,
        test: str | None = None,
        validation: str | None = None,
        kind: str = "auto",
        query: str | int | None = None,
        header: bool | str | None = None,
        delimiter: str | None = None,
        encoding: str = "utf-8",
        missing: Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        categorical: Sequence[str] = (),
        numeric: Sequence[str] = (),
        validation_share: float = 0.15,
        test_share: float = 0.0,
        folds: int | str = 1,
        scaling: str = "standard",
    ) -> None:
        """Read the files and learn from the training rows how cells become numbers.

        Args:
            target: The column to learn: its name, its number from 0, or "last".
            test: A file of the same columns, which the search never sees.
            validation: A file of the same columns; without it, `validation_share` of the training file.
            kind: "classification", "regression", "ranking", or "auto": with `query` rows are ranked, and numbers that
                are not whole, or take more than 20 values, are estimated.
            query: The column that says which rows compete with each other; the target is how relevant each is.
            header: Whether the first line names the columns; None finds out.
            delimiter: One character; None finds out.
            missing: Cells that hold nothing, besides empty ones; None takes ?, NA, nan, null and the like.
            ignore: Columns not to use.
            numeric: Columns that must be numbers.
            test_share: Share of the rows of `train` for testing, when there is no `test`.
            folds: Number of models in each trial, each of which trains on all folds but its own and is judged by that;
                1 takes a validation part instead, and "auto" 5 folds of fewer than 2,000 rows. New studies have
                "auto"; the default is that of those which were launched before they had.
            scaling: "standard" standardises numbers and cuts at 10 deviations; "robust" goes by the median and the
                quartiles, and bends what is far.

        Raises:
            TaskError: A file, an option or a cell is wrong; one line.
        """
        self._form = task_options.form(delimiter=delimiter, header=header, encoding=encoding, missing=missing)
        task_options.choice(kind, "kind", _KINDS)
        is_robust = task_options.choice(scaling, "scaling", _SCALINGS) == "robust"
        shares = {
            "validation": check_share(validation_share, "validation_share", lowest=0.001),
            "test": check_share(test_share, "test_share", lowest=0.0),
        }
        wanted = {
            name: task_options.names(value, name)
            for name, value in (("ignore", ignore), ("categorical", categorical), ("numeric", numeric))
        }
        paths = {"train": train, "validation": validation, "test": test}
        table, others = self._read_all(
            {name: task_options.path(path, name) for name, path in paths.items() if path is not None}, target
        )
        column = find_column(table, target, "task_options.target")
        columns = {
            name: [find_column(table, one, f"task_options.{name}") for one in names] for name, names in wanted.items()
        }
        self._columns, self._written = table.names, as_written(table.form)
        self._query = query_column(table, query, kind, column)
        own = () if self._query is None else (self._query,)
        self._features = feature_columns(table, column, (*columns["ignore"], *own))
        is_open = kind == "auto" and self._query is None
        self._is_classifier = kind == "classification" or (is_open and has_classes(table, column))
        self._could_be_either = is_open and is_whole(table, column)
        classes = fit_classes(table, column) if self._is_classifier else ()
        labels = encode_classes(table, column, classes) if classes else None
        shares |= dict.fromkeys(others, 0.0)
        self._folds = count_folds(
            folds, rows=len(table), has_validation="validation" in others, is_ranked=self._query is not None
        )
        rows = self._split(table, labels, shares | ({"validation": 0.0} if self._folds > 1 else {}))
        rows = (rows[0], rows[0], rows[2]) if self._folds > 1 else rows
        self.encoding = fit_encoding(
            table,
            rows[0],
            self._features,
            as_numbers=columns["numeric"],
            as_categories=columns["categorical"],
            is_robust=is_robust,
        )
        self._target = fit_target(table, column, rows, others.get("validation"), classes)
        self._parts = self._encode_parts(table, rows, others)
        if self._folds > 1:
            self._parts = with_folds(self._parts, None if labels is None else labels[rows[0]], self._folds)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names that `metrics` gives."""
        if self._is_classifier:
            return ("val_error", "val_accuracy")
        return ("val_mse", "val_mae", "val_r2") if self._query is None else ("val_ndcg", "val_mse", "val_mae")

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
            if self._query is None
            else f"how relevant a row is among those with the same {self._query!r}"
        )
        cure = f" (--set task_options.kind={other} if that is wrong)" if self._could_be_either else ""
        dates = sum(number.is_date for number in self.encoding.numbers)
        kinds = f"{len(self.encoding.numbers)} of numbers" + (f" ({dates} dates)" if dates else "")
        left_out = ", ".join(f"{shown(name)} ({why})" for name, why in self.encoding.left_out.items())
        return (
            f"target: column {column!r}, {what}{cure}",
            f"columns: {kinds}, {len(self.encoding.categories)} of categories"
            + (f"; left out: {left_out}" if left_out else ""),
            f"rows: {part_sizes(self._parts)}",
            *([folds_note(self._folds)] if self._folds > 1 else []),
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
        plain = {"kind": "table", "known": list(self._columns), "missing": list(self._form.missing)}
        return plain | self._written | self.encoding.form()

    def postprocessing(self) -> dict[str, Any]:
        """Return what `decode` does to outputs, as plain values."""
        if self._is_classifier:
            return {"kind": "classes", "labels": list(self.classes)}
        return {"kind": "number", "mean": self._target.mean, "deviation": self._target.deviation, "error": "val_mse"}

    def model(self, params: Params) -> nn.Module:
        """Return the model that `architecture` names, or one for each fold; outputs [n, classes], or [n] standardised.

        Raises:
            TaskError: There is no such architecture.
        """
        from trainers.tasks.table.table_networks import fold_model, tabular_model

        rows, outputs = self._parts["train"][0], len(self.classes) or None
        models = [
            tabular_model(params, self.encoding, rows, levels=levels, outputs=outputs, target=self._target)
            for levels in self._trained_levels
        ]
        if self._folds == 1:
            return models[0]

        return fold_model(models, columns=self.encoding.columns, is_number=not self.classes)

    @cached_property
    def _trained_levels(self) -> NDArray[np.bool_]:
        """Levels of categories that each model's training rows have, counted once: a trial may count many models."""
        return trained_levels(self._parts["train"][0], self.encoding, self._folds)

    def new_rows(self, inputs: Tensor) -> Tensor:
        """Return inputs of any part as `encode` gives those of new rows: without the fold of each row."""
        return inputs[:, : self.encoding.columns]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's cross entropy in nats, or squared error of the standardised number; shape [n].

        Members of an ensemble that trains, in a second dimension, count by the mean of their losses.
        """
        if not self._is_classifier:
            targets = learned_part(targets)
            return outputs.sub(targets.view(-1, *[1] * (outputs.dim() - 1))).square().view(len(targets), -1).mean(1)
        return mean_of_members(super().loss, outputs, targets)

    def smoothed_loss(self, outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Return each sample's cross entropy with smoothed targets, see `BaseTask.smoothed_loss`; shape [n]."""
        return mean_of_members(partial(super().smoothed_loss, smoothing=smoothing), outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return each metric of each sample, shape [n].

        The mean of `val_r2` over the validation rows is 1 - squared error / variance of those rows.
        """
        if self._is_classifier:
            return super().metrics(outputs, targets)
        error = (outputs - learned_part(targets)).double() * self._target.deviation
        squared = error.square()
        if self._query is not None:
            return {"val_mse": squared, "val_mae": error.abs()}
        return {"val_mse": squared, "val_mae": error.abs(), "val_r2": 1 - squared / self._target.variance}

    def whole_metrics(self, _params: Params) -> dict[str, Any]:
        """Return what ranks are judged by, if rows are ranked: the mean over queries, and no mean over rows."""
        if self._query is None:
            return {}
        from trainers.tasks.table.ranking import Ndcg

        return {"val_ndcg": Ndcg()}

    def space(self) -> Space:
        """Return the default search space; batches are such that an epoch has some steps."""
        from trainers.tasks.table.table_space import tabular_space

        return tabular_space(self.training_samples)

    def first_trials(self) -> list[dict[str, Any]]:
        """Return parameters known to be good on most tables, the usual baseline first."""
        from trainers.tasks.table.table_space import tabular_first_trials

        return tabular_first_trials(self.training_samples)

    def baselines(self) -> list[dict[str, Any]]:
        """Return the usual baseline, boosted trees with usual parameters, and the answer that looks at no column."""
        from trainers.tasks.table.table_space import tabular_baselines

        training, validation = self._parts["train"][1], self._parts["validation"][1]
        trivial = (
            most_frequent_class(training, validation)
            if self._is_classifier
            else mean_of_table(validation, self._target, is_ranked=self._query is not None)
        )
        return [*tabular_baselines(), trivial]

    def _read_all(self, paths: Mapping[str, str], target: str | int) -> tuple[Table, dict[str, Table]]:
        """Return the training table, and the others with its columns."""
        train = read_table(paths["train"], self._form, expected=[target] if isinstance(target, str) else [])
        return train, {name: read_like(train, path, self._form) for name, path in paths.items() if name != "train"}

    def _split(self, table: Table, labels: Rows | None, shares: Mapping[str, float]) -> tuple[Rows, Rows, Rows]:
        if self._query is None:
            return split(labels, len(table), validation=shares["validation"], test=shares["test"])
        from trainers.tasks.table.ranking import queries_of, split_queries

        queries = queries_of(table, self._query)
        return split_queries(queries, validation=shares["validation"], test=shares["test"])

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
        numbers = target_numbers(table, self._target.column)
        standardised = ((numbers - self._target.mean) / self._target.deviation).astype(np.float32)
        if self._query is None:
            return standardised
        from trainers.tasks.table.ranking import ranking_targets

        return ranking_targets(standardised, numbers, table, column=self._target.column, query=self._query)
