"""`sampler: cokriging`: suggests the untried configuration with the largest index, by our model of learning curves."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from search_spaces.parameters import Int
from search_spaces.seeds import derived_seed
from studies.search.model.curve_model import CurveModel
from studies.search.model.encoding import identity
from studies.search.model.threads import in_one_thread
from studies.search.observations import Observation, Snapshot
from studies.search.samplers.acquisition_optimizer import AcquisitionOptimizer
from studies.search.samplers.protocol import Identity, Suggestion, draw_untried, identities
from trainers.protocol import Params


class ModelSuggester:
    """Learns from snapshots of all trials, and suggests what is worth most. It needs no Optuna.

    Args:
        model: Model of the study, used by this object's thread alone.
        seed: Random seed of the study.
        candidates: The only configurations that there are, as a table of recorded curves has; None for any of the
            space.
    """

    def __init__(self, model: CurveModel, *, seed: int, candidates: Sequence[Params] | None = None) -> None:
        self._model, self._space, self._seed = model, model.problem.space, seed
        self._optimizer = AcquisitionOptimizer(model, candidates)

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """Returns the parameters for trial `number`; those of an earlier trial are drawn again."""
        snapshots = [observation.snapshot for observation in history if observation.snapshot is not None]

        tried = identities(history)

        def draw(redraw: int) -> Params:
            # The first choice needs not look for those that were tried: in a space of numbers it is none of them.
            return self._drawn(snapshots, derived_seed("ask", self._seed, number, redraw), tried if redraw else ())

        return Suggestion(params=draw_untried(draw, tried))

    @in_one_thread
    def _drawn(self, snapshots: Sequence[Snapshot], seed: int, tried: Collection[Identity]) -> Params:
        def is_tried(chosen: Params) -> bool:
            return identity(self._completed(chosen, seed)) in tried

        return self._completed(self._optimizer.choose(snapshots, seed, is_tried if tried else None), seed)

    def _completed(self, chosen: Params, seed: int) -> Params:
        """The active parameters in the order of the space; one that an earlier study did not have is drawn."""
        if any(name not in chosen for name in self._space.active(chosen)):
            encoder = self._model.encoder
            units = encoder.units(chosen)
            drawn = encoder.decode(np.where(np.isnan(units), np.random.default_rng(seed).random(len(units)), units))
            chosen = {**drawn, **chosen}
        return self._space.walk(
            lambda name, parameter: int(chosen[name]) if isinstance(parameter, Int) else chosen[name]  # type: ignore[arg-type]
        )
