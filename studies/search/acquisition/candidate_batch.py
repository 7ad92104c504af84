"""Configurations that are looked at together: what can be told of them, and where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from studies.search.acquisition.hypervolume_improvement import Marginal
from studies.search.model.cokriging import CandidateInputs
from studies.search.model.gaussian_process import Array


@dataclass(frozen=True, slots=True)
class CandidateFeatures:
    """What can be told of configurations without training them.

    Attributes:
        x: Their points [m, D].
        hints: Logarithms of what is known, for regressions [m, K].
        sizes: By objective, its value where it is known [m].
        world_sizes: Ranks [m].
    """

    x: Array
    hints: Array
    sizes: Mapping[int, Array]
    world_sizes: Array

    def rows(self, chosen: NDArray[np.intp]) -> CandidateFeatures:
        """Some of them."""
        sizes = {j: values[chosen] for j, values in self.sizes.items()}
        return CandidateFeatures(self.x[chosen], self.hints[chosen], sizes, self.world_sizes[chosen])


@dataclass(frozen=True, slots=True)
class CandidateBatch:
    """Configurations that stand at the same rung, or that nobody has tried.

    Attributes:
        pool: Their points.
        rung: Index of the rung where they stand; -1 before the first.
        log_usd: Mean of the logarithm of dollars per epoch [m],
        log_usd_sd: and its deviation, 0 once it was measured [m].
        paid_usd: Dollars so far [m].
        start_epochs: What it costs to go on, in epochs [m].
        done: Epochs so far.
        seconds_per_usd: Of wall time [m].
        statics: By objective, mean, deviation and kind [m] each.
        stands: By learned objective, z and slope at the rung [m] each.
    """

    pool: CandidateInputs
    rung: int
    log_usd: Array
    log_usd_sd: Array
    paid_usd: Array
    start_epochs: Array
    done: int
    seconds_per_usd: Array
    statics: Mapping[int, Marginal]
    stands: Mapping[int, tuple[Array, Array]] = field(default_factory=dict)

    def rows(self, chosen: NDArray[np.intp]) -> CandidateBatch:
        """Some of them."""
        return CandidateBatch(
            pool=self.pool.rows(chosen),
            rung=self.rung,
            log_usd=self.log_usd[chosen],
            log_usd_sd=self.log_usd_sd[chosen],
            paid_usd=self.paid_usd[chosen],
            start_epochs=self.start_epochs[chosen],
            done=self.done,
            seconds_per_usd=self.seconds_per_usd[chosen],
            statics={j: (mean[chosen], sd[chosen], kind) for j, (mean, sd, kind) in self.statics.items()},
            stands={j: (z[chosen], d[chosen]) for j, (z, d) in self.stands.items()},
        )
