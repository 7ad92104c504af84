"""Descriptions of a model's answers to validation samples, as `trainers.loop.answers` collects them on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_POINTS = 400  # most pairs of a number and its estimate that are kept
_SHARES = (0.5, 0.9)  # shares of the samples whose distance from the truth is told


class Summary:
    """Collects the answer and the truth of each sample on the CPU."""

    metric_names: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor]] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        answers, truth = self.of(outputs.detach(), targets)
        self._parts.append((answers.cpu(), truth.cpu()))

    def merge_state(self, other: Summary) -> None:
        """Add the samples of another object."""
        self._parts += other._parts

    def of(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the answer and the truth of each sample, shape [n] both."""
        raise NotImplementedError

    def joined(self) -> tuple[Tensor, Tensor]:
        """Return all answers and truths, shape [samples] both."""
        answers, truth = (torch.cat(one) for one in zip(*self._parts, strict=True))
        return answers, truth


class Confusion(Summary):
    """Computes `labels` and `counts`: samples of each class (row) by answered class (column), as nested lists."""

    metric_names = ("labels", "counts")

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__()
        self._labels = list(labels)

    def of(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most probable class and the class."""
        return outputs.argmax(dim=1), targets

    def compute(self) -> dict[str, Any]:
        """Return the counts, one row for each class."""
        answers, truth = self.joined()
        size = len(self._labels)
        counts = torch.bincount(truth * size + answers, minlength=size * size)
        return {"labels": self._labels, "counts": counts.view(size, size).tolist()}


class Residuals(Summary):
    """Computes `column`, `points` and `within`.

    Points are pairs (actual number, estimate), at most 400; `within` has the distances that half and nine tenths of the
    estimates keep from the actual number.
    """

    metric_names = ("column", "points", "within")

    def __init__(self, column: str, decode: Callable[[Tensor], list[float]]) -> None:
        super().__init__()
        self._column, self._decode = column, decode

    def of(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return estimates and numbers in the unit of the target."""
        estimates, numbers = (torch.tensor(self._decode(one.double())) for one in (outputs, targets))
        return estimates, numbers

    def compute(self) -> dict[str, Any]:
        """Return a sample of the pairs, and the distances of all."""
        pairs = torch.stack(self.joined()[::-1], dim=1).double()
        chosen = pairs[torch.linspace(0, len(pairs) - 1, min(len(pairs), _POINTS)).long()]
        points = [[float(f"{one:.6g}") for one in pair] for pair in chosen.tolist()]
        distances = (pairs[:, 0] - pairs[:, 1]).abs().sort().values
        within = [float(distances[round(share * (len(distances) - 1))]) for share in _SHARES]
        return {"column": self._column, "points": points, "within": within}
