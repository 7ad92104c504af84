"""Configurations that a spec names for the first trials (`search.first_trials`); a sampler suggests all others."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from search_spaces.completion import complete
from search_spaces.parameters import Value
from search_spaces.seeds import derived_seed
from search_spaces.space import Space
from studies.search.model.encoding import identity
from studies.search.observations import Observation
from studies.search.samplers.protocol import Suggester, Suggestion, identities


class FirstTrials:
    """Suggests what is named first, and leaves the rest to a sampler.

    Args:
        named: Parameters of the first trials; what they leave open is drawn at random.
        space: Search space of the study.
        seed: Random seed of the study.
        sampler: Suggester of all later trials, which learns from the first ones.
    """

    def __init__(self, named: Sequence[Mapping[str, Value]], *, space: Space, seed: int, sampler: Suggester) -> None:
        self._sampler = sampler
        self._params = [
            complete(space, one, random.Random(derived_seed("first", seed, number))) for number, one in enumerate(named)
        ]

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """Returns the parameters for trial `number`: the next ones that were named and that no trial has.

        Trials that people have enqueued meanwhile have numbers, too, so the number does not say which are next. It says
        how many configurations wait that are not in the history yet; they are taken for the first of those left.
        """
        tried = identities(history)
        left = [one for one in self._params if identity(one) not in tried]
        waiting = number - len(history)
        if waiting < len(left):
            return Suggestion(params=left[waiting], is_named=True)
        return self._sampler.suggest(number, history)
