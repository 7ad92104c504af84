"""`sampler: cokriging`: suggests the untried configuration that the learning-curve model values most."""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from search_spaces.drawing import derived_seed, derived_uniform
from search_spaces.parameters import Int
from studies.records.records import ADVISED
from studies.search.acquisition.acquisition import INITIAL_TRIALS, Acquisition, BatchValues, build_acquisition
from studies.search.acquisition.training_recipe import TrainingRecipe
from studies.search.acquisition.user_prior import UserPrior, faded
from studies.search.arrays import Array, Rows, in_one_thread, sobol_points
from studies.search.model.candidate_batch import CandidateBatch
from studies.search.model.curve_model import CurveModel
from studies.search.model.encoding import ABSENT, identity
from studies.search.observations import Observation, Snapshot
from studies.search.samplers import suggester
from studies.search.samplers.advisor import Advisor
from studies.search.samplers.suggester import Identity, Suggestion, Tried, Untried, draw_untried
from trainers.protocol import ParameterValue, Params

KNOWN_GOOD = 2
"""Largest number of good configurations of earlier studies that are suggested first."""
RANDOM_SHARE = 0.03
"""Share of random suggestions."""
STAGNATION_SHARE = 0.5
"""Share of suggestions by the value of a full training, while the search stagnates."""
POOL = 1664
"""Number of quasi-random candidates for a suggestion."""
NEAR_GOOD, NEAR_SD = 336, 0.08
"""Number of candidates near configurations of the archive, and their standard deviation in the unit cube."""
REDRAWN_SHARE = 0.1
"""Share of these candidates' coordinates that are drawn uniformly, so that choices vary too."""
SCREENED = 450
"""Number of listed configurations that stay candidates between two passes over the whole list."""
EXACT = 150
"""Number of candidates whose index is computed exactly."""
ADVISED_SHARE = 0.1
"""Share of suggestions that are the advisor's best proposal, even with a low index."""
FULL_PASS_EVERY = 4
"""Number of suggestions for each pass over a whole list."""


class AcquisitionOptimizer:
    """Chooses by value and user prior among `candidates` or, with None, samples of the space."""

    def __init__(self, model: CurveModel, candidates: Sequence[Params] | None = None) -> None:
        self._model = model
        self._candidates = candidates
        self._features = None if candidates is None else model.features(candidates)
        self._row_of = {} if candidates is None else {identity(params): i for i, params in enumerate(candidates)}
        self._choices = 0
        self._best_rows: Rows = np.zeros(0, dtype=np.intp)
        self._is_stagnating = False
        transfer = model.problem.transfer
        self._user_prior = UserPrior(model.problem.space, TrainingRecipe(model.problem.space))
        self._density = self._user_prior.density(candidates or ())
        self._known_good: list[Params] = []
        for params in [] if transfer is None else transfer.starters(KNOWN_GOOD):
            self._known_good.append(self._nearest_to(params))

    def choose(
        self, trials: Sequence[Snapshot], seed: int, is_barred: Callable[[Params], bool] | None = None,
        proposals: Sequence[Params] = (),
    ) -> dict[str, ParameterValue]:  # fmt: skip
        """Choose parameters or a proposal for a new trial, if possible neither barred nor started."""
        if (known_good := self._next_known_good(trials)) is not None:
            return known_good
        rng, is_initial = np.random.default_rng(seed), self.is_initial(trials)
        acquisition = None if is_initial else build_acquisition(self._model, trials, refit=True)
        is_random = is_initial or rng.random() < RANDOM_SHARE
        untried = suggester.to_be_tried(self._model.problem, trials)
        if self._candidates is not None:
            free = self._free_rows(trials, untried)
            if acquisition is None or is_random:
                return dict(self._random_of_list(free, rng, is_initial=is_initial))
            row = self._best_of_list(acquisition, free, len(trials), rng)
            if untried:
                self._choices = 0  # the next pass covers the whole list again
            return dict(self._candidates[row])
        if acquisition is None:
            return self._model.encoder.decode(self._user_prior.draw(rng, 1, self._fixed(untried, rng))[0])
        if is_random:
            units = rng.random((1, self._model.encoder.parameters))
            return self._model.encoder.decode(self._with_untried(units, untried, rng)[0])
        return self._best_of_space(acquisition, trials, rng, untried, is_barred=is_barred, proposals=proposals)

    def best_proposal(self, trials: Sequence[Snapshot], proposals: Sequence[Params]) -> Params:
        """Return the proposal that the model values most."""
        acquisition = build_acquisition(self._model, trials, refit=True)
        forecast = self._model.forecast(self._model.untried(self._model.features(proposals)))
        found = acquisition.where_it_tells(lambda one: BatchValues(one, one.index(forecast, exact=True)))
        return proposals[int(np.argmax(found.values))]

    def is_initial(self, trials: Sequence[Snapshot]) -> bool:
        """Return whether to draw at random: there are too few trials, or many slots start some before a first result.

        Without results, earlier studies or sizes the model would choose dear corners (benchmarks/README.md).
        """
        problem = self._model.problem
        if len(trials) < INITIAL_TRIALS:
            return True
        if problem.slots <= INITIAL_TRIALS or problem.transfer is not None or problem.knows_an_objective:
            return False
        has_failures = sum(trial.state == "failed" for trial in trials) >= INITIAL_TRIALS
        return not (has_failures or any(trial.at for trial in trials))

    def _next_known_good(self, trials: Sequence[Snapshot]) -> dict[str, ParameterValue] | None:
        """Return the next good configuration of earlier studies that no trial had, or None."""
        tried = {identity(trial.params) for trial in trials}
        while self._known_good:
            params = self._known_good.pop(0)
            if identity(params) not in tried:
                return dict(params)
        return None

    def _nearest_to(self, params: Params) -> Params:
        """Return `params` or, with a list, the nearest candidate not chosen before."""
        if self._candidates is None or self._features is None:
            return params
        distance = ((self._features.x - self._model.encoder.encode(params)) ** 2).sum(axis=1)
        distance[[self._row_of[identity(one)] for one in self._known_good]] = np.inf
        return self._candidates[int(np.argmin(distance))]

    def _free_rows(self, trials: Sequence[Snapshot], untried: Untried) -> Rows:
        """Return candidates that were not started; if choices are `untried`, only candidates that contain the most."""
        is_free = np.ones(len(self._candidates or ()), dtype=bool)
        is_free[[row for one in trials if (row := self._row_of.get(identity(one.params))) is not None]] = False
        free = np.flatnonzero(is_free) if is_free.any() else np.arange(len(is_free))
        if not untried:
            return free
        return np.array(suggester.most_covering(self._candidates or (), free.tolist(), untried), dtype=np.intp)

    def _random_of_list(self, free: Rows, rng: np.random.Generator, *, is_initial: bool) -> Params:
        assert self._candidates is not None  # noqa: S101 - only called with a list
        density = self._density[free]
        weights = density / density.sum() if self._user_prior and is_initial else None
        return self._candidates[int(rng.choice(free, p=weights))]

    def _best_of_list(self, acquisition: Acquisition, free: Rows, trials: int, rng: np.random.Generator) -> int:
        """Return the most valuable candidate; compares the whole list only every few suggestions."""
        assert self._features is not None  # noqa: S101 - only called with a list
        asks_for_ends, rows = self._is_stagnating and rng.random() < STAGNATION_SHARE, free
        if not asks_for_ends and self._choices % FULL_PASS_EVERY and len(self._best_rows):
            still_free = self._best_rows[np.isin(self._best_rows, free)]
            rows = still_free if len(still_free) else free
        batch = self._model.untried(self._features.rows(rows))
        weights = faded(self._density[rows], trials)
        if asks_for_ends:
            return int(rows[self._best_full_training(acquisition, batch, weights)])
        screened, order = self._screened(acquisition, batch, weights)
        if self._choices % FULL_PASS_EVERY == 0:
            self._best_rows = rows[order[:SCREENED]]
        self._choices += 1
        return int(rows[self._best(screened.acquisition, batch, order, weights)])

    def _fixed(self, untried: Untried, rng: np.random.Generator) -> dict[int, float]:
        """Return the coordinate of a random untried choice by axis."""
        names = [name for name, _ in self._model.problem.space.entries()]
        drawn = suggester.drawn(untried, rng)
        return {names.index(name): self._model.encoder.unit(name, value) for name, value in drawn.items()}

    def _with_untried(self, units: Array, untried: Untried, rng: np.random.Generator) -> Array:
        """Return points of the unit cube [m, P] after setting random untried choices."""
        for axis, unit in self._fixed(untried, rng).items():
            units[:, axis] = unit
        return units

    def _best_of_space(
        self,
        acquisition: Acquisition,
        trials: Sequence[Snapshot],
        rng: np.random.Generator,
        untried: Untried,
        *,
        is_barred: Callable[[Params], bool] | None,
        proposals: Sequence[Params],
    ) -> dict[str, ParameterValue]:
        encoder = self._model.encoder
        units = sobol_points(encoder.parameters, POOL, rng)
        if self._user_prior:
            units[::2] = self._user_prior.draw(rng, len(units[::2]))
        pool = self._with_untried(np.vstack([units, self._near_good(acquisition, trials, rng)]), untried, rng)
        if is_barred is not None:
            left = [not is_barred(encoder.decode(point)) for point in pool]
            pool = pool[left] if any(left) else pool
        own = len(pool)
        if proposals:
            pool = np.vstack([pool, np.nan_to_num([encoder.units(one) for one in proposals], nan=ABSENT)])
        batch = self._model.untried(self._model.features_at(pool))
        weights = faded(self._user_prior.density_at(pool), len(trials))
        if self._is_stagnating and rng.random() < STAGNATION_SHARE:
            chosen = self._best_full_training(acquisition, batch, weights)
        else:
            screened, order = self._screened(acquisition, batch, weights)
            chosen = self._best(screened.acquisition, batch, order, weights)
        return encoder.decode(pool[chosen]) if chosen < own else dict(proposals[chosen - own])

    def _near_good(self, acquisition: Acquisition, trials: Sequence[Snapshot], rng: np.random.Generator) -> Array:
        encoder = self._model.encoder
        points, width = {tuple(point) for point in acquisition.archive.tolist()}, acquisition.archive.shape[1]
        good = [trial for trial in trials if any(tuple(map(float, v[:width])) in points for v in trial.at.values())]
        if not good:
            return np.zeros((0, encoder.parameters))
        chosen = rng.choice(len(good), size=NEAR_GOOD)
        centres = np.array([encoder.units(trial.params) for trial in good])[chosen]
        uniform = rng.random(centres.shape)
        moved = np.clip(centres + NEAR_SD * rng.standard_normal(centres.shape), 0.0, 1.0 - 1e-9)
        is_redrawn = np.isnan(centres) | (rng.random(centres.shape) < REDRAWN_SHARE)
        return np.where(is_redrawn, uniform, moved)

    def _screened(self, acquisition: Acquisition, batch: CandidateBatch, weights: Array) -> tuple[BatchValues, Rows]:
        screened = acquisition.where_it_tells(
            lambda one: BatchValues(one, one.index(self._model.forecast(batch), exact=False))
        )
        return screened, np.argsort(-screened.values * weights, kind="stable")

    def _best(self, acquisition: Acquisition, batch: CandidateBatch, order: Rows, weights: Array) -> int:
        """Return the position of the most valuable candidate among the first of `order`."""
        shortlist = order[:EXACT]
        exact = acquisition.index(self._model.forecast(batch.rows(shortlist)), exact=True)
        self._is_stagnating = acquisition.is_stagnating(float(exact.max()))
        return int(shortlist[int(np.argmax(exact * weights[shortlist]))])

    def _best_full_training(self, acquisition: Acquisition, batch: CandidateBatch, weights: Array) -> int:
        forecast = self._model.forecast(batch)
        found = acquisition.where_it_tells(lambda one: BatchValues(one, one.full_training_value(forecast)))
        return int(np.argmax(found.values * weights))


class ModelSuggester:
    """Suggests the configuration that the model values most, of `candidates` (None: the space) and the advisor."""

    def __init__(
        self, model: CurveModel, *, seed: int, candidates: Sequence[Params] | None = None,
        advisor: Advisor | None = None,
    ) -> None:  # fmt: skip
        self._model, self._space, self._seed, self._advisor = model, model.problem.space, seed, advisor
        self._optimizer, self._tried = AcquisitionOptimizer(model, candidates), Tried()

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """Return the parameters for trial `number`. Parameters that an earlier trial had are drawn again."""
        snapshots = [observation.snapshot for observation in history if observation.snapshot is not None]

        tried = self._tried.of(history)
        proposed = () if self._advisor is None else self._advisor.proposals(history)
        proposals = [one for one in proposed if identity(one) not in tried]

        def draw(redraw: int) -> Params:
            # The first draw skips the check against tried configurations, which spaces of numbers rarely repeat.
            seed = derived_seed("ask", self._seed, number, redraw)
            return self._drawn(snapshots, seed, tried if redraw else (), proposals)

        params = draw_untried(draw, tried, self._space, derived_seed("constrained", self._seed, number))
        is_advised = any(identity(params) == identity(one) for one in proposals)
        return Suggestion(params=params, trial_attributes={ADVISED: True} if is_advised else {})

    @in_one_thread
    def _drawn(
        self, snapshots: Sequence[Snapshot], seed: int, tried: Collection[Identity], proposals: Sequence[Params]
    ) -> Params:
        def is_barred(chosen: Params) -> bool:
            completed = self._completed(chosen, seed)
            return not self._space.allows(completed) or identity(completed) in tried

        is_advised = len(proposals) > 0 and derived_uniform("advised", seed) < ADVISED_SHARE
        if is_advised and not self._optimizer.is_initial(snapshots):
            return self._optimizer.best_proposal(snapshots, proposals)
        bars = is_barred if tried or self._space.constraints else None
        return self._completed(self._optimizer.choose(snapshots, seed, bars, proposals), seed)

    def _completed(self, chosen: Params, seed: int) -> Params:
        """Return the active parameters in the space's order; parameters that an earlier study lacks are drawn."""
        if any(name not in chosen for name in self._space.active(chosen)):
            encoder = self._model.encoder
            units = encoder.units(chosen)
            drawn = encoder.decode(np.where(np.isnan(units), np.random.default_rng(seed).random(len(units)), units))
            chosen = {**drawn, **chosen}
        return self._space.walk(
            lambda name, parameter: int(chosen[name]) if isinstance(parameter, Int) else chosen[name]  # type: ignore[arg-type]
        )
