"""Networks for tables. Shapes: n rows, d dense columns, c categories, b bins of each number, k members.

A `FoldModel` has a model for each of k folds, trained together: m members, o outputs.
"""

import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainers.contract.task import GrownModel, grows
from trainers.protocol import Params
from trainers.tasks.shared import task_options
from trainers.tasks.shared.data_fingerprint import DataMark
from trainers.tasks.table.columns import Encoding, Matrix, bin_edges
from trainers.tasks.table.table_space import ARCHITECTURES
from trainers.tasks.table.tree_growth import TreeOptions
from trainers.tasks.table.trees import BoostedTrees


class FoldModel(nn.Module):
    """Combines a model for each fold, trained on all other folds.

    For new rows, float32 [n, c], the output is the mean of all models. Training and validation rows have their fold's
    number in a last column. In training, the models that a row trains have separate outputs, [n, k - 1, o] or [n, k -
    1]. In evaluation, the output is of the model that was not trained on the row.
    """

    def __init__(self, models: Sequence[nn.Module], *, columns: int, is_number: bool) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self._columns, self._is_number = columns, is_number

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits [n, o], or standardised numbers [n]; in training several for each row."""
        answers = torch.stack([model(rows[:, : self._columns]) for model in self.models], dim=1)
        if rows.shape[1] == self._columns:
            return answers.mean(1) if self._is_number else torch.logsumexp(answers.log_softmax(-1), 1)
        fold = rows[:, self._columns].long()
        return self._trained(answers, fold) if self.training else _of(answers, fold[:, None])[:, 0]

    def _trained(self, answers: Tensor, fold: Tensor) -> Tensor:
        """Return outputs of the models that each row trains. Members of an ensemble share the second dimension."""
        others = torch.arange(1, len(self.models), device=fold.device)
        chosen = _of(answers, (fold[:, None] + others) % len(self.models))
        return chosen.flatten(1, 2) if chosen.dim() > (2 if self._is_number else 3) else chosen


class GrownFoldModel(FoldModel):
    """Grown models such as trees (`trainers.contract.task`), each for a fold, grown on all other folds."""

    def grow_epoch(
        self, inputs: Tensor, targets: Tensor, *, epoch: int, epochs: int, seed: int, threads: int,
        tick: Callable[[], None],
    ) -> Tensor:  # fmt: skip
        """Grow each fold's model by an epoch; see `GrownModel`."""
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
    """Return outputs of chosen models for each row, [n, j, ...] of [n, k, ...], by model numbers [n, j]."""
    places = chosen.view(*chosen.shape, *[1] * (answers.dim() - 2)).expand(*chosen.shape, *answers.shape[2:])
    return answers.gather(1, places)


def fold_model(models: Sequence[nn.Module], *, columns: int, is_number: bool) -> FoldModel:
    """Combine the models of several folds; see `FoldModel`."""
    kind = GrownFoldModel if grows(models[0]) else FoldModel
    return kind(models, columns=columns, is_number=is_number)


def tabular_model(
    params: Params,
    encoding: Encoding,
    rows: Matrix,
    *,
    levels: NDArray[np.bool_],
    outputs: int | None,
    target: object,
    class_weights: Sequence[float] | None = None,
) -> nn.Module:
    """Return the model `architecture`. Outputs [n, classes], or standardised numbers [n].

    `levels` come from the model's own training rows, see `trained_levels`. `target` is part of the weights'
    fingerprint. Trees weight rows by `class_weights`; for networks the task weights the loss.
    """
    architecture = task_options.choice(params.get("architecture", "mlp"), "architecture", ARCHITECTURES)
    meaning = (*encoding.meaning, target)
    sizes = [category.size for category in encoding.categories]
    if architecture == "trees":
        return BoostedTrees(
            dense=encoding.dense,
            category_sizes=sizes,
            outputs=outputs,
            options=TreeOptions.of(params),
            meaning=meaning,
            class_weights=class_weights,
        )
    bins, numbers = cast("int", params.get("bins", 16)), len(encoding.numbers)
    return TabularNetwork(
        dense=encoding.dense,
        category_sizes=sizes,
        levels=levels,
        edges=bin_edges(rows[:, :numbers], bins) if bins and numbers else None,
        waves=_waves(params, numbers),
        outputs=outputs,
        architecture=architecture,
        width=cast("int", params.get("width", 128)),
        depth=cast("int", params.get("depth", 2)),
        dropout=cast("float", params.get("dropout", 0.1)),
        embedding=cast("int", params.get("embedding", 8)),
        meaning=meaning,
    )


def _waves(params: Params, numbers: int) -> "Waves | None":
    waves = task_options.whole_parameter(params, "waves", 0, low=0, high=256)
    scale = task_options.number_parameter(params, "wave_scale", 0.1, low=1e-3, high=100.0)
    return Waves(numbers, waves, scale) if waves and numbers else None


MEMBERS = 8  # number of models of an ensemble in one network; TabM's 32 cost four times as much


_SUMS = 3  # number of sums of a number's cosines; four values with the number itself, as in RealMLP


class TabularNetwork(nn.Module):
    """MLP, residual network, or ensemble of MLPs, for numbers, their bins, and embedded categories.

    Input: float32 [n, d + c] from `Encoding.encode`; output: [n, outputs], or [n] for a number. In training, members of
    an ensemble have separate outputs: [n, k, outputs], or [n, k].
    """

    def __init__(
        self,
        *,
        dense: int,
        category_sizes: Sequence[int],
        levels: NDArray[np.bool_],
        edges: Matrix | None,
        waves: "Waves | None",
        outputs: int | None,
        architecture: str,
        width: int,
        depth: int,
        dropout: float,
        embedding: int,
        meaning: object,
    ) -> None:
        super().__init__()
        self._dense = dense
        self.mark = DataMark(meaning)
        self.bins = None if edges is None else _Bins(edges)
        self.waves = waves
        self.categories = _Categories(category_sizes, embedding, levels) if category_sizes else None
        inputs = dense + (0 if edges is None else edges.shape[0] * (edges.shape[1] - 1))
        inputs += embedding * len(category_sizes) + (0 if waves is None else waves.outputs)
        self.members: _Members | None = None
        if architecture == "tabm":
            self.members = _Members(inputs, width, outputs or 1)
        else:
            self.head = nn.Linear(width, outputs or 1)
        self.body = (_residual if architecture == "residual" else _plain)(inputs, width, depth, dropout)
        self._is_number = outputs is None

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits [n, outputs], or standardised numbers [n]."""
        dense = rows[:, : self._dense]
        parts = [dense]
        if self.bins is not None:
            parts.append(self.bins(dense))
        if self.waves is not None:
            parts.append(self.waves(dense))
        if self.categories is not None:
            parts.append(self.categories(rows[:, self._dense :]))
        inputs = torch.cat(parts, dim=1)
        if self.members is None:
            outputs: Tensor = self.head(self.body(inputs))
        else:
            outputs = self.members.outputs(self.body(self.members.inputs(inputs)))
            if not self.training:
                outputs = outputs.mean(1) if self._is_number else torch.logsumexp(outputs.log_softmax(2), 1)
        return outputs.squeeze(-1) if self._is_number else outputs


class _Members(nn.Module):
    """Each member's own weights: scales of the inputs, and the last layer.

    Members share all other weights, which is cheap and regularises: TabM-mini of Gorishniy et al. 2024, arXiv
    2410.24210.
    """

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.randint(0, 2, (MEMBERS, inputs)).float() * 2 - 1)
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(MEMBERS, width, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(MEMBERS, outputs).uniform_(-bound, bound))

    def inputs(self, shared: Tensor) -> Tensor:
        return shared[:, None, :] * self.scales

    def outputs(self, features: Tensor) -> Tensor:
        return torch.einsum("nkw,kwo->nko", features, self.weight) + self.bias


class _Bins(nn.Module):
    """Position of each number in each of its bins, from 0 to 1 (Gorishniy et al. 2022, arXiv 2203.05556)."""

    low: Tensor
    width: Tensor

    def __init__(self, edges: Matrix) -> None:
        super().__init__()
        rising = torch.from_numpy(edges)
        self.register_buffer("low", rising[:, :-1].contiguous())
        self.register_buffer("width", rising.diff(dim=1))

    def forward(self, dense: Tensor) -> Tensor:
        """Return positions in bins, [n, numbers * b], without marks of missing values."""
        numbers = dense[:, : len(self.low), None]
        return ((numbers - self.low) / self.width).clamp(0.0, 1.0).flatten(1)


class Waves(nn.Module):
    """Weighted sums of cosines of each number, at learned frequencies: W cos(2 pi f x + b) + c.

    Part of RealMLP's PBLD embedding (Holzmüller et al. 2024, arXiv 2407.04491, section 3), after PLR, arXiv 2203.05556.
    """

    def __init__(self, numbers: int, waves: int, scale: float) -> None:
        super().__init__()
        self.outputs = numbers * _SUMS
        self.frequencies = nn.Parameter(torch.randn(numbers, waves) * scale)
        self.phases = nn.Parameter(torch.empty(numbers, waves).uniform_(-math.pi, math.pi))
        bound = waves**-0.5
        self.weight = nn.Parameter(torch.empty(numbers, waves, _SUMS).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(numbers, _SUMS).uniform_(-bound, bound))

    def forward(self, dense: Tensor) -> Tensor:
        """Return the sums, [n, numbers * 3], without marks of missing values."""
        numbers = dense[:, : len(self.frequencies), None]
        cosines = torch.cos(2 * math.pi * self.frequencies * numbers + self.phases)
        return (torch.einsum("ndf,dfs->nds", cosines, self.weight) + self.bias).flatten(1)


class _Categories(nn.Module):
    """Embeds the levels of all categories, in one table of vectors.

    A level without training rows, such as missing, gets the mean of its column's other vectors: its own is random.
    """

    offsets: Tensor
    trained: Tensor  # places of levels in training rows
    columns: Tensor  # columns of these levels
    is_trained: Tensor

    def __init__(self, sizes: Sequence[int], embedding: int, is_trained: NDArray[np.bool_]) -> None:
        super().__init__()
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        places = np.flatnonzero(is_trained)
        columns = np.searchsorted(starts, places, side="right") - 1
        # torch.tensor uses the device on which the model is built.
        self.register_buffer("offsets", torch.tensor(starts), persistent=False)
        self.register_buffer("trained", torch.tensor(places), persistent=False)
        self.register_buffer("columns", torch.tensor(columns), persistent=False)
        self.register_buffer("is_trained", torch.tensor(is_trained), persistent=False)
        self.table = nn.Embedding(sum(sizes), embedding)
        nn.init.normal_(self.table.weight, std=embedding**-0.5)

    def forward(self, levels: Tensor) -> Tensor:
        places = levels.long() + self.offsets
        vectors: Tensor = self.table(places)
        if not self.training:
            vectors = torch.where(self.is_trained[places].unsqueeze(-1), vectors, self._means())
        return vectors.flatten(1)

    def _means(self) -> Tensor:
        vectors: Tensor = self.table(self.trained)  # a rank may hold only a part of the weight itself
        sums = vectors.new_zeros(len(self.offsets), vectors.shape[1]).index_add(0, self.columns, vectors)
        counts = vectors.new_zeros(len(self.offsets)).index_add(0, self.columns, torch.ones_like(vectors[:, 0]))
        return sums / counts.unsqueeze(-1)


def _plain(inputs: int, width: int, depth: int, dropout: float) -> nn.Module:
    layers: list[nn.Module] = []
    for size in [inputs, *[width] * (depth - 1)]:
        layers += [nn.Linear(size, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers)


def _residual(inputs: int, width: int, depth: int, dropout: float) -> nn.Module:
    blocks = [_Block(width, dropout) for _ in range(depth)]
    return nn.Sequential(nn.Linear(inputs, width), *blocks, nn.LayerNorm(width), nn.ReLU())


class _Block(nn.Module):
    """Residual block x + f(x) with LayerNorm: BatchNorm would depend on the number of ranks."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(2 * width, width),
        )

    def forward(self, values: Tensor) -> Tensor:
        added: Tensor = values + self.inner(values)
        return added
