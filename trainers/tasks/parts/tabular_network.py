"""Networks for rows of a table. Shapes: n rows, d dense columns, c categories, b bins of each number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainers.tasks.parts.columns import Matrix
from trainers.tasks.parts.data_mark import DataMark


class TabularNetwork(nn.Module):
    """An MLP, or a residual one, on numbers, their bins, and embedded categories.

    Input float32 [n, d + c], as `Encoding.encode` gives it; output [n, outputs], or [n] for a single number.
    """

    def __init__(
        self,
        *,
        dense: int,
        category_sizes: Sequence[int],
        edges: Matrix | None,
        outputs: int | None,
        is_residual: bool,
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
        self.categories = _Categories(category_sizes, embedding) if category_sizes else None
        inputs = dense + (0 if edges is None else edges.shape[0] * (edges.shape[1] - 1))
        inputs += embedding * len(category_sizes)
        self.body = (_residual if is_residual else _plain)(inputs, width, depth, dropout)
        self.head = nn.Linear(width, outputs or 1)
        self._is_number = outputs is None

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits [n, outputs], or standardised numbers [n]."""
        dense = rows[:, : self._dense]
        parts = [dense]
        if self.bins is not None:
            parts.append(self.bins(dense))
        if self.categories is not None:
            parts.append(self.categories(rows[:, self._dense :]))
        outputs: Tensor = self.head(self.body(torch.cat(parts, dim=1)))
        return outputs.squeeze(1) if self._is_number else outputs


class _Bins(nn.Module):
    """How far each number has come through each of its bins, from 0 to 1 (Gorishniy et al. 2022, arXiv 2203.05556)."""

    low: Tensor
    width: Tensor

    def __init__(self, edges: Matrix) -> None:
        super().__init__()
        rising = torch.from_numpy(edges)
        self.register_buffer("low", rising[:, :-1].contiguous())
        self.register_buffer("width", rising.diff(dim=1))

    def forward(self, dense: Tensor) -> Tensor:
        """Return [n, numbers * b]; marks of what is missing, which follow the numbers, are left out."""
        numbers = dense[:, : len(self.low), None]
        return ((numbers - self.low) / self.width).clamp(0.0, 1.0).flatten(1)


class _Categories(nn.Module):
    """A vector for each level of each category, from one table."""

    offsets: Tensor

    def __init__(self, sizes: Sequence[int], embedding: int) -> None:
        super().__init__()
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self.register_buffer("offsets", torch.tensor(starts), persistent=False)
        self.table = nn.Embedding(sum(sizes), embedding)
        nn.init.normal_(self.table.weight, std=embedding**-0.5)

    def forward(self, levels: Tensor) -> Tensor:
        """Return [n, c * embedding] for levels [n, c], whole numbers in float32."""
        vectors: Tensor = self.table(levels.long() + self.offsets)
        return vectors.flatten(1)


def _plain(inputs: int, width: int, depth: int, dropout: float) -> nn.Module:
    layers: list[nn.Module] = []
    for size in [inputs, *[width] * (depth - 1)]:
        layers += [nn.Linear(size, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers)


def _residual(inputs: int, width: int, depth: int, dropout: float) -> nn.Module:
    blocks = [_Block(width, dropout) for _ in range(depth)]
    return nn.Sequential(nn.Linear(inputs, width), *blocks, nn.LayerNorm(width), nn.ReLU())


class _Block(nn.Module):
    """x + f(x); LayerNorm and not BatchNorm, so that k ranks train as one."""

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
        """Return the shape of `values`."""
        added: Tensor = values + self.inner(values)
        return added
