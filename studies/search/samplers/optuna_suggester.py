"""Optuna's home: an in-memory `optuna.Study` that mirrors the history and is asked for the next parameters.

Each suggestion is made by a new sampler object whose seed is derived from study seed, trial number and redraw, so that
a study rebuilt from its store suggests what it would have suggested. What a sampler keeps between suggestions, it keeps
in Optuna's system attributes of trials and of the study; both are handed in and out here, and stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.parameters import Categorical, Float, Int, Parameter
from search_spaces.seeds import derived_seed
from search_spaces.space import Space
from studies.records import Direction
from studies.search.acquisition.user_prior import UserPrior
from studies.search.model.transfer import Transfer
from studies.search.observations import Observation
from studies.search.samplers.distributions import distributions_of
from studies.search.samplers.protocol import Params, Suggestion, draw_untried
from studies.search.user_objects import SearchError, load_object
from trainers.protocol import ParameterValue

if TYPE_CHECKING:
    import optuna

FROM_USER_PRIOR = 10
"""Number of first suggestions that are drawn from the priors of the space, if it has any."""
GENERATION_0 = {"NSGAIISampler:generation": 0}
"""Trial attributes that make an earlier trial a parent for NSGA-II; other samplers do not look at them."""


def sampler_factory(name: str) -> Callable[[int], optuna.samplers.BaseSampler]:
    """Returns the function that makes a sampler of this name from a seed.

    Args:
        name: "random", "tpe", "nsga2", "gp", "auto" (tpe), or "module:Object", called as Object(seed=int).

    Raises:
        SearchError: The object cannot be imported, or called so, or gives no Optuna sampler.
    """
    import optuna

    built_in: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
        "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
        "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
        "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
        "gp": lambda seed: optuna.samplers.GPSampler(seed=seed),
    }
    built_in["auto"] = built_in["tpe"]
    return built_in[name] if name in built_in else _users_sampler(name)


def _users_sampler(name: str) -> Callable[[int], optuna.samplers.BaseSampler]:
    import optuna

    make = load_object(name, ("sampler",))
    try:
        sample = make(seed=0)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's module raises is the user's to mend
        raise SearchError(f"{name!r} cannot be used ({type(error).__name__}: {error})", ("sampler",)) from None
    if not isinstance(sample, optuna.samplers.BaseSampler):
        problem = f"{name!r} gives a {type(sample).__name__}, allowed: an Optuna sampler"
        raise SearchError(problem, ("sampler",))
    return lambda seed: make(seed=seed)


class OptunaSuggester:
    """Asks an Optuna sampler that knows the whole history.

    Args:
        space: Space that trials are drawn from.
        directions: Direction of each objective.
        sampler: Name of the sampler, as `sampler_factory` takes it.
        seed: Random seed of the study.
        study_attributes: Optuna's system attributes of the study as they were stored.
        transfer: Earlier studies; their trials are added as finished ones, with what they violate.

    Raises:
        SearchError: The sampler cannot be made.
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
    ) -> None:
        self._space, self._directions, self._seed = space, directions, seed
        self._transfer = transfer
        self._user_prior = UserPrior(space)
        self._make_sampler = sampler_factory(sampler)
        self._study_attributes = dict(study_attributes)

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """Returns the parameters for trial `number`; those of an earlier trial are drawn again."""
        import optuna

        study, asked = self._study_with(history), list[optuna.Trial]()

        def draw(redraw: int) -> Params:
            if asked:
                study.tell(asked[-1], state=optuna.trial.TrialState.FAIL)
            asked.append(self._asked(study, number, redraw))
            return self._space.walk(lambda name, parameter: _drawn(asked[-1], name, parameter))

        params = draw_untried(draw, history)
        # Optuna offers setters of system attributes on its storage only, and no public way to that of a study.
        storage = study._storage  # noqa: SLF001
        self._study_attributes = dict(storage.get_study_system_attrs(study._study_id))  # noqa: SLF001
        attributes = storage.get_trial(asked[-1]._trial_id).system_attrs  # noqa: SLF001
        return Suggestion(
            params=params,
            trial_attributes={key: value for key, value in attributes.items() if key != "fixed_params"},
            study_attributes=dict(self._study_attributes),
        )

    def _asked(self, study: optuna.Study, number: int, redraw: int) -> optuna.Trial:
        study.sampler = self._make_sampler(derived_seed("ask", self._seed, number, redraw))
        if self._user_prior and number < FROM_USER_PRIOR:
            study.enqueue_trial(self._user_prior.drawn(derived_seed("belief", self._seed, number, redraw)))
        return study.ask()

    def _study_with(self, history: tuple[Observation, ...]) -> optuna.Study:
        """A fresh study, so that a suggestion depends on the history alone; it takes 0.04 ms per trial."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(directions=list(self._directions), storage=optuna.storages.InMemoryStorage())
        for key, value in self._study_attributes.items():
            study._storage.set_study_system_attr(study._study_id, key, value)  # noqa: SLF001 - as in `suggest`
        constrained = any(one.outcome == "infeasible" for one in history)
        # Earlier trials come first, and the same number of them each time: samplers keep the numbers of trials.
        everything = [*self._earlier(history), *history]
        excesses = _worst_excesses(everything)
        worst = _worst_values([one.values for one in everything if one.values is not None], self._directions)
        study.add_trials([_as_trial(one, self._space, worst, excesses, constrained=constrained) for one in everything])
        return study

    def _earlier(self, history: tuple[Observation, ...]) -> list[Observation]:
        """Trials of earlier studies as observations; nothing is learned from a study that is not alike."""
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


def _drawn(trial: optuna.Trial, name: str, parameter: Parameter) -> ParameterValue:
    match parameter:
        case Float():
            return trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case Int():
            return trial.suggest_int(name, parameter.low, parameter.high, log=parameter.log, step=parameter.step or 1)
        case Categorical():
            value: ParameterValue = trial.suggest_categorical(name, list(parameter.choices))
            return value


def _worst_values(values: list[tuple[float, ...]], directions: tuple[Direction, ...]) -> tuple[float, ...] | None:
    """The worst finite value of each objective; None before there is one."""
    worst = []
    for direction, column in zip(directions, zip(*values, strict=True), strict=False):
        finite = [float(value) for value in column if math.isfinite(value)]
        if not finite:
            return None
        worst.append(max(finite) if direction == "minimize" else min(finite))
    return tuple(worst) or None


def _worst_excesses(history: Sequence[Observation]) -> dict[str, float]:
    """The largest excess over each bound, which stands for unknown ones; 0 before there is one."""
    worst: dict[str, float] = {}
    for name, excess in (item for one in history for item in one.excesses.items()):
        worst[name] = max(worst.get(name, -math.inf), -math.inf if excess is None else excess)
    return {name: excess if math.isfinite(excess) else 0.0 for name, excess in worst.items()}


def _as_trial(
    observation: Observation,
    space: Space,
    worst: tuple[float, ...] | None,
    excesses: Mapping[str, float],
    *,
    constrained: bool,
) -> optuna.trial.FrozenTrial:
    """The trial as Optuna gets it: values that are missing or not finite become the worst ones observed."""
    import optuna

    state, values = optuna.trial.TrialState.FAIL, None
    attributes = dict(observation.attributes)
    if observation.outcome == "running":
        state = optuna.trial.TrialState.RUNNING
    elif observation.outcome in {"finished", "infeasible"} and worst is not None:
        state = optuna.trial.TrialState.COMPLETE
        # Multi-objective TPE fails on integers: cast.
        given = observation.values or worst
        values = [float(v) if math.isfinite(v) else w for v, w in zip(given, worst, strict=True)]
        # The same names in every trial: Optuna's GPSampler makes a matrix of them.
        known = {name: excess for name, excess in observation.excesses.items() if excess is not None}
        attributes |= {f"constraints:{name}": known.get(name, unknown) for name, unknown in excesses.items()}
        if constrained:
            attributes["constraints:it_runs"] = 1.0 if observation.outcome == "infeasible" else 0.0
    return optuna.trial.create_trial(
        state=state,
        params=dict(observation.params),
        distributions=distributions_of(space, observation.params),
        values=values,
        system_attrs=attributes,
    )
