"""Usual learning rates, optimizers and batch sizes, as priors for parameters to which the user gave no prior.

    log10 step ~ N(usual, SD_DECADES),   step = rate                    adaptive optimizers and boosted trees
                                         step = rate / (1 - momentum)   SGD: the step that a constant gradient reaches
    P(SGD) = SGD_WEIGHT P(adaptive)
    p(batch size) ~ exp(-BATCH_TILT u), u its coordinate: small batches take more steps in an epoch

In the recorded trainings (benchmarks/curves), the best rates are near the usual rates, and adaptive optimizers and
small batches are better on average. A learning rate is recognised by its name and logarithmic range. Its optimizer is
known from the parameter `optimizer`, or from Adam's betas or leaves of trees in the same space. Momentum without an
optimizer is not used: on LCBench it made searches with a second objective worse.
"""

import math
from collections.abc import Sequence

import numpy as np

from search_spaces.parameters import Categorical, Float, Int, Parameter, parameter_of
from search_spaces.space import Space
from studies.search.arrays import Array

RATES = ("lr", "learning_rate", "base_lr", "max_lr", "init_lr", "initial_lr", "peak_lr")
SGD, ADAPTIVE, TREES = -0.5, -2.5, -1.0
"""Usual log10 of steps."""
OPTIMIZERS = dict.fromkeys(("adam", "adamw", "nadam", "radam", "rmsprop"), ADAPTIVE) | {"sgd": SGD, "nesterov": SGD}
NEIGHBOURS = {"beta1": ADAPTIVE, "beta_1": ADAPTIVE, "num_leaves": TREES, "max_leaves": TREES, "max_depth": TREES}
SD_DECADES = 0.75
SGD_WEIGHT, BATCH_TILT = 0.3, 0.7
LEAST_DECADES = 1.5
"""Shortest range of a learning rate that gets a prior, in decades."""


class TrainingRecipe:
    """Usual settings as coordinates in the unit cube; false if learning rate or optimizer are unknown."""

    def __init__(self, space: Space) -> None:
        self._names = [name for name, _ in space.entries()]
        self._parameters = [parameter_of(one) for _, one in space.entries()]
        rates = [self._names.index(name) for name in RATES if name in self._names]
        self.axis = next((axis for axis in rates if self._decades_of(self._parameters[axis]) >= LEAST_DECADES), None)
        optimizer = self._parameter("optimizer")
        if isinstance(optimizer, Categorical):
            self._usual = [OPTIMIZERS.get(str(choice).lower(), math.nan) for choice in optimizer.choices]
        else:
            self._usual = [next((NEIGHBOURS[name] for name in NEIGHBOURS if name in self._names), math.nan)]
        self._draws_optimizer = len(self._usual) > 1 and optimizer is not None and optimizer.prior is None
        weights = np.array([SGD_WEIGHT if usual == SGD else 1.0 for usual in self._usual])
        self._weights = weights / weights.mean() if self._draws_optimizer else np.ones(len(weights))
        batch = self._parameter("batch_size")
        is_free = isinstance(batch, Int | Float) and batch.prior is None
        self._batch = self._names.index("batch_size") if is_free else None

    def __bool__(self) -> bool:
        return self.axis is not None and not all(map(math.isnan, self._usual))

    def _parameter(self, name: str) -> Parameter | None:
        return self._parameters[self._names.index(name)] if name in self._names else None

    @staticmethod
    def _decades_of(rate: Parameter) -> float:
        is_free = isinstance(rate, Float) and rate.log and rate.prior is None
        return math.log10(rate.high / rate.low) if is_free and isinstance(rate, Float) else 0.0

    def _by_optimizer(self, values: Sequence[float] | Array, units: Array, *, absent: float) -> Array:
        """Return the entry of `values` for each point's optimizer [m]; `absent` without an optimizer."""
        if len(values) == 1:
            return np.full(len(units), float(values[0]))
        at = units[:, self._names.index("optimizer")]
        chosen = np.minimum(np.nan_to_num(at) * len(values), len(values) - 1).astype(np.intp)
        return np.where(np.isnan(at), absent, np.asarray(values)[chosen])

    def draw_rest(self, units: Array, rng: np.random.Generator) -> None:
        """Draw optimizer and batch size of points in the unit cube [m, P], in place."""
        if self._draws_optimizer:
            chosen = rng.choice(len(self._usual), size=len(units), p=self._weights / self._weights.sum())
            units[:, self._names.index("optimizer")] = (chosen + 0.5) / len(self._usual)
        if self._batch is not None:
            units[:, self._batch] = -np.log1p(rng.random(len(units)) * math.expm1(-BATCH_TILT)) / BATCH_TILT

    def density_of_rest(self, units: Array) -> Array:
        """Return the density of optimizer and batch size at points of the unit cube [m, P]; mean 1."""
        density = self._by_optimizer(self._weights, units, absent=1.0)
        if self._batch is not None:
            tilted = np.exp(-BATCH_TILT * units[:, self._batch]) * BATCH_TILT / -math.expm1(-BATCH_TILT)
            density = density * np.where(np.isnan(tilted), 1.0, tilted)
        return density

    def usual(self, units: Array) -> tuple[Array, float]:
        """Return the coordinate of the usual learning rate at points [m, P], and its standard deviation.

        The coordinate is NaN for an unknown optimizer. Absent parameters are NaN in `units`.
        """
        assert self.axis is not None  # noqa: S101 - only called if there is a rate
        rate, momentum = self._parameters[self.axis], self._parameter("momentum")
        assert isinstance(rate, Float)  # noqa: S101 - others have no decades
        logs = self._by_optimizer(self._usual, units, absent=math.nan)
        if isinstance(momentum, Float) and not momentum.log:
            at = np.nan_to_num(units[:, self._names.index("momentum")])
            kept = np.maximum(1.0 - momentum.low - at * (momentum.high - momentum.low), 0.01)
            logs = np.where(logs == SGD, logs + np.log10(kept), logs)
        decades = self._decades_of(rate)
        return np.clip((logs - math.log10(rate.low)) / decades, 0.0, 1.0), SD_DECADES / decades

    def density_of_rate(self, units: Array) -> Array:
        """Return the density of the learning rate at points [m, P]; 1 if the optimizer is unknown.

        The density is not normalised to the range, so that a usual rate at an end of the range gains nothing.
        """
        usual, sd = self.usual(units)
        density = np.exp(-0.5 * ((units[:, self.axis] - usual) / sd) ** 2) / (sd * math.sqrt(2.0 * math.pi))
        return np.where(np.isnan(density), 1.0, density)
