"""Sizes and work of configurations, from examples whose models were counted without training them.

Some configurations of the space are counted when a study is launched. Their sizes are data for the forecast of
`model_parameters` before any trial has run, and what is expected of the others are features of the forecast of prices:

    hints(x) = [E log parameters, E log (FLOPs per sample x samples per epoch)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import qmc

from search_spaces.space import Space
from studies.search.model.encoding import Encoder, identity
from studies.search.model.gaussian_process import Array
from studies.search.model.log_regression import LogRegression
from trainers.protocol import ParameterValue

EXAMPLES = 96
ENOUGH_TO_FIT = 8
"""Examples that are counted before what is expected of others is worth a feature."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """A configuration whose model was counted.

    Attributes:
        params: Of the configuration.
        model_parameters: As a trial would measure it.
        flops_per_sample: Floating-point operations of a forward pass; None if they could not be counted.
        samples_per_epoch: Samples to train on; None likewise.
    """

    params: Mapping[str, ParameterValue]
    model_parameters: int
    flops_per_sample: int | None = None
    samples_per_epoch: int | None = None

    @property
    def flops_per_epoch(self) -> float:
        """Floating-point operations of the forward passes of an epoch; 0 if they are not known."""
        return float(self.flops_per_sample or 0) * float(self.samples_per_epoch or 0)

    def to_plain(self) -> dict[str, Any]:
        """The form in which it is stored with the study."""
        return asdict(self)

    @staticmethod
    def from_plain(form: Mapping[str, Any]) -> Counted:
        """The inverse of `to_plain`."""
        return Counted(**form)


def examples_of(space: Space) -> list[dict[str, ParameterValue]]:
    """Configurations to count, spread over the space, always the same; at most `EXAMPLES`, none of them twice."""
    encoder = Encoder(space)
    if not encoder.parameters:
        return [{}]
    units = qmc.Sobol(encoder.parameters, seed=0).random_base2(int(np.ceil(np.log2(EXAMPLES))))[:EXAMPLES]
    return list({identity(params): params for params in map(encoder.decode, units)}.values())


class SizeModel:
    """What counted examples tell of all configurations. Does not change, so that threads may share it.

    Args:
        space: Of the study.
        counted: Examples of it.

    Attributes:
        examples: Those with a model that has parameters.
    """

    def __init__(self, space: Space, counted: Sequence[Counted]) -> None:
        self._encoder = Encoder(space)
        self.examples = tuple(one for one in counted if one.model_parameters > 0)
        parameters = np.array([one.model_parameters for one in self.examples], dtype=float)
        work = np.array([one.flops_per_epoch for one in self.examples])
        self._values = {"model_parameters": parameters}
        fitted = [self._fitted(values) for values in (parameters, work)]
        self._regressions = [regression for regression in fitted if regression is not None]

    def _fitted(self, values: Array) -> LogRegression | None:
        known = np.flatnonzero(values > 0)
        if len(known) < ENOUGH_TO_FIT:
            return None
        x = np.array([self._encoder.encode(self.examples[i].params) for i in known])
        regression = LogRegression()
        regression.learn(x, np.zeros((len(x), 0)), values[known], refit=True)
        return regression

    def values(self, metric: str) -> Array:
        """What was counted of each example [n]; of a metric that cannot be counted [0]."""
        return self._values.get(metric, np.zeros(0))

    def hints(self, x: Array) -> Array:
        """What is expected of points [m, D]: columns of logarithms [m, up to 2]."""
        if not len(x):
            return np.zeros((0, len(self._regressions)))
        none = np.zeros((len(x), 0))
        return np.hstack([none, *(one.predict(x, none)[0][:, None] for one in self._regressions)])


def nothing_counted() -> SizeModel | None:
    """Of a study whose models are not counted."""
    return None
