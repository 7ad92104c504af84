"""What a pruner may ask for besides its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from studies.search.model.curve_model import CurveModel
from studies.search.model.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunerContext:
    """Seed, problem and model of a study, for its pruner.

    Attributes:
        model: Returns the model of learning curves, built at the first call.
        sampler_fits: Whether the sampler fits the model's hyperparameters, so that the pruner need not.
    """

    seed: int
    problem: Problem
    model: Callable[[], CurveModel]
    sampler_fits: bool
