"""Expected hypervolume improvement over an archive, exact for two objectives that are independent given a trial.

    EHVI = sum_k [Psi_1(e_{k+1}) - Psi_1(e_k)] Psi_2(U_k),   Psi(c) = E[(c - Y)_+]

over the strips between the archive's points sorted by the first objective: strip k goes from e_k to e_{k+1}, and what
is better than the archive there lies below its ceiling U_k. (The decomposition is that of Emmerich et al. 2016, section
3, with whatever marginals have a closed form for Psi.) Three objectives and more: `sampled_improvement`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from studies import pareto

Array = NDArray[np.float64]
Kind = Literal["lognormal", "gaussian"]
LARGEST_EXPONENT = 700.0
"""Of what is still a finite number; a forecast as bad as that improves nothing anyway."""
Marginal = tuple[Array, Array, Kind]
"""Mean, deviation and kind of a quantity, of its logarithm if it is log-normal."""
_ROOT_TWO_PI = np.sqrt(2.0 * np.pi)


@dataclass(frozen=True, slots=True)
class BoxDecomposition:
    """What lies below a two-dimensional archive, cut along the first objective.

    Attributes:
        edges: Right ends e_1 .. e_{n+1} [n + 1]; the left end of the first strip is minus infinity.
        ceilings: U_0 .. U_n [n + 1].
    """

    edges: Array
    ceilings: Array

    @staticmethod
    def under(archive: Array, reference: Array) -> BoxDecomposition:
        """Strips of an archive [n, 2] within the reference's box; points outside of it are dropped."""
        inside = archive[(archive < reference).all(axis=1)] if len(archive) else archive.reshape(0, 2)
        front = inside[pareto.archive([tuple(p) for p in inside])] if len(inside) else inside
        front = front[np.argsort(front[:, 0], kind="stable")]
        return BoxDecomposition(np.append(front[:, 0], reference[0]), np.concatenate(([reference[1]], front[:, 1])))


def expected_below(c: Array, mean: Array, sd: Array, kind: Kind) -> Array:
    """Psi(c) = E[(c - Y)_+].

    Args:
        c: Bounds, broadcast against the others.
        mean: Of Y, or of log Y where it is log-normal.
        sd: Likewise; 0 where the value is certain.
        kind: Distribution of Y.
    """
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


def improvement(strips: BoxDecomposition, first: tuple[Array, Array, Kind], second: tuple[Array, Array, Kind]) -> Array:
    """Exact EHVI of candidates.

    Args:
        strips: Of the archive.
        first: Mean, deviation and kind of the first objective; arrays of one shape.
        second: The same of the second.

    Returns:
        In the product of the objectives' units, with the arrays' shape.
    """
    below_edges = expected_below(strips.edges, first[0][..., None], first[1][..., None], first[2])
    widths = np.diff(below_edges, axis=-1, prepend=0.0)
    depths = expected_below(strips.ceilings, second[0][..., None], second[1][..., None], second[2])
    gained: Array = np.einsum("...k,...k->...", np.maximum(widths, 0.0), depths)
    return gained


class Directions:
    """Hypervolume as a mean over directions, for three objectives and more (Golovin and Zhang 2020, arXiv 2006.04655).

    The volume of a set is the mean over directions w of max over its points of min over objectives of (gap / w)^m,
    times a constant. Directions and draws are fixed, so that candidates are compared with common random numbers.

    Args:
        objectives: How many, m.
        count: Directions, each with one draw of every candidate.
        seed: Of both.
    """

    def __init__(self, objectives: int, *, count: int = 128, seed: int = 0) -> None:
        points = qmc.Sobol(2 * objectives, seed=seed).random(count)
        points = np.clip(points, 1e-6, 1.0 - 1e-6)
        directions = np.abs(ndtri(points[:, :objectives]))
        self.directions: Array = np.maximum(directions / np.linalg.norm(directions, axis=1, keepdims=True), 1e-3)
        self.draws: Array = ndtri(points[:, objectives:])
        self.objectives = objectives
        half = objectives / 2.0
        from scipy.special import gamma

        self.constant = float(np.pi**half / (2.0**objectives * gamma(half + 1.0)))

    def heights(self, archive: Array, reference: Array, scale: Array) -> Array:
        """What the archive reaches in each direction [count]."""
        if not len(archive):
            return np.zeros(len(self.directions))
        gaps = np.maximum((reference - archive) / scale, 0.0)
        reached: Array = (gaps[None, :, :] / self.directions[:, None, :]).min(axis=2).max(axis=1) ** self.objectives
        return reached

    def improvement(
        self, heights: Array, reference: Array, scale: Array, components: list[tuple[Array, Array, Kind]]
    ) -> Array:
        """Sampled EHVI of candidates, in the product of the objectives' units.

        Args:
            heights: Of the archive.
            reference: [m].
            scale: Units in which the objectives are comparable [m].
            components: Mean, deviation and kind of each objective; arrays of one shape.
        """
        reached = None
        for j, (mean, sd, kind) in enumerate(components):
            drawn = np.asarray(mean)[..., None] + np.asarray(sd)[..., None] * self.draws[:, j]
            values = np.exp(drawn) if kind == "lognormal" else drawn
            gap = np.maximum((reference[j] - values) / scale[j], 0.0) / self.directions[:, j]
            reached = gap if reached is None else np.minimum(reached, gap)
        assert reached is not None  # noqa: S101 - there is at least one objective
        gained = np.maximum(reached**self.objectives - heights, 0.0).mean(axis=-1)
        result: Array = self.constant * float(np.prod(scale)) * gained
        return result
