"""Samples: quasi-random points, and the subsets of the trials on which processes are fitted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import qmc

from studies.search.arrays import Array, Rows


def sobol_points(dimensions: int, count: int, seed: int | np.random.Generator) -> Array:
    """Scrambled Sobol points of the unit cube [count, dimensions]."""
    points: Array = qmc.Sobol(dimensions, seed=seed).random_base2(int(np.ceil(np.log2(count))))
    return points[:count]


def best_and_random(ranking: Sequence[int] | Rows, most: int) -> Rows:
    """The best half and a random half of the others: near the best a model has to be exact, elsewhere only unbiased.

    The random half depends on the number of positions alone, so that a resumed study chooses the same.

    Returns:
        Positions in ascending order; all of them if there are at most `most`.
    """
    if len(ranking) <= most:
        return np.arange(len(ranking))
    ranked, half = np.asarray(ranking, dtype=np.intp), most // 2
    others = np.random.default_rng(len(ranked)).permutation(ranked[half:])[: most - half]
    return np.sort(np.concatenate([ranked[:half], others]))


def with_rare_ones(is_rare: Array, most: int) -> Rows:
    """A random subset in which rare positions make up a quarter, or all of them if they are fewer.

    Args:
        is_rare: Positive at rare positions, 0 elsewhere [n].

    Returns:
        Positions in ascending order; all of them if there are at most `most`.
    """
    if len(is_rare) <= most:
        return np.arange(len(is_rare))
    mixed = np.random.default_rng(len(is_rare)).permutation(len(is_rare))
    rare, common = mixed[is_rare[mixed] > 0], mixed[is_rare[mixed] == 0]
    few = min(len(rare), max(most // 4, most - len(common)))
    return np.sort(np.concatenate([rare[:few], common[: most - few]]))
