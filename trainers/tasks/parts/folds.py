"""Cross-validation within a trial: which fold each row is in. Each row is judged by a model that has not seen it.

Shapes: n rows, k folds.

A model of several, one for each fold, that train together.

Shapes: n rows, c columns, k folds, m members, o outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainers.grown_model import GrownModel, grows
from trainers.protocol import TaskError
from trainers.tasks.parts.columns import Encoding, Matrix
from trainers.tasks.parts.split_task import Rows


class FoldModel(nn.Module):
    """Models of which each one trains on all folds but its own.

    Input float32 [n, c] of new rows, which are answered by the mean of all models; or [n, c + 1] with the fold of each
    row in the last column, as training and validation have it. While it trains, a row is answered by the models that
    it trains, apart: [n, k - 1, o], or [n, k - 1]. Otherwise it is answered by the one model that has not seen it.

    Args:
        models: Models of the same form, one for each fold.
        columns: Number of columns of a new row, c.
        is_number: Whether outputs are numbers, and not logits.
    """

    def __init__(self, models: Sequence[nn.Module], *, columns: int, is_number: bool) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self._columns, self._is_number = columns, is_number

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits [n, o], or standardised numbers [n]; several of each row while it trains."""
        answers = torch.stack([model(rows[:, : self._columns]) for model in self.models], dim=1)
        if rows.shape[1] == self._columns:
            return answers.mean(1) if self._is_number else torch.logsumexp(answers.log_softmax(-1), 1)
        fold = rows[:, self._columns].long()
        return self._trained(answers, fold) if self.training else _of(answers, fold[:, None])[:, 0]

    def _trained(self, answers: Tensor, fold: Tensor) -> Tensor:
        """Return the answers of the models that each row trains; members of an ensemble stand beside each other."""
        others = torch.arange(1, len(self.models), device=fold.device)
        chosen = _of(answers, (fold[:, None] + others) % len(self.models))
        return chosen.flatten(1, 2) if chosen.dim() > (2 if self._is_number else 3) else chosen


class GrownFoldModel(FoldModel):
    """Models that are grown, see `trainers.grown_model`, each on all folds but its own."""

    def grow_epoch(
        self, inputs: Tensor, targets: Tensor, *, epoch: int, epochs: int, seed: int, threads: int,
        tick: Callable[[], None],
    ) -> Tensor:  # fmt: skip
        """Grow each model by an epoch; see `trainers.grown_model.GrownModel`."""
        rows, fold = inputs[:, : self._columns].contiguous(), inputs[:, self._columns].long()
        answers = list[Tensor]()
        for number, model in enumerate(self.models):
            trains = fold != number
            grown = cast("GrownModel", model).grow_epoch(
                rows[trains],
                targets[trains],
                epoch=epoch,
                epochs=epochs,
                seed=seed + number,
                threads=threads,
                tick=tick,
            )
            answer = grown.new_zeros((len(rows), *grown.shape[1:]))
            answer[trains] = grown
            answers.append(answer)
        return self._trained(torch.stack(answers, dim=1), fold)


def _of(answers: Tensor, chosen: Tensor) -> Tensor:
    """Return some models' answers to each row, [n, j, ...] of [n, k, ...], for their numbers [n, j]."""
    places = chosen.view(*chosen.shape, *[1] * (answers.dim() - 2)).expand(*chosen.shape, *answers.shape[2:])
    return answers.gather(1, places)


def fold_model(models: Sequence[nn.Module], *, columns: int, is_number: bool) -> FoldModel:
    """Return one model of several; arguments as of `FoldModel`."""
    kind = GrownFoldModel if grows(models[0]) else FoldModel
    return kind(models, columns=columns, is_number=is_number)


SMALL = 2000
"""Number of rows below which `folds: auto` takes folds."""
FOLDS = 5
"""Number of folds that `folds: auto` takes."""
_MOST = 20
_SEED = 0


def count_folds(given: object, *, rows: int, has_validation: bool, is_ranked: bool) -> int:
    """Return the number of folds; 1 for a validation part of its own.

    Args:
        given: The option `folds`.
        rows: Number of rows to train on and to validate with.
        has_validation: Whether there is a file for validation.
        is_ranked: Whether rows of a query compete with each other.

    Raises:
        TaskError: There cannot be as many folds.
    """
    if given == "auto":
        return FOLDS if rows < SMALL and rows >= 2 * FOLDS and not has_validation and not is_ranked else 1
    most = min(_MOST, rows)
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= most:
        raise TaskError(f"task_options.folds: found {given!r}, allowed: auto, or a whole number from 1 to {most}")
    if given > 1 and (has_validation or is_ranked):
        beside = "a validation file" if has_validation else "query, whose rows belong together"
        raise TaskError(f"task_options.folds: found {given} beside {beside}, allowed: 1 or auto")
    return given


def with_folds(
    parts: Mapping[str, tuple[Matrix, Any]], classes: Rows | None, folds: int
) -> dict[str, tuple[Matrix, Any]]:
    """Return the parts with each row's fold as the last column of training and validation, which are the same rows.

    Args:
        parts: Inputs [n, columns] and targets of each part.
        classes: Class of each training row [n], of which each fold gets its share; None to draw from all alike.
        folds: Number of folds.
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
    """Return which levels of all categories the training rows of each fold's model have, [k, levels].

    Args:
        inputs: Training rows as `with_folds` returns them, [n, columns].
        encoding: What the columns are.
        folds: Number of folds; with one, all rows are trained on.
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
    """Return what folds do to a trial, in words."""
    what = "each row is judged by the one that has not seen it, and answers are the mean of all"
    cure = "--set task_options.folds=1 takes a validation part instead"
    return f"folds: a trial trains {folds} models and costs {folds} times as much; {what} ({cure})"
