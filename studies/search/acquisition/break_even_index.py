"""The index: the price of a dollar, in hypervolume, at which going on, stopping again where it pays, just breaks even.

    sum_j w_j max_{h >= r+1} (EHVI_h(node j) - lambda C_h)_+ = lambda Delta      solved for lambda

with Delta the dollars to the next rung, C_h those from there to rung h, and j the Gauss-Hermite nodes of what the next
rung will tell: an index after Gittins, as in Xie et al. 2024 (arXiv 2406.20062).
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from studies.search.model.gaussian_process import Array

NODES = 5
MOST_INNOVATIONS = 2
BISECTIONS = 28


def hermite_nodes(learned: int) -> tuple[Array, Array]:
    """Standard normal nodes for the next innovation of up to two learned objectives [J, up to 2], and their weights.

    Without a learned objective there is one node, which says nothing.
    """
    places, weights = np.polynomial.hermite_e.hermegauss(NODES)
    count = min(learned, MOST_INNOVATIONS)
    grid = np.array(list(itertools.product(places, repeat=count))).reshape(NODES**count, count)
    products = [math.prod(one) for one in itertools.product(weights / weights.sum(), repeat=count)]
    return grid, np.array(products)


def break_even(gains: Array, weights: Array, first: Array, after: Array) -> Array:
    """The index of each candidate [m].

    Args:
        gains: EHVI at each node and horizon [m, J, H].
        weights: Of the nodes [J], summing to 1.
        first: Dollars to the next rung [m].
        after: Dollars from there to each horizon [m, H].
    """
    low, high = np.zeros(len(gains)), gains.max(axis=(1, 2)) / first
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        worth = np.maximum((gains - (middle[:, None] * after)[:, None, :]).max(axis=2), 0.0) @ weights
        pays = worth >= middle * first
        low, high = np.where(pays, middle, low), np.where(pays, high, middle)
    price: Array = 0.5 * (low + high)
    return price
