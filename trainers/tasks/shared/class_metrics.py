"""Classification metrics that are not means over samples, with standard errors. Shapes: n samples, c classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainers.protocol import STDERR
from trainers.tasks.shared.class_metric_names import whole_class_metrics


class SeenSamples:
    """Collects tensors of all samples, for metrics of a whole part of the data."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, ...]] = []

    def reset(self) -> None:
        """Forget all samples."""
        self._parts = []

    def merge_state(self, other: SeenSamples) -> None:
        """Add the samples of another object."""
        self._parts += other._parts

    def _all(self) -> list[Tensor]:
        return [torch.cat(one).cpu() for one in zip(*self._parts, strict=True)]


class ClassMetrics(SeenSamples):
    """AUROC, AUPRC (average precision), macro F1 and balanced error of all samples, equal to scikit-learn's.

    scikit-learn itself takes a second to import in every rank, and computes no standard errors.

    With two classes, AUROC and AUPRC judge the probability of `positive`. With more, they are means over classes, each
    against the rest, without classes that all or no samples have. Both are missing if no class is left.

    Each metric T is a function of the samples' weights w, which are 1. Its standard error is the infinitesimal
    jackknife, sqrt(n / (n - 1) * sum((dT / dw)^2)): to first order the bootstrap's, without random draws (Efron, The
    Jackknife, the Bootstrap and Other Resampling Plans, 1982, chapter 6), and the usual standard error of a mean.
    """

    def __init__(self, classes: int, positive: int) -> None:
        super().__init__()
        self.metric_names = whole_class_metrics(classes)
        self._classes, self._positive = classes, positive

    def to(self, device: str | torch.device) -> ClassMetrics:
        """Move the collected samples to a device."""
        self._parts = [tuple(one.to(device) for one in part) for part in self._parts]
        return self

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: logits [n, c] and classes [n]."""
        scores = outputs.detach()[:, :0]
        if "val_auroc" in self.metric_names:
            scores = outputs.detach().double().softmax(dim=1)
            scores = scores[:, [self._positive]] if self._classes == 2 else scores
        self._parts.append((scores, outputs.argmax(dim=1), targets))

    def compute(self) -> dict[str, float]:
        """Return the metrics that are defined for the samples, and their standard errors."""
        if not self._parts:
            return {}
        scores, chosen, targets = self._all()
        with torch.enable_grad():
            weights = torch.ones(len(targets), dtype=torch.float64, requires_grad=True)
            values = _of_decisions(chosen, targets, weights, self._classes)
            if "val_auroc" in self.metric_names and bool(scores.isfinite().all()):
                columns = torch.tensor([self._positive] if self._classes == 2 else range(self._classes))
                values |= _of_order(scores, targets[:, None] == columns, weights)
            found = {}
            for name, value in values.items():
                found[name] = value.item()
                if len(targets) > 1:
                    (slopes,) = torch.autograd.grad(value, weights, retain_graph=True)
                    found[f"{name}{STDERR}"] = slopes.norm().item() * math.sqrt(len(targets) / (len(targets) - 1))
        return found


def _of_decisions(chosen: Tensor, targets: Tensor, weights: Tensor, classes: int) -> dict[str, Tensor]:
    """Return F1 and balanced error of chosen classes [n], as means over the classes that occur."""
    nothing = weights.new_zeros(classes)
    actual, answered = nothing.index_add(0, targets, weights), nothing.index_add(0, chosen, weights)
    right = nothing.index_add(0, targets, weights * (chosen == targets))
    occurs, answers = actual > 0, actual + answered > 0
    return {
        "val_f1": (2 * right[answers] / (actual + answered)[answers]).mean(),
        "val_balanced_error": 1 - (right[occurs] / actual[occurs]).mean(),
    }


def _of_order(scores: Tensor, is_positive: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Return AUROC and AUPRC of scores and labels [n, columns], as means over the columns with both labels."""
    varies = is_positive.any(0) & ~is_positive.all(0)
    if not bool(varies.any()):
        return {}
    scores, order = scores[:, varies].sort(dim=0, descending=True)
    positive = is_positive[:, varies].gather(0, order).double()
    weight = weights[order]
    is_new = torch.cat([torch.zeros_like(scores[:1]), (scores.diff(dim=0) != 0).double()])
    place = is_new.cumsum(0).long()  # equal scores form one threshold
    hits = torch.zeros_like(scores).scatter_add(0, place, weight * positive)
    alarms = torch.zeros_like(scores).scatter_add(0, place, weight * (1 - positive))
    above, alarms_above = hits.cumsum(0), alarms.cumsum(0)
    return {
        "val_auroc": (((above - hits / 2) * alarms).sum(0) / (hits.sum(0) * alarms.sum(0))).mean(),
        "val_auprc": ((hits * above / (above + alarms_above)).sum(0) / hits.sum(0)).mean(),
    }


_POINTS = 400  # most pairs of a number and its estimate
_SHARES = (0.5, 0.9)  # quantiles of the absolute error


class _Summary(SeenSamples):
    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self._parts.append((outputs.detach().cpu(), targets.cpu()))


class Confusion(_Summary):
    """Confusion matrix: `counts` of samples by class (row) and most probable class (column), as nested lists."""

    metric_names = ("labels", "counts")

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__()
        self._labels = list(labels)

    def compute(self) -> dict[str, Any]:
        """Return the class labels and the confusion matrix."""
        outputs, targets = self._all()
        size = len(self._labels)
        counts = torch.bincount(targets * size + outputs.argmax(dim=1), minlength=size * size)
        return {"labels": self._labels, "counts": counts.view(size, size).tolist()}


class Residuals(_Summary):
    """Pairs (number, estimate) as `points`, and the median and 90 % quantile of the absolute error as `within`."""

    metric_names = ("column", "points", "within")

    def __init__(self, column: str, *, mean: float, deviation: float) -> None:
        super().__init__()
        self._column, self._mean, self._deviation = column, mean, deviation

    def compute(self) -> dict[str, Any]:
        """Return some pairs, and the quantiles of all errors."""
        estimates, numbers = (one.double() * self._deviation + self._mean for one in self._all())
        pairs = torch.stack([numbers, estimates], dim=1)
        chosen = pairs[torch.linspace(0, len(pairs) - 1, min(len(pairs), _POINTS)).long()]
        points = [[float(f"{one:.6g}") for one in pair] for pair in chosen.tolist()]
        within = np.quantile((numbers - estimates).abs().numpy(), _SHARES).tolist()  # torch limits the samples
        return {"column": self._column, "points": points, "within": within}
