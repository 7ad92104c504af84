"""The break-even index: expected hypervolume improvement per dollar, with the option to stop at a later rung.

The index of a candidate that stands at rung r is the exchange rate lambda, in hypervolume per dollar, at which training
it to the next rung, and from there to the rung h where that pays most or not at all, just breaks even:

    sum_j w_j max_{h > r} (EHVI_h(u_j) - lambda C_h)_+ = lambda Delta      solved for lambda

    Delta     dollars from where the candidate stands to the next rung
    C_h       dollars from the next rung to rung h; 0 for the next rung itself
    u_j, w_j  Gauss-Hermite nodes of what the next rung will tell (standard normal innovations), and their weights
    EHVI_h    expected hypervolume improvement of stopping at rung h, times the probability of feasibility

An index after Gittins, as in Xie et al. 2024 (arXiv 2406.20062): the larger, the better.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np

from studies.search.arrays import Array

NODES = 5
"""Number of nodes for each innovation."""
MOST_INNOVATIONS = 2
"""Largest number of learned objectives whose innovations have nodes."""
BISECTIONS = 28
"""Number of halvings of the interval that holds the index: it is exact to 2^-28 of its upper bound."""


@cache
def hermite_nodes(learned: int) -> tuple[Array, Array]:
    """Gauss-Hermite nodes for the innovations of the first learned objectives.

    Args:
        learned: Number of learned objectives; without any there is one node, which says nothing.

    Returns:
        Standard normal nodes [J, up to `MOST_INNOVATIONS`], and their weights, which sum to 1 [J].
    """
    points, weights = np.polynomial.hermite_e.hermegauss(NODES)
    count = min(learned, MOST_INNOVATIONS)
    grid = np.array(list(itertools.product(points, repeat=count))).reshape(NODES**count, count)
    products = [math.prod(one) for one in itertools.product(weights / weights.sum(), repeat=count)]
    return grid, np.array(products)


def break_even(gains: Array, weights: Array, to_next_rung: Array, beyond: Array) -> Array:
    """The index of each candidate [m], in the unit of `gains` per dollar.

    Args:
        gains: EHVI at each node and rung to come [m, J, H].
        weights: Weights of the nodes, which sum to 1 [J].
        to_next_rung: Dollars to the next rung [m].
        beyond: Dollars from the next rung to each rung to come [m, H].
    """
    low, high = np.zeros(len(gains)), gains.max(axis=(1, 2)) / to_next_rung
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        worth = np.maximum((gains - (middle[:, None] * beyond)[:, None, :]).max(axis=2), 0.0) @ weights
        pays = worth >= middle * to_next_rung
        low, high = np.where(pays, middle, low), np.where(pays, high, middle)
    index: Array = 0.5 * (low + high)
    return index
