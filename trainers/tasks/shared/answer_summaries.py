"""Descriptions of a model's answers to validation samples, as `trainers.loop.answers` collects them on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_POINTS = 400  # most pairs of a number and its estimate that are kept
_SHARES = (0.5, 0.9)  # shares of the samples whose distance from the truth is computed


class _Summary:
    """Collects outputs and targets of all samples on the CPU."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor]] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        self._parts.append((outputs.detach().cpu(), targets.cpu()))

    def merge_state(self, other: _Summary) -> None:
        """Add the samples of another object."""
        self._parts += other._parts

    def _all(self) -> tuple[Tensor, Tensor]:
        outputs, targets = (torch.cat(one) for one in zip(*self._parts, strict=True))
        return outputs, targets


class Confusion(_Summary):
    """Computes `labels` and `counts`: samples of each class (row) by most probable class (column), as nested lists."""

    metric_names = ("labels", "counts")

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__()
        self._labels = list(labels)

    def compute(self) -> dict[str, Any]:
        """Return the counts, one row for each class."""
        outputs, targets = self._all()
        size = len(self._labels)
        counts = torch.bincount(targets * size + outputs.argmax(dim=1), minlength=size * size)
        return {"labels": self._labels, "counts": counts.view(size, size).tolist()}


class Residuals(_Summary):
    """Computes `column`, `points` (number, estimate), and `within`, the distances that half and nine tenths keep."""

    metric_names = ("column", "points", "within")

    def __init__(self, column: str, *, mean: float, deviation: float) -> None:
        super().__init__()
        self._column, self._mean, self._deviation = column, mean, deviation

    def compute(self) -> dict[str, Any]:
        """Return a sample of the pairs, and the distances of all."""
        estimates, numbers = (one.double() * self._deviation + self._mean for one in self._all())
        pairs = torch.stack([numbers, estimates], dim=1)
        chosen = pairs[torch.linspace(0, len(pairs) - 1, min(len(pairs), _POINTS)).long()]
        points = [[float(f"{one:.6g}") for one in pair] for pair in chosen.tolist()]
        within = np.quantile((numbers - estimates).abs().numpy(), _SHARES).tolist()  # torch's takes few samples
        return {"column": self._column, "points": points, "within": within}
