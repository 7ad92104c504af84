"""Common knowledge of learning rates, for a space in which the user gave the rate no prior.

    log10 step ~ N(usual, SD_DECADES),   step = rate                    adaptive optimizers and boosted trees
                                         step = rate / (1 - momentum)   SGD: the step that a constant gradient reaches

The recorded trainings on images, tables, texts and letters have their best rates there (benchmarks/curves), as have the
defaults of the frameworks. A rate is known by its name and its logarithmic range; its optimizer by the value of the
parameter `optimizer`, or by the betas of Adam or the leaves of trees beside it.
"""

from __future__ import annotations

import math

import numpy as np

from search_spaces.parameters import Categorical, Conditional, Float, Parameter
from search_spaces.space import Space
from studies.search.arrays import Array

RATES = ("lr", "learning_rate", "base_lr", "max_lr", "init_lr", "initial_lr", "peak_lr")
SGD, ADAPTIVE, TREES = -0.5, -2.5, -1.0
"""Usual logarithms of steps to base 10."""
OPTIMIZERS = dict.fromkeys(("adam", "adamw", "nadam", "radam", "rmsprop"), ADAPTIVE) | {"sgd": SGD, "nesterov": SGD}
NEIGHBOURS = {"beta1": ADAPTIVE, "beta_1": ADAPTIVE, "num_leaves": TREES, "max_leaves": TREES}
SD_DECADES = 0.75
LEAST_DECADES = 1.5
"""Shortest range of a rate with a recipe, in decades."""


class TrainingRecipe:
    """The usual rates of a space's configurations, in coordinates of the unit cube."""

    def __init__(self, space: Space) -> None:
        self._names = [name for name, _ in space.entries()]
        self._parameters = [one.parameter if isinstance(one, Conditional) else one for _, one in space.entries()]
        rates = [self._names.index(name) for name in RATES if name in self._names]
        self.axis = next((axis for axis in rates if self._decades_of(self._parameters[axis]) >= LEAST_DECADES), None)
        optimizer = self._parameter("optimizer")
        if isinstance(optimizer, Categorical):
            self._usual = [OPTIMIZERS.get(str(choice).lower(), math.nan) for choice in optimizer.choices]
        else:
            self._usual = [next((NEIGHBOURS[name] for name in NEIGHBOURS if name in self._names), math.nan)]

    def __bool__(self) -> bool:
        """Return whether the space has a rate and an optimizer that are known."""
        return self.axis is not None and not all(map(math.isnan, self._usual))

    def _parameter(self, name: str) -> Parameter | None:
        return self._parameters[self._names.index(name)] if name in self._names else None

    @staticmethod
    def _decades_of(rate: Parameter) -> float:
        is_free = isinstance(rate, Float) and rate.log and rate.prior is None
        return math.log10(rate.high / rate.low) if is_free and isinstance(rate, Float) else 0.0

    def usual(self, units: Array) -> tuple[Array, float]:
        """Return the coordinate of the usual rate at points of the unit cube [m, P], and its standard deviation.

        It is NaN where the optimizer is not known, and at most at an end of the range. Absent parameters are NaN in
        `units`.
        """
        assert self.axis is not None  # noqa: S101 - only called if there is a rate
        rate, momentum = self._parameters[self.axis], self._parameter("momentum")
        assert isinstance(rate, Float)  # noqa: S101 - others have no decades
        chosen = np.zeros(len(units), dtype=np.intp)
        if len(self._usual) > 1:
            at = np.nan_to_num(units[:, self._names.index("optimizer")])
            chosen = np.minimum(at * len(self._usual), len(self._usual) - 1).astype(np.intp)
        logs = np.array(self._usual)[chosen]
        if isinstance(momentum, Float) and not momentum.log:
            at = np.nan_to_num(units[:, self._names.index("momentum")])
            kept = np.maximum(1.0 - momentum.low - at * (momentum.high - momentum.low), 0.01)
            logs = np.where(logs == SGD, logs + np.log10(kept), logs)
        decades = self._decades_of(rate)
        return np.clip((logs - math.log10(rate.low)) / decades, 0.0, 1.0), SD_DECADES / decades
