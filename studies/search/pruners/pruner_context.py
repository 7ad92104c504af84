"""Inputs that a pruner may request besides its options."""

from collections.abc import Callable
from dataclasses import dataclass

from studies.search.model.curve_model import CurveModel
from studies.search.model.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunerContext:
    """Seed, problem and model (built at the first call); if `sampler_fits`, the sampler fits the hyperparameters."""

    seed: int
    problem: Problem
    model: Callable[[], CurveModel]
    sampler_fits: bool
