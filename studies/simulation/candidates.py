"""Finite sets of configurations, such as a curve table; a suggested point becomes the nearest unused configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from search_spaces.derived_seeds import derived_seed
from search_spaces.parameters import Value
from search_spaces.space import Space
from studies.search.model.encoding import Encoder, identity
from studies.search.observations import Observation
from studies.search.samplers.suggester import Suggester, Suggestion

Array = NDArray[np.float64]


class Candidates:
    """Configurations to be taken once each, at `points` [n, D] (`Encoder.encode`); `unused` is a mask [n]."""

    def __init__(
        self, space: Space, params: Sequence[Mapping[str, Value]], statics: Mapping[str, Array] | None = None
    ) -> None:
        self.space = space
        self.params = tuple(params)
        self.statics = dict(statics or {})
        self.unused: NDArray[np.bool_] = np.ones(len(self.params), dtype=bool)
        self._rows = {identity(one): row for row, one in reversed(list(enumerate(self.params)))}
        self._encoder = Encoder(space)
        self.points = np.stack([self._encoder.encode(one) for one in self.params])

    def row_of(self, params: Mapping[str, Value]) -> int:
        """Return the row with these parameters. Raises KeyError if there is none."""
        return self._rows[identity(params)]

    def nearest(self, params: Mapping[str, Value]) -> int:
        """Return the nearest unused row, the first of equally near rows; any row once all were used."""
        distance = ((self.points - self._encoder.encode(params)) ** 2).sum(axis=1)
        if self.unused.any():
            distance = np.where(self.unused, distance, np.inf)
        return int(np.argmin(distance))

    def take(self, row: int) -> Mapping[str, Value]:
        """Return the row's parameters, and mark the row as used."""
        self.unused[row] = False
        return self.params[row]


class NearestCandidate:
    """A suggester that replaces each suggestion by the nearest unused candidate."""

    def __init__(self, suggester: Suggester, candidates: Candidates) -> None:
        self._suggester, self._candidates = suggester, candidates

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """Return the parameters of a candidate for trial `number`."""
        suggestion = self._suggester.suggest(number, history)
        return replace(suggestion, params=self._candidates.take(self._candidates.nearest(suggestion.params)))


class RandomCandidate:
    """Suggests unused candidates with equal probability: a random sampler on a finite set."""

    def __init__(self, candidates: Candidates, seed: int) -> None:
        self._candidates, self._seed = candidates, seed

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:  # noqa: ARG002 - the interface
        """Return the parameters of a candidate for trial `number`."""
        unused = np.flatnonzero(self._candidates.unused)
        rng = np.random.default_rng(derived_seed("candidate", self._seed, number))
        row = int(rng.choice(unused)) if len(unused) else int(rng.integers(len(self._candidates.params)))
        return Suggestion(params=self._candidates.take(row))
