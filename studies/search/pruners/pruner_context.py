"""What a pruner may ask for besides its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from studies.search.model.curve_model import CurveModel
from studies.search.model.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunerContext:
    """Seed, problem and model of a study, for the pruner that is made for it.

    Attributes:
        problem: Space, objectives, constraints, epochs and prices of the study.
        model: Returns the model of learning curves, the same one at each call; it is built at the first.
        sampler_fits: Whether the sampler fits the model's hyperparameters, so that the pruner need not.
    """

    seed: int
    problem: Problem
    model: Callable[[], CurveModel]
    sampler_fits: bool
