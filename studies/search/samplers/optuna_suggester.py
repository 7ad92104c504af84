"""Suggests parameters with Optuna's samplers, from an `optuna.Study` in memory that mirrors our study.

Each suggestion uses a new sampler, seeded from study seed, trial number and redraw, so that a resumed study suggests
the same. The store keeps a sampler's state, which is in Optuna's system attributes. If trials may request parameters at
run time, the sampler also proposes values for all names requested so far, with their latest domains.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from search_spaces.drawing import derived_seed
from search_spaces.parameters import Categorical, Float, Int
from search_spaces.space import Space
from search_spaces.suggestions import Asked, Constant, Domain, as_plain
from studies.records.records import PROPOSED, Direction, latest_domains
from studies.results import pareto
from studies.search.acquisition.user_prior import UserPrior
from studies.search.model.encoding import identity
from studies.search.model.transfer import Transfer
from studies.search.observations import Observation
from studies.search.samplers import suggester
from studies.search.samplers.suggester import Identity, Suggestion, Tried, draw_untried, untried_in
from studies.search.user_objects import SearchError, load_object
from trainers.protocol import ParameterValue, Params

if TYPE_CHECKING:
    import optuna

    from studies.search.samplers.optuna_mirror import OptunaMirror

FROM_USER_PRIOR = 10
"""Number of first suggestions from user priors."""
_WITH_START_DESIGN = ("auto", "tpe", "nsga2", "gp")
"""Samplers with a start design; random search and users' own samplers are used unchanged."""
MOST_TRIALS = 200
"""From twice this number of trials, TPE and the Gaussian process see the 30 best, 200 random and the latest 200 to 400
trials: their time grows with the trials, and TPE has at most 25 good trials."""
_BEST_TRIALS = 30
_THINNED = ("auto", "tpe", "gp")
GENERATION_0 = {"NSGAIISampler:generation": 0}
"""Trial attributes that make an earlier trial a parent for NSGA-II."""


def sampler_factory(name: str) -> Callable[[int], optuna.samplers.BaseSampler]:
    """Return a function that makes a sampler from a seed. Raises SearchError for an unknown or unsuitable name.

    Names are "random", "tpe", "nsga2", "gp", "auto" (tpe), or "module:Object", called as Object(seed=int).
    """
    import optuna

    built_in: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
        "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
        "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
        "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
        # Otherwise it warns in every trial about each conditional parameter, which it draws at random.
        "gp": lambda seed: optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False),
    }
    built_in["auto"] = built_in["tpe"]
    return built_in[name] if name in built_in else _users_sampler(name)


def _users_sampler(name: str) -> Callable[[int], optuna.samplers.BaseSampler]:
    import optuna

    make = load_object(name, ("sampler",))
    try:
        sample = make(seed=0)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any error of the user's module is for the user to fix
        raise SearchError(f"{name!r} cannot be used ({type(error).__name__}: {error})", ("sampler",)) from None
    if not isinstance(sample, optuna.samplers.BaseSampler):
        problem = f"{name!r} returns a {type(sample).__name__}. Name a class or function that returns an Optuna sampler"
        raise SearchError(problem, ("sampler",))
    return lambda seed: make(seed=seed)


class OptunaSuggester:
    """Suggests parameters with an Optuna sampler (`sampler_factory`) from trials of this and earlier studies.

    Raises `SearchError` if the sampler cannot be used. `learns_space`: trials may request parameters at run time.
    """

    def __init__(
        self,
        *,
        space: Space,
        directions: tuple[Direction, ...],
        sampler: str,
        seed: int,
        study_attributes: Mapping[str, Any],
        transfer: Transfer | None = None,
        learns_space: bool = False,
    ) -> None:
        self._space, self._directions, self._seed = space, directions, seed
        self._transfer, self._learns_space = transfer, learns_space
        self._user_prior = UserPrior(space)
        self._make_sampler = sampler_factory(sampler)
        self._has_start_design, self._is_thinned = sampler in _WITH_START_DESIGN, sampler in _THINNED
        self._study_attributes = dict(study_attributes)
        self._mirror: OptunaMirror | None = None
        self._tried = Tried()

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """Return the parameters for trial `number`. Parameters that an earlier trial had are drawn again."""
        import optuna

        study, asked = self._study_with(history), list[optuna.Trial]()
        learnt = latest_domains(one.asked for one in history) if self._learns_space else {}
        tried = _Walked(history) if self._learns_space else self._tried.of(history)

        def draw(redraw: int) -> Params:
            if asked:
                study.tell(asked[-1], state=optuna.trial.TrialState.FAIL)
            asked.append(self._asked(study, number, redraw, history))
            declared = self._space.walk(lambda name, parameter: _drawn(asked[-1], name, parameter))
            return declared | {name: _drawn(asked[-1], name, domain) for name, domain in learnt.items()}

        drawn = draw_untried(draw, tried, self._space, derived_seed("constrained", self._seed, number))
        params = {name: value for name, value in drawn.items() if name not in learnt}
        proposed = {name: Asked(drawn[name], domain) for name, domain in learnt.items()}
        # System attributes can be set through Optuna's storage only, and a study's id has no public name.
        storage = study._storage  # noqa: SLF001
        self._study_attributes = dict(storage.get_study_system_attrs(study._study_id))  # noqa: SLF001
        attributes = storage.get_trial(asked[-1]._trial_id).system_attrs  # noqa: SLF001
        return Suggestion(
            params=params,
            trial_attributes={key: value for key, value in attributes.items() if key != "fixed_params"}
            | ({PROPOSED: as_plain(proposed)} if proposed else {}),
            study_attributes=dict(self._study_attributes),
        )

    def _asked(self, study: optuna.Study, number: int, redraw: int, history: tuple[Observation, ...]) -> optuna.Trial:
        study.sampler = self._make_sampler(derived_seed("ask", self._seed, number, redraw))
        if number < FROM_USER_PRIOR and (fixed := self._fixed(number, redraw, history)):
            study.enqueue_trial(fixed)
        return study.ask()

    def _fixed(self, number: int, redraw: int, history: tuple[Observation, ...]) -> dict[str, Any]:
        """Return parameters of an early trial from user prior and start design; the sampler draws the rest."""
        prior = self._user_prior.drawn(derived_seed("belief", self._seed, number, redraw)) if self._user_prior else {}
        untried = untried_in(self._space, (one.params for one in history)) if self._has_start_design else {}
        rng = np.random.default_rng(derived_seed("design", self._seed, number, redraw))
        return {**prior, **suggester.drawn(untried, rng)}

    def _study_with(self, history: tuple[Observation, ...]) -> optuna.Study:
        """Return an Optuna study with this history, built anew if earlier studies count, since their values change."""
        from studies.search.samplers.optuna_mirror import OptunaMirror

        if self._mirror is None or self._transfer is not None:
            self._mirror = OptunaMirror(self._space, self._directions, self._study_attributes)
        # Earlier trials come first, always the same number of them: samplers remember the numbers of trials.
        seen = thinned(history, self._directions, self._seed) if self._is_thinned else history
        self._mirror.follow((*self._earlier(history), *seen))
        return self._mirror.study

    def _earlier(self, history: tuple[Observation, ...]) -> list[Observation]:
        """Return trials of earlier studies, as failed trials if their study does not resemble this study."""
        if self._transfer is None:
            return []
        finished = [one for one in history if one.outcome == "finished" and one.values is not None]
        earlier = self._transfer.as_finished_trials(
            [one.params for one in finished], [one.values or () for one in finished]
        )
        return [
            Observation(
                trial_id=-1,
                params=trial.params,
                outcome="finished" if is_alike else "failed",
                values=trial.values if is_alike else None,
                attributes=GENERATION_0 if is_alike else {},
                excesses=self._transfer.excesses(trial) if is_alike else {},
            )
            for trial, is_alike in earlier
        ]


def thinned(history: tuple[Observation, ...], directions: Sequence[Direction], seed: int) -> tuple[Observation, ...]:
    """Return the trials that a sampler sees, in order: a selection of a long history (`MOST_TRIALS`)."""
    latest = len(history) // MOST_TRIALS * MOST_TRIALS - MOST_TRIALS
    if latest < MOST_TRIALS:
        return history
    signs = [1.0 if direction == "minimize" else -1.0 for direction in directions]
    measured = [
        (number, [sign * value for sign, value in zip(signs, one.values, strict=True)])
        for number, one in enumerate(history[:latest])
        if one.outcome == "finished" and one.values is not None and all(map(math.isfinite, one.values))
    ]
    excesses = [sum(max(one or 0.0, 0.0) for one in history[number].excesses.values()) for number, _ in measured]
    layers = pareto.constrained_layers([point for _, point in measured], excesses)
    best = sorted(zip(layers, (number for number, _ in measured), strict=True))[:_BEST_TRIALS]
    drawn = random.Random(derived_seed("thinned", seed, latest)).sample(range(latest), MOST_TRIALS)
    return tuple(history[number] for number in sorted({*drawn, *(number for _, number in best)})) + history[latest:]


class _Walked(Collection[Identity]):
    """Parameters of finished trials; contains a configuration that has all parameter values of a trial."""

    def __init__(self, history: tuple[Observation, ...]) -> None:
        self._trials = [frozenset(identity(one.params)) for one in history if one.outcome == "finished"]

    def __contains__(self, proposed: object) -> bool:
        given = frozenset(cast("Identity", proposed))
        return any(trial <= given for trial in self._trials)

    def __iter__(self) -> Iterator[Identity]:
        return (tuple(trial) for trial in self._trials)

    def __len__(self) -> int:
        return len(self._trials)


def _drawn(trial: optuna.Trial, name: str, parameter: Domain) -> ParameterValue:
    match parameter:
        case Constant():
            return parameter.value
        case Float():
            return trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case Int():
            return trial.suggest_int(name, parameter.low, parameter.high, log=parameter.log, step=parameter.step or 1)
        case Categorical():
            return trial.suggest_categorical(name, list(parameter.choices))
