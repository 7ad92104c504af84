"""Expected hypervolume improvement (EHVI) over the best points, for conditionally independent objectives.

Two objectives Y_1 and Y_2, to be minimised, have an exact formula:

    EHVI = sum_k [Psi_1(e_{k+1}) - Psi_1(e_k)] Psi_2(U_k),   Psi_j(c) = E[(c - Y_j)_+]

Box k between the best points, sorted by the first objective, goes from e_k to e_{k+1} below its ceiling U_k (Emmerich
et al. 2016, section 3). Without a point in the reference box, EHVI is the product of Psi_j at the box's corner.
`Directions` sample three or more objectives.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import gamma, ndtr, ndtri

from studies.results import pareto
from studies.search.arrays import Array, Kind, Marginal, sobol_points

LARGEST_EXPONENT = 700.0
"""Limit of exponents, whose exponential is finite."""
_ROOT_TWO_PI = np.sqrt(2.0 * np.pi)


def expected_below(c: Array, mean: Array, sd: Array, kind: Kind) -> Array:
    """Return Psi(c) = E[(c - Y)_+]; `sd` is 0 for a certain value."""
    safe = np.maximum(sd, 1e-12)
    if kind == "gaussian":
        off = (c - mean) / safe
        uncertain = (c - mean) * ndtr(off) + safe * np.exp(-0.5 * off**2) / _ROOT_TWO_PI
        certain = c - mean
    else:
        positive = np.maximum(c, 1e-300)
        off = (np.log(positive) - mean) / safe
        uncertain = np.where(
            c > 0, c * ndtr(off) - np.exp(np.minimum(mean + 0.5 * sd**2, LARGEST_EXPONENT)) * ndtr(off - safe), 0.0
        )
        certain = c - np.exp(np.minimum(mean, LARGEST_EXPONENT))
    return np.maximum(np.where(sd > 1e-9, uncertain, certain), 0.0)


@dataclass(frozen=True, slots=True)
class FreeBox:
    """A box without points, up to `corner` [m]: the reference point or, with one objective, the best value."""

    corner: Array

    def expected(self, marginals: Sequence[Marginal]) -> Array:
        """Return the expected hypervolume improvement, from one distribution per objective."""
        gaps = [expected_below(end, *one) for end, one in zip(self.corner, marginals, strict=True)]
        return math.prod(gaps[1:], start=gaps[0])


@dataclass(frozen=True, slots=True)
class BoxDecomposition:
    """The region that n points with two objectives do not dominate, cut into n + 1 boxes."""

    edges: Array  # e_{k+1}, at which box k ends; the first box starts at minus infinity
    ceilings: Array  # U_k, the upper end of box k

    @staticmethod
    def under(archive: Array, reference: Array) -> "BoxDecomposition":
        """Return the boxes for points [n, 2]; ignores points outside the box of the reference point."""
        inside = archive[(archive < reference).all(axis=1)] if len(archive) else archive.reshape(0, 2)
        front = inside[pareto.archive([tuple(p) for p in inside])] if len(inside) else inside
        front = front[np.argsort(front[:, 0], kind="stable")]
        return BoxDecomposition(np.append(front[:, 0], reference[0]), np.concatenate(([reference[1]], front[:, 1])))

    def expected(self, marginals: Sequence[Marginal]) -> Array:
        """See `FreeBox.expected`."""
        first, second = marginals
        below_edges = expected_below(self.edges, first[0][..., None], first[1][..., None], first[2])
        widths = np.diff(below_edges, axis=-1, prepend=0.0)
        depths = expected_below(self.ceilings, second[0][..., None], second[1][..., None], second[2])
        gained: Array = np.einsum("...k,...k->...", np.maximum(widths, 0.0), depths)
        return gained


class Directions:
    """Hypervolume as a mean over directions, for m >= 3 objectives (Golovin and Zhang 2020, arXiv 2006.04655).

    Hypervolume = constant x mean over w of max over points of min over objectives j of (g_j / w_j)^m, with directions w
    on the positive part of the unit sphere, and gaps g of a point to the reference point. All candidates are compared
    with the same directions and random draws.
    """

    def __init__(self, objectives: int, *, count: int = 128, seed: int = 0) -> None:
        points = np.clip(sobol_points(2 * objectives, count, seed), 1e-6, 1.0 - 1e-6)
        directions = np.abs(ndtri(points[:, :objectives]))
        self.directions: Array = np.maximum(directions / np.linalg.norm(directions, axis=1, keepdims=True), 1e-3)
        self.draws: Array = ndtri(points[:, objectives:])
        self.objectives = objectives
        half = objectives / 2.0
        self.constant = float(np.pi**half / (2.0**objectives * gamma(half + 1.0)))

    def heights(self, archive: Array, reference: Array, units: Array) -> Array:
        """Return max over points of min_j (g_j / w_j)^m for each direction [count]."""
        if not len(archive):
            return np.zeros(len(self.directions))
        gaps = np.maximum((reference - archive) / units, 0.0)
        reached: Array = (gaps[None, :, :] / self.directions[:, None, :]).min(axis=2).max(axis=1) ** self.objectives
        return reached


_directions = cache(Directions)


@dataclass(frozen=True, slots=True)
class SampledImprovement:
    """Expected improvement for three or more objectives."""

    directions: Directions
    heights: Array
    reference: Array
    units: Array

    @staticmethod
    def over(archive: Array, reference: Array) -> "SampledImprovement":
        """Return the improvement over points [n, m], at least one of which must be inside the box.

        Objectives are divided by their ranges in the box; otherwise the objective of the smallest numbers would decide.
        """
        directions = _directions(len(reference))
        inside = archive[(archive < reference).all(axis=1)]
        units = reference - inside.min(axis=0)
        return SampledImprovement(directions, directions.heights(inside, reference, units), reference, units)

    def expected(self, marginals: Sequence[Marginal]) -> Array:
        """See `FreeBox.expected`. The mean is over one random draw per direction."""
        own, reached = self.directions, None
        for j, (mean, sd, kind) in enumerate(marginals):
            drawn = np.asarray(mean)[..., None] + np.asarray(sd)[..., None] * own.draws[:, j]
            values = np.exp(drawn) if kind == "lognormal" else drawn
            gap = np.maximum((self.reference[j] - values) / self.units[j], 0.0) / own.directions[:, j]
            reached = gap if reached is None else np.minimum(reached, gap)
        assert reached is not None  # noqa: S101 - there is at least one objective
        gained = np.maximum(reached**own.objectives - self.heights, 0.0).mean(axis=-1)
        result: Array = own.constant * float(np.prod(self.units)) * gained
        return result


Improvement = FreeBox | BoxDecomposition | SampledImprovement


def improvement_over(archive: Array, reference: Array) -> Improvement:
    """Return the expected improvement over points inside the box of the reference point."""
    if len(reference) == 1:
        return FreeBox(np.minimum(reference, archive.min(axis=0, initial=np.inf)))
    if len(reference) == 2:
        return BoxDecomposition.under(archive, reference)
    if not (archive < reference).all(axis=1).any():
        return FreeBox(reference)
    return SampledImprovement.over(archive, reference)
