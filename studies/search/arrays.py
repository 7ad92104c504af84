"""Types of arrays, random samples, and linear algebra in one thread. Shapes are in square brackets."""

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

Array = NDArray[np.float64]
Rows = NDArray[np.intp]
"""Positions along the first axis of an array."""


Kind = Literal["lognormal", "gaussian"]
"""Family of a forecast distribution."""
Marginal = tuple[Array, Array, Kind]
"""Mean, standard deviation (0: known value) and kind of a quantity; of its logarithm if it is log-normal."""


def sobol_points(dimensions: int, count: int, seed: int | np.random.Generator) -> Array:
    """Return scrambled Sobol points in the unit cube [count, dimensions]."""
    from scipy.stats import qmc  # takes a second to import, which commands that only read should not pay

    points: Array = qmc.Sobol(dimensions, seed=seed).random_base2(int(np.ceil(np.log2(count))))
    return points[:count]


def centred_ranks(values: Array) -> Array:
    """Return ranks minus their mean; equal values share a mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    centred: Array = ranks - ranks.mean()
    return centred


def best_and_random(ranking: Sequence[int] | Rows, most: int) -> Rows:
    """Return at most `most` positions, ascending: half of them the best, where models must be exact, half random.

    The random half depends only on the number of positions, so a resumed study chooses the same half.
    """
    if len(ranking) <= most:
        return np.arange(len(ranking))
    ranked, half = np.asarray(ranking, dtype=np.intp), most // 2
    others = np.random.default_rng(len(ranked)).permutation(ranked[half:])[: most - half]
    return np.sort(np.concatenate([ranked[:half], others]))


def with_rare_ones(is_rare: Array, most: int) -> Rows:
    """Return at most `most` random positions, ascending, with up to a quarter of rare ones (`is_rare` > 0 [n])."""
    if len(is_rare) <= most:
        return np.arange(len(is_rare))
    mixed = np.random.default_rng(len(is_rare)).permutation(len(is_rare))
    rare, common = mixed[is_rare[mixed] > 0], mixed[is_rare[mixed] == 0]
    few = min(len(rare), max(most // 4, most - len(common)))
    return np.sort(np.concatenate([rare[:few], common[: most - few]]))


Given = ParamSpec("Given")
Result = TypeVar("Result")


@cache
def _libraries() -> ThreadpoolController:
    """Return the loaded linear algebra libraries, cached, since finding them takes milliseconds."""
    return ThreadpoolController()


def in_one_thread(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorator: run a function's linear algebra in one thread."""

    @wraps(function)
    def limited(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with _libraries().limit(limits=1):
            return function(*args, **kwargs)

    return limited
