"""A model of several, one for each fold, that train together.

Shapes: n rows, c columns, k folds, m members, o outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from trainers.grown_model import GrownModel, grows


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
