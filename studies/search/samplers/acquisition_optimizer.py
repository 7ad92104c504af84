"""Which configuration that nobody has tried is worth most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import qmc

from studies.search.acquisition.candidate_batch import CandidateBatch
from studies.search.acquisition.user_prior import UserPrior, faded
from studies.search.model.encoding import identity
from studies.search.model.search_model import STARTERS, SearchModel
from studies.search.observations import Snapshot
from trainers.protocol import ParameterValue

KNOWN_GOOD = 2
"""Starters that were good in earlier studies, if there are any."""
RANDOM_SHARE = 0.03
DOUBTING_SHARE = 0.5
"""Of choices, while no configuration promises anything noticeable: by what full trainings may be worth."""
POOL, NEAR_GOOD, NEAR_SD = 1664, 336, 0.08
SCREENED, EXACT = 450, 150
FULL_PASS_EVERY = 4
Params = Mapping[str, ParameterValue]


class AcquisitionOptimizer:
    """Chooses the next configuration by its break-even price.

    Args:
        model: Has to have learned before each choice.
        candidates: All configurations there are; None takes any of the space, from a fresh pool per choice.
    """

    def __init__(self, model: SearchModel, candidates: Sequence[Params] | None = None) -> None:
        self._model = model
        self._candidates = candidates
        self._table = None if candidates is None else model.describe(candidates)
        self._row_of = {} if candidates is None else {identity(params): i for i, params in enumerate(candidates)}
        self._calls = 0
        self._best_rows = np.zeros(0, dtype=np.intp)
        self._doubts = False
        transfer = model.problem.transfer
        self._beliefs = UserPrior(model.problem.space)
        self._density = self._beliefs.density(candidates or ())
        self._known_good = [] if transfer is None else transfer.starters(KNOWN_GOOD)

    def choose(self, trials: Sequence[Snapshot], number: int, seed: int) -> dict[str, ParameterValue]:
        """The parameters for trial `number`.

        Args:
            trials: Started so far.
            number: Of the trial to come.
            seed: Of this choice.
        """
        rng = np.random.default_rng(seed)
        is_random = number < STARTERS or rng.random() < RANDOM_SHARE
        if number < len(self._known_good):
            return self._started_from(self._known_good[number], trials)
        if self._candidates is not None:
            return dict(self._of_table(trials, rng, is_random=is_random, is_starter=number < STARTERS))
        if number < STARTERS:
            return self._model.encoder.decode(self._beliefs.draw(rng, 1)[0])
        if is_random:
            return self._model.encoder.decode(rng.random(self._model.encoder.parameters))
        return self._of_space(trials, rng)

    def _started_from(self, params: Params, trials: Sequence[Snapshot]) -> dict[str, ParameterValue]:
        """These parameters, or of a table the configuration that is nearest to them."""
        if self._candidates is None or self._table is None:
            return dict(params)
        distance = ((self._table.x - self._model.encoder.encode(params)) ** 2).sum(axis=1)
        distance[self._tried(trials)] = np.inf
        return dict(self._candidates[int(np.argmin(distance))])

    def _tried(self, trials: Sequence[Snapshot]) -> list[int]:
        """Rows of the table that were started."""
        return [row for trial in trials if (row := self._row_of.get(identity(trial.params))) is not None]

    def _of_table(
        self, trials: Sequence[Snapshot], rng: np.random.Generator, *, is_random: bool, is_starter: bool
    ) -> Params:
        assert self._candidates is not None  # noqa: S101 - the caller has looked
        assert self._table is not None  # noqa: S101 - as above
        free = np.ones(len(self._candidates), dtype=bool)
        free[self._tried(trials)] = False
        if not free.any():
            free[:] = True  # all were tried: trying one again is what is left
        rows = np.flatnonzero(free)
        if is_random:
            density = self._density[rows]
            believed = density / density.sum() if self._beliefs and is_starter else None
            return self._candidates[int(rng.choice(rows, p=believed))]
        doubts = self._doubts and rng.random() < DOUBTING_SHARE
        if not doubts and self._calls % FULL_PASS_EVERY and len(self._best_rows):
            rows = self._best_rows[free[self._best_rows]]
        if not len(rows):
            rows = np.flatnonzero(free)
        some = self._model.untried(self._table.rows(rows))
        weights = faded(self._density[rows], len(trials))
        if doubts:
            return self._candidates[int(rows[self._most_doubtful(some, weights)])]
        order = self._order(some, weights)
        if self._calls % FULL_PASS_EVERY == 0:
            self._best_rows = rows[order[:SCREENED]]
        self._calls += 1
        return self._candidates[int(rows[self._best(some, order, weights)])]

    def _of_space(self, trials: Sequence[Snapshot], rng: np.random.Generator) -> dict[str, ParameterValue]:
        encoder = self._model.encoder
        units = qmc.Sobol(encoder.parameters, seed=rng).random_base2(int(np.ceil(np.log2(POOL))))[:POOL]
        if self._beliefs:
            units[::2] = self._beliefs.draw(rng, len(units[::2]))
        pool = np.vstack([units, self._near_good(trials, rng)])
        some = self._model.untried(self._model.describe_units(pool))
        weights = faded(self._beliefs.density_at(pool), len(trials))
        if self._doubts and rng.random() < DOUBTING_SHARE:
            return encoder.decode(pool[self._most_doubtful(some, weights)])
        return encoder.decode(pool[self._best(some, self._order(some, weights), weights)])

    def _near_good(self, trials: Sequence[Snapshot], rng: np.random.Generator) -> np.ndarray:
        """Points around the configurations of the archive."""
        encoder = self._model.encoder
        points, width = {tuple(point) for point in self._model.archive.tolist()}, self._model.archive.shape[1]
        good = [trial for trial in trials if any(tuple(map(float, v[:width])) in points for v in trial.at.values())]
        if not good:
            return np.zeros((0, encoder.parameters))
        chosen = rng.choice(len(good), size=NEAR_GOOD)
        centres = np.array([encoder.units(trial.params) for trial in good])[chosen]
        fresh = rng.random(centres.shape)
        moved = np.clip(centres + NEAR_SD * rng.standard_normal(centres.shape), 0.0, 1.0 - 1e-9)
        # A category, or a child that does not exist at the centre, is drawn afresh now and then.
        moved = np.where(np.isnan(centres) | (rng.random(centres.shape) < 0.1), fresh, moved)
        kept: np.ndarray = moved
        return kept

    def _order(self, some: CandidateBatch, weights: np.ndarray) -> np.ndarray:
        """Positions from the largest weighted index down, without nodes."""
        prices = self._model.break_even_prices(some, with_nodes=False)
        if self._model.widened(float(prices.max())):
            prices = self._model.break_even_prices(some, with_nodes=False)
        return np.argsort(-prices * weights, kind="stable")

    def _most_doubtful(self, some: CandidateBatch, weights: np.ndarray) -> int:
        return int(np.argmax(self._model.doubtful_prices(some) * weights))

    def _best(self, some: CandidateBatch, order: np.ndarray, weights: np.ndarray) -> int:
        shortlist = order[:EXACT]
        exact = self._model.break_even_prices(some.rows(shortlist), with_nodes=True)
        self._doubts = self._model.is_doubtful(float(exact.max()))
        return int(shortlist[int(np.argmax(exact * weights[shortlist]))])
