"""ASHA on a random-weight scalarisation: what one does with a pruner for one objective, as Ray Tune's.

When a trial arrives at a rung it draws weights, by its number; all trials that were ever measured there are compared
by the weighted sum of their objectives, scaled to the rung's range, and the trial goes on iff it is among the best
third. Random search, rungs 3, 9, 27, stopping variant.
"""

from __future__ import annotations

import numpy as np

from search_spaces.drawing import derived_seed
from studies.search.policy import Decision, History
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner


class ScalarisedAsha(NoPruner):
    """Stops a trial that is not among the best third for weights of its own.

    Args:
        seed: Random seed of the weights.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._asha = MoAsha()

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """3, 9, 27, ..."""
        return self._asha.rungs(epochs)

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Continue iff among the best third."""
        at_rung = history.at_rung[rung]
        values = np.array(list(at_rung.values()))
        low, high = values.min(axis=0), values.max(axis=0)
        rng = np.random.default_rng(derived_seed("weights", self._seed, number))
        weights = rng.dirichlet(np.ones(values.shape[1]))
        sums = ((values - low) / np.where(high > low, high - low, 1.0)) @ weights
        scalar: dict[int, tuple[float, ...]]
        scalar = {other: (float(total),) for other, total in zip(at_rung, sums, strict=True)}
        return self._asha.decide(History(at_rung={rung: scalar}), number, rung)
