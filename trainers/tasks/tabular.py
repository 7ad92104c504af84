"""Classification, regression or ranking of rows in CSV or Parquet files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.messages import listed, shown
from trainers.contract.task import Params
from trainers.protocol import STDERR, TaskError
from trainers.tasks.shared import task_options
from trainers.tasks.shared.split_task import Rows, Share, SplitTask, part_sizes, parts_of, shares_of, split
from trainers.tasks.shared.task_options import check_columns, check_rows
from trainers.tasks.shared.trivial_models import mean_of_table, most_frequent_class
from trainers.tasks.table.columns import Encoding, Matrix, fit_encoding
from trainers.tasks.table.files import Table, as_written, find_column, read_like, read_table
from trainers.tasks.table.reading import learn_reading
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
_NUMBER_METRICS = ("val_rmse", "val_mse", "val_mae", "val_r2")
_RANKING_METRICS = ("val_ndcg", "val_mse", "val_mae")
_KINDS = ("auto", "classification", "regression", "ranking")


class Tabular(SplitTask):
    """Learns one column of a table from the other columns.

    A classifier's loss is the cross entropy; `SplitTask` lists its metrics. A number is standardised, and its loss is
    the squared error; `val_rmse`, `val_mse`, `val_mae` and `val_r2` are in the number's own units.
    """

    parameters = (
        *("architecture", "width", "depth", "dropout", "embedding", "bins", "waves", "wave_scale"),
        *("trees", "tree_rate", "leaves", "leaf_rows", "row_share", "column_share", "l2"),
    )
    path_options = ("train", "validation", "test")
    options_of_new_studies = MappingProxyType({"folds": "auto", "reading": 2, "test_share": "auto"})

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
        test_share: Share = 0.0,
        folds: int | str = 1,
        class_weight: str | None = None,
        scaling: str = "standard",
        decimal: str | None = None,
        day_first: bool | None = None,
        merge_spellings: bool | None = None,
        reading: int = 1,
    ) -> None:
        """Read the files, and learn the encoding of cells from the training rows. Raises TaskError.

        Args:
            target: Column to learn: its name, its number from 0, or "last".
            test: File with the same columns for testing, which the search never uses.
            validation: File with the same columns; default: `validation_share` of the training file.
            kind: "classification", "regression", "ranking", or "auto": `query` means ranking; fractions, and more than
                20 different whole numbers, mean regression.
            query: Column that groups rows for ranking; the target is each row's relevance.
            header: True if the first line names the columns; None detects it.
            delimiter: One character; None detects it.
            missing: Words for missing values, besides empty cells; default ?, NA, nan, null and similar words.
            ignore: Columns not to use.
            numeric: Columns that must be numbers.
            test_share: Share of the rows of `train` for testing without `test`; "auto" takes 15 % of at least 2,000
                rows, and at most 5,000 rows.
            folds: Number of models in each trial, each trained on all folds but its own, which evaluates it; 1 means
                a separate validation part, "auto" (default of new studies) 5 folds below 2,000 rows.
            class_weight: "balanced" weights each class in the loss by 1 / its number of training rows.
            scaling: "standard" standardises numbers and cuts at 10 deviations; "robust" uses median and quartiles, and
                bends.
            decimal: "," or "." for columns that can be read with either.
            day_first: True to read 3/5/2024 as 3 May, in columns that can be read in both ways.
            merge_spellings: False to keep labels apart that differ only in case and blanks.
            reading: 1 reads files as existing studies do. 2 also reads numbers and dates as people write them, leaves
                out row numbers and rows without a target, and lets `missing` add to the usual words.
        """
        task_options.whole(reading, "reading", low=1, high=2)
        self._form = task_options.form(
            delimiter=delimiter, header=header, encoding=encoding, missing=missing, reading=reading
        )
        if decimal is not None:
            task_options.choice(decimal, "decimal", (",", "."))
        is_new = reading > 1
        task_options.choice(kind, "kind", _KINDS)
        is_robust = task_options.choice(scaling, "scaling", _SCALINGS) == "robust"
        shares = shares_of(validation_share, test_share)
        wanted = {
            name: task_options.names(value, name)
            for name, value in (("ignore", ignore), ("categorical", categorical), ("numeric", numeric))
        }
        paths = {"train": train, "validation": validation, "test": test}
        self._files = ({name: task_options.path(one, name) for name, one in paths.items() if one is not None}, target)
        table, others = self._read_all(*self._files)
        column = find_column(table, target, "task_options.target", is_name_first=is_new)
        columns = {
            name: [find_column(table, one, f"task_options.{name}") for one in names] for name, names in wanted.items()
        }
        self._columns, self._written = table.names, as_written(table.form)
        self._query = query_column(table, query, kind, column, is_name_first=is_new)
        own = () if self._query is None else (self._query,)
        self._features = feature_columns(table, column, (*columns["ignore"], *own))
        self._reading = learn_reading(
            table, self._form, column, self._features, kind=kind if self._query is None else "ranking",
            numeric=columns["numeric"], categorical=columns["categorical"],
            decimal=decimal, is_day_first=day_first, is_merged=merge_spellings,
        )  # fmt: skip
        table = self._reading.read(table)
        others = {name: self._reading.read(one) for name, one in others.items()}
        is_open = kind == "auto" and self._query is None
        has_code = self._reading.has_code_target
        self._is_classifier = kind == "classification" or (is_open and (has_code or has_classes(table, column)))
        self._could_be_either = is_open and is_whole(table, column)
        self.classes = fit_classes(table, column, may_lack=is_new) if self._is_classifier else ()
        labels = encode_classes(table, column, self.classes) if self.classes else None
        self._folds = count_folds(
            folds, rows=len(table), has_validation="validation" in others, is_ranked=self._query is not None
        )
        rows = self._split(
            table, labels, shares | dict.fromkeys([*others, *(["validation"] if self._folds > 1 else [])], 0.0)
        )
        rows = (rows[0], rows[0], rows[2]) if self._folds > 1 else rows
        self.encoding = fit_encoding(
            table,
            rows[0],
            self._features,
            as_numbers=columns["numeric"],
            as_categories=columns["categorical"],
            is_robust=is_robust,
            codes=self._reading.categories,
            left_out=None if self._form.reading == 1 else self._reading.identifiers,
        )
        self._target = fit_target(table, column, rows, others.get("validation"), self.classes)
        self._parts = parts_of(self.encoding.encode(table), self._targets(table), rows) | {
            name: (self.encoding.encode(one), self._targets(one)) for name, one in others.items()
        }
        if self._folds > 1:
            self._parts = with_folds(self._parts, None if labels is None else labels[rows[0]], self._folds)
        if class_weight is not None:
            task_options.choice(class_weight, "class_weight", ("balanced",))
            if not self.classes:
                raise TaskError(
                    f"task_options.class_weight: found {class_weight!r}, but the target is a number and has no "
                    "classes. Leave class_weight out"
                )
            self.balance_classes()

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the validation metrics."""
        if self._is_classifier:
            return super().metric_names
        return _NUMBER_METRICS if self._query is None else _RANKING_METRICS

    def describe(self) -> tuple[str, ...]:
        """Return facts about the files, one line each."""
        column, other = self._target.column, "classification" if not self.classes else "regression"
        what = (
            f"{len(self.classes)} classes, {listed(map(shown, self.classes))}{self._positive_note()}"
            if self.classes
            else "a number to estimate"
            if self._query is None
            else f"the relevance of a row among rows with the same {self._query!r}"
        )
        cure = f" (--set task_options.kind={other} if that is wrong)" if self._could_be_either else ""
        dates = sum(number.is_date for number in self.encoding.numbers)
        kinds = f"{len(self.encoding.numbers)} of numbers" + (f" ({dates} of them dates)" if dates else "")
        left_out = ", ".join(f"{shown(name)} ({why})" for name, why in self.encoding.left_out.items())
        return (
            f"target: column {column!r}, {what}{cure}",
            f"columns: {kinds}, {len(self.encoding.categories)} of categories"
            + (f"; left out: {left_out}" if left_out else ""),
            f"rows: {part_sizes(self._parts, has_folds=self._folds > 1)}",
            *([folds_note(self._folds)] if self._folds > 1 else []),
        )

    def _positive_note(self) -> str:
        return f" (AUROC and AUPRC judge {shown(self.classes[self.positive])})" if len(self.classes) == 2 else ""

    def data_check(self) -> dict[str, Any]:
        """Return `findings`, lines about unusual data with options, and `columns`. Reads the files again."""
        if self._form.reading == 1:
            return {}
        from trainers.tasks.table.data_check import table_columns, table_findings

        raw, others = self._read_all(*self._files)
        table, others = self._reading.read(raw), {name: self._reading.read(one) for name, one in others.items()}
        found = table_findings(raw, table, others, reading=self._reading, encoding=self.encoding, classes=self.classes)
        return {"findings": list(found), "columns": table_columns(raw, table, self._reading, self.encoding)}

    def encode(self, rows: Sequence[Mapping[str, object]] | str | Path) -> Tensor:
        """Return new rows as inputs of the model, float32 [n, columns]. TaskError for a wrong column or cell.

        `rows` is a file, or a list of mappings from column to value, None if missing. Target and ignored columns are
        optional.
        """
        import torch

        needed = [name for name in self._features if name not in self.encoding.left_out]
        if isinstance(rows, str | Path):
            table = read_table(rows, self._form, expected=self._features)
            check_columns(str(table.path), table.names, known=self._columns, needed=needed)
            table = self._reading.read(replace(table, columns={name: table.columns[name] for name in needed}))
        else:
            check_rows(rows, known=self._columns, needed=needed)
            table = self._reading.rows([dict(row) for row in rows], needed)
        return torch.from_numpy(self.encoding.encode(table))

    def decode(self, outputs: Tensor) -> list[str] | list[float]:
        """Return labels for outputs, or numbers in the target's units."""
        if self._is_classifier:
            return super().decode(outputs)
        return [value * self._target.deviation + self._target.mean for value in outputs.tolist()]

    def preprocessing(self) -> dict[str, Any]:
        """Return the steps of `encode` as plain values."""
        plain = {"kind": "table", "known": list(self._columns), "missing": list(self._form.missing)}
        used = [number.name for number in self.encoding.numbers]
        return plain | self._written | self.encoding.form() | self._reading.exported(used)

    def postprocessing(self) -> dict[str, Any]:
        """Return the steps of `decode` as plain values."""
        if self._is_classifier:
            return super().postprocessing()
        return {"kind": "number", "mean": self._target.mean, "deviation": self._target.deviation, "error": "val_mse"}

    def model(self, params: Params) -> nn.Module:
        """Return a model `architecture` for each fold. Outputs [n, classes], or [n] standardised."""
        from trainers.tasks.table.table_networks import fold_model, tabular_model

        rows, outputs = self._parts["train"][0], len(self.classes) or None
        build = partial(
            tabular_model, params, self.encoding, rows, outputs=outputs, target=self._target,
            class_weights=self.class_weights,
        )  # fmt: skip
        models = [build(levels=levels) for levels in self._trained_levels]
        if self._folds == 1:
            return models[0]

        return fold_model(models, columns=self.encoding.columns, is_number=not self.classes)

    @cached_property
    def _trained_levels(self) -> NDArray[np.bool_]:
        """Levels in each fold model's training rows. Cached, because many models may be built."""
        return trained_levels(self._parts["train"][0], self.encoding, self._folds)

    def new_rows(self, inputs: Tensor) -> Tensor:
        """Return inputs of any part as `encode` does, without fold numbers."""
        return inputs[:, : self.encoding.columns]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss, shape [n]: cross entropy in nats, or squared error of the standardised number.

        For outputs of several members (second dimension), the loss is the mean over members.
        """
        if not self._is_classifier:
            targets = learned_part(targets)
            return outputs.sub(targets.view(-1, *[1] * (outputs.dim() - 1))).square().view(len(targets), -1).mean(1)
        return mean_of_members(super().loss, outputs, targets)

    def smoothed_loss(self, outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Return each sample's cross entropy, shape [n], with smoothed targets."""
        return mean_of_members(partial(super().smoothed_loss, smoothing=smoothing), outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return each metric's values, shape [n]. The mean of `val_r2` is 1 - squared error / variance."""
        if self._is_classifier:
            return super().metrics(outputs, targets)
        error = (outputs - learned_part(targets)).double() * self._target.deviation
        squared = error.square()
        if self._query is not None:
            return {"val_mse": squared, "val_mae": error.abs()}
        return {"val_mse": squared, "val_mae": error.abs(), "val_r2": 1 - squared / self._target.variance}

    def derived_metrics(self, metrics: Mapping[str, float], _params: Params) -> dict[str, float]:
        """Return `val_rmse`, with its standard error by the delta method."""
        if self._is_classifier or self._query is not None:
            return {}
        root, error = math.sqrt(metrics["val_mse"]), metrics.get(f"val_mse{STDERR}")
        return {"val_rmse": root} | ({f"val_rmse{STDERR}": error / (2 * root)} if error is not None and root else {})

    def whole_metrics(self, params: Params) -> dict[str, Any]:
        """Return the metrics of classes, or for ranked rows NDCG, a mean over queries."""
        if self._query is None:
            return super().whole_metrics(params)
        from trainers.tasks.table.ranking import Ndcg

        return {"val_ndcg": Ndcg()}

    def answer_summary(self) -> Any:
        """Return an object that describes answers, as classes or numbers; None for ranked rows."""
        if self._is_classifier or self._query is not None:
            return super().answer_summary()
        from trainers.tasks.shared.class_metrics import Residuals

        return Residuals(self._target.column, mean=self._target.mean, deviation=self._target.deviation)

    @property
    def input_columns(self) -> dict[str, list[int]]:
        """Places of the table's columns in a row of inputs."""
        return self.encoding.places

    def space(self) -> Space:
        """Return the default search space, with several steps in an epoch."""
        from trainers.tasks.table.table_space import tabular_space

        return tabular_space(self.training_samples)

    def first_trials(self) -> list[dict[str, Any]]:
        """Return good parameters for most tables, the usual baseline first."""
        from trainers.tasks.table.table_space import tabular_first_trials

        return tabular_first_trials(self.training_samples)

    def baselines(self) -> list[dict[str, Any]]:
        """Return boosted trees, and a trivial baseline that uses only the target."""
        from trainers.tasks.table.table_space import tabular_baselines

        trivial = (
            most_frequent_class(self)
            if self._is_classifier
            else mean_of_table(self.targets("validation"), self._target, is_ranked=self._query is not None)
        )
        return [*tabular_baselines(), trivial]

    def _read_all(self, paths: Mapping[str, str], target: str | int) -> tuple[Table, dict[str, Table]]:
        train = read_table(paths["train"], self._form, expected=[target])
        return train, {name: read_like(train, path, self._form) for name, path in paths.items() if name != "train"}

    def _split(self, table: Table, labels: Rows | None, shares: Mapping[str, Share]) -> tuple[Rows, Rows, Rows]:
        if self._query is None:
            return split(labels, len(table), **shares)
        from trainers.tasks.table.ranking import queries_of, split_queries

        queries = queries_of(table, self._query)
        return split_queries(queries, **shares)

    def _targets(self, table: Table) -> Any:
        if self.classes:
            return encode_classes(table, self._target.column, self.classes)
        numbers = target_numbers(table, self._target.column)
        standardised = ((numbers - self._target.mean) / self._target.deviation).astype(np.float32)
        if self._query is None:
            return standardised
        from trainers.tasks.table.ranking import ranking_targets

        return ranking_targets(standardised, numbers, table, column=self._target.column, query=self._query)


SMALL = 2000  # number of rows below which `folds: auto` takes folds
FOLDS = 5
_MOST = 20
_SEED = 0


def count_folds(given: object, *, rows: int, has_validation: bool, is_ranked: bool) -> int:
    """Return the number of folds of the option `folds`; 1 means a separate validation part. Raises TaskError."""
    if given == "auto":
        return FOLDS if rows < SMALL and rows >= 2 * FOLDS and not has_validation and not is_ranked else 1
    most = min(_MOST, rows)
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= most:
        raise TaskError(f"task_options.folds: found {given!r}, allowed: auto, or a whole number from 1 to {most}")
    if given > 1 and (has_validation or is_ranked):
        beside = "a validation file" if has_validation else "query, whose rows belong together"
        raise TaskError(f"task_options.folds: found {given} together with {beside}, allowed: 1 or auto")
    return given


def with_folds(
    parts: Mapping[str, tuple[Matrix, Any]], classes: Rows | None, folds: int
) -> dict[str, tuple[Matrix, Any]]:
    """Return the parts with each row's fold number as a last column. Training and validation are the same rows.

    Folds share each class of the training rows' `classes` [n], or None, evenly.
    """
    inputs, targets = parts["train"]
    order = np.random.default_rng(_SEED).permutation(len(inputs))
    if classes is not None:
        order = order[np.argsort(classes[order], kind="stable")]
    column = np.empty((len(inputs), 1), dtype=np.float32)
    column[order, 0] = np.arange(len(inputs)) % folds
    both = (np.hstack([inputs, column]), targets)
    return {**parts, "train": both, "validation": both}


def trained_levels(inputs: Matrix, encoding: Encoding, folds: int) -> NDArray[np.bool_]:
    """Return a mask [k, levels] of the categories' levels that occur in the training rows of each fold's model.

    `inputs` are the training rows from `with_folds`, [n, columns].
    """
    fold = inputs[:, -1].astype(np.int64) if folds > 1 else np.zeros(len(inputs), dtype=np.int64)
    trained = [np.zeros((folds, 0), dtype=bool)]
    for place, category in enumerate(encoding.categories, start=encoding.dense):
        cells = inputs[:, place].astype(np.int64) * folds + fold
        counts = np.bincount(cells, minlength=category.size * folds).reshape(category.size, folds)
        others = counts.sum(axis=1, keepdims=True) - (counts if folds > 1 else 0)
        trained.append((others > 0).T)
    return np.hstack(trained)


def folds_note(folds: int) -> str:
    """Return a sentence about the effects of folds on a trial."""
    what = "each row is judged by the model that has not seen it, and answers are the mean of all models"
    cure = "--set task_options.folds=1 takes a validation part instead"
    return f"folds: a trial trains {folds} models and costs {folds} times as much; {what} ({cure})"
