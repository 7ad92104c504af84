"""Optuna's home: an in-memory `optuna.Study` that mirrors the history and is asked for the next parameters.

Each ask is made by a new sampler object seeded by (study seed, trial number, redraw), so a study that was rebuilt from
its store suggests what it would have suggested. What a sampler keeps between asks, it keeps in Optuna's system
attributes of trials and of the study; both are handed in and out here, and stored.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from search_spaces.parameters import Categorical, Float, Int, Parameter
from search_spaces.space import Space
from studies.records import Direction
from studies.search.acquisition.user_prior import UserPrior
from studies.search.model.encoding import identity
from studies.search.model.messages import Message, Messages
from studies.search.model.search_model import SearchModel
from studies.search.model.transfer import Transfer
from studies.search.observations import Snapshot
from studies.search.samplers.acquisition_optimizer import AcquisitionOptimizer
from trainers.protocol import ParameterValue

if TYPE_CHECKING:
    import optuna

Outcome = Literal["running", "finished", "infeasible", "failed"]
REDRAWS = 10
BELIEVING = 10
"""First suggestions of Optuna's samplers that are drawn from the priors of the space, if it has any."""
GENERATION_0 = {"NSGAIISampler:generation": 0}
"""What makes a trial a parent for NSGA-II; others do not look at it."""
SAMPLERS = ("random", "tpe", "nsga2", "gp", "cokriging")


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What the sampler may know of one trial.

    Attributes:
        trial_id: Identity; trials are told in the order of this tuple's history.
        outcome: "running"; "finished" with values; "infeasible" (out of memory, the user's code raised); "failed",
            from which nothing is learned.
        values: In the order of the objectives, in their own direction; cumulative ones extrapolated to the last epoch.
        attributes: Optuna's system attributes of the trial as the ask left them.
        seen: How far it got; `cokriging` learns from that alone.
        excesses: By how much each bound of a constraint is violated, in units of the bound, 0 or less where it is kept,
            since Optuna's samplers add them up; None before the first epoch.
        is_cut_short: Whether it was paused or pruned, so that its values are not those of its end.
    """

    trial_id: int
    params: Mapping[str, ParameterValue]
    outcome: Outcome
    values: tuple[float, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    seen: Snapshot | None = None
    excesses: Mapping[str, float | None] = field(default_factory=dict)
    is_cut_short: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """Parameters for the next trial, and Optuna's system attributes to store with it and with the study."""

    params: Mapping[str, ParameterValue]
    trial_attributes: Mapping[str, Any]
    study_attributes: Mapping[str, Any]


class SamplerError(Exception):
    """The sampler's name is unknown, or it is not what it should be; one line for the user."""


def sampler_factory(name: str) -> Callable[[int], optuna.samplers.BaseSampler]:
    """How to make a sampler of this name from a seed.

    Args:
        name: One of `SAMPLERS`, "auto" (tpe), or "module:Object", called as Object(seed=int).

    Raises:
        SamplerError: The object cannot be imported or called so.
    """
    import optuna

    built_in: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
        "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
        "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
        "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
        "gp": lambda seed: optuna.samplers.GPSampler(seed=seed),
    }
    built_in["auto"] = built_in["tpe"]
    if name in built_in:
        return built_in[name]
    return _own_sampler(name)


def _own_sampler(name: str) -> Callable[[int], optuna.samplers.BaseSampler]:
    import optuna

    module_name, _, object_name = name.partition(":")
    try:
        made = getattr(importlib.import_module(module_name), object_name)
        sample = made(seed=0)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's module raises is the user's to mend
        raise SamplerError(f"search.sampler: {name!r} cannot be used ({type(error).__name__}: {error})") from None
    if not isinstance(sample, optuna.samplers.BaseSampler):
        raise SamplerError(f"search.sampler: {name!r} gives a {type(sample).__name__}, allowed: an Optuna sampler")
    return lambda seed: made(seed=seed)


def derived_seed(*parts: int | str) -> int:
    """A seed of 32 bits from any numbers and names, the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def to_distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    """The Optuna distribution of a parameter."""
    from optuna import distributions

    match parameter:
        case Float():
            return distributions.FloatDistribution(
                parameter.low, parameter.high, log=parameter.log, step=parameter.step
            )
        case Int():
            return distributions.IntDistribution(
                parameter.low, parameter.high, log=parameter.log, step=parameter.step or 1
            )
        case Categorical():
            return distributions.CategoricalDistribution(tuple(parameter.choices))


def distributions_of(space: Space, params: Mapping[str, ParameterValue]) -> dict[str, Any]:
    """Optuna distributions of the active parameters, by name."""
    return {name: to_distribution(space.parameter(name)) for name in params}


class Suggester:
    """Asks an Optuna sampler, with the whole history told.

    Args:
        space: What may vary.
        directions: One per objective.
        sampler: See `sampler_factory`.
        seed: The study's.
        study_attributes: Optuna's system attributes of the study as they were stored.
        model: What `cokriging` learns with; for this object's thread alone.
        candidates: The only configurations there are, for `cokriging` on recorded curves.
        messages: What Optuna's samplers are told of trials that were cut short; None tells them the last values.
        transfer: Earlier studies, whose trials Optuna's samplers are told as finished ones, with what they violate.
    """

    def __init__(
        self,
        *,
        space: Space,
        directions: tuple[Direction, ...],
        sampler: str,
        seed: int,
        study_attributes: Mapping[str, Any],
        model: SearchModel | None = None,
        candidates: Sequence[Mapping[str, ParameterValue]] | None = None,
        messages: Messages | None = None,
        transfer: Transfer | None = None,
    ) -> None:
        self._space = space
        self._transfer = transfer
        self._beliefs = UserPrior(space)
        self._messages = messages
        self._directions = directions
        self._cokriging = _CoKriging(model, candidates) if sampler == "cokriging" and model is not None else None
        self._make_sampler = sampler_factory("random" if sampler == "cokriging" else sampler)
        self._seed = seed
        self._study_attributes = dict(study_attributes)

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """The parameters for trial `number`; one equal to an earlier trial is redrawn up to ten times."""
        import optuna

        # Our own sampler learns from what was seen; Optuna's need the trials in their study.
        study = self._study_that_knows(self._in_messages(number, history) if self._cokriging is None else ())
        seen = {identity(told.params) for told in history}
        for redraw in range(REDRAWS + 1):
            study.sampler = self._sampler(derived_seed("ask", self._seed, number, redraw), history)
            if self._beliefs and self._cokriging is None and number < BELIEVING:
                study.enqueue_trial(self._beliefs.drawn(derived_seed("belief", self._seed, number, redraw)))
            trial = study.ask()
            params = self._space.walk(lambda name, parameter, trial=trial: _draw(trial, name, parameter))  # type: ignore[misc]
            if identity(params) not in seen:
                break
            if redraw < REDRAWS:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
        # Optuna offers setters of system attributes on its storage only, and no public way to that of a study.
        storage = study._storage  # noqa: SLF001
        self._study_attributes = dict(storage.get_study_system_attrs(study._study_id))  # noqa: SLF001
        attributes = storage.get_trial(trial._trial_id).system_attrs  # noqa: SLF001
        return Suggestion(
            params=params,
            trial_attributes={key: value for key, value in attributes.items() if key != "fixed_params"},
            study_attributes=dict(self._study_attributes),
        )

    def _earlier(self, history: tuple[Observation, ...]) -> list[Observation]:
        if self._transfer is None:
            return []
        finished = [told for told in history if told.outcome == "finished" and told.values is not None]
        told_of = self._transfer.told([told.params for told in finished], [told.values or () for told in finished])
        return [
            Observation(
                trial_id=-1,
                params=trial.params,
                outcome="finished" if is_alike else "failed",
                values=trial.values if is_alike else None,
                attributes=GENERATION_0 if is_alike else {},
                excesses=self._transfer.excesses(trial) if is_alike else {},
            )
            for trial, is_alike in told_of
        ]

    def _in_messages(self, number: int, history: tuple[Observation, ...]) -> tuple[Observation, ...]:
        if self._messages is None:
            return history
        seen = [told.seen for told in history if told.seen is not None]
        cut_short = {told.seen.number for told in history if told.is_cut_short and told.seen is not None}
        drawn = self._messages.drawn(seen, cut_short, derived_seed("message", self._seed, number))
        return tuple(_in_message(told, drawn, self._directions) for told in history)

    def _sampler(self, seed: int, history: tuple[Observation, ...]) -> optuna.samplers.BaseSampler:
        if self._cokriging is None:
            return self._make_sampler(seed)
        return self._cokriging.sampler(seed, history)

    def _study_that_knows(self, history: tuple[Observation, ...]) -> optuna.Study:
        """A fresh study, so that a suggestion depends on the history alone: 0.04 ms per trial told."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(directions=list(self._directions), storage=optuna.storages.InMemoryStorage())
        for key, value in self._study_attributes.items():
            study._storage.set_study_system_attr(study._study_id, key, value)  # noqa: SLF001 - as in `suggest`
        constrained = any(told.outcome == "infeasible" for told in history)
        # Earlier trials come first, and the same number of them each time: samplers keep the numbers of trials.
        everything = [*self._earlier(history), *history]
        excesses = _worst_excesses(everything)
        worst = _worst([told.values for told in everything if told.values is not None], self._directions)
        study.add_trials(
            [_as_trial(told, self._space, worst, excesses, constrained=constrained) for told in everything]
        )
        return study


class _CoKriging:
    """What the samplers of a study share: a model, and the pool of what it may choose."""

    def __init__(self, model: SearchModel, candidates: Sequence[Mapping[str, ParameterValue]] | None) -> None:
        self._model, space = model, model.problem.space
        self._untried = AcquisitionOptimizer(self._model, candidates)
        self._distributions = {
            name: to_distribution(space.parameter(name)) for name in space.names()
        }  # fmt: skip

    def sampler(self, seed: int, history: tuple[Observation, ...]) -> optuna.samplers.BaseSampler:
        """One for the next suggestion."""
        from studies.search.samplers.cokriging_sampler import CoKrigingSampler

        seen = [told.seen for told in history if told.seen is not None]
        return CoKrigingSampler(self._model, self._untried, seen, distributions=self._distributions, seed=seed)


def _draw(trial: optuna.Trial, name: str, parameter: Parameter) -> ParameterValue:
    match parameter:
        case Float():
            return trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case Int():
            return trial.suggest_int(name, parameter.low, parameter.high, log=parameter.log, step=parameter.step or 1)
        case Categorical():
            value: ParameterValue = trial.suggest_categorical(name, list(parameter.choices))
            return value


def _worst(values: list[tuple[float, ...]], directions: tuple[Direction, ...]) -> tuple[float, ...] | None:
    """The worst finite value of each objective; None before there is one."""
    worst = []
    for direction, column in zip(directions, zip(*values, strict=True), strict=False):
        finite = [float(value) for value in column if math.isfinite(value)]
        if not finite:
            return None
        worst.append(max(finite) if direction == "minimize" else min(finite))
    return tuple(worst) or None


def _worst_excesses(history: Sequence[Observation]) -> dict[str, float]:
    """The largest excess over each bound, which stands for those that are not known; 0 before there is one."""
    worst: dict[str, float] = {}
    for name, excess in (item for told in history for item in told.excesses.items()):
        worst[name] = max(worst.get(name, -math.inf), -math.inf if excess is None else excess)
    return {name: excess if math.isfinite(excess) else 0.0 for name, excess in worst.items()}


def _in_message(told: Observation, drawn: Mapping[int, Message], directions: tuple[Direction, ...]) -> Observation:
    """The trial with its drawn values; one that has nothing to say teaches nothing."""
    if told.seen is None or told.values is None or told.seen.number not in drawn:
        return told
    own = drawn[told.seen.number]
    if own is None:
        return replace(told, outcome="failed", values=None)
    signs = [1.0 if direction == "minimize" else -1.0 for direction in directions]
    values = tuple(signs[j] * own[j] if j in own else value for j, value in enumerate(told.values))
    return replace(told, values=values)


def _as_trial(
    told: Observation,
    space: Space,
    worst: tuple[float, ...] | None,
    excesses: Mapping[str, float],
    *,
    constrained: bool,
) -> optuna.trial.FrozenTrial:
    """The trial as Optuna gets it: values that are missing or not finite become the worst ones seen."""
    import optuna

    state, values = optuna.trial.TrialState.FAIL, None
    attributes = dict(told.attributes)
    if told.outcome == "running":
        state = optuna.trial.TrialState.RUNNING
    elif told.outcome in {"finished", "infeasible"} and worst is not None:
        state = optuna.trial.TrialState.COMPLETE
        # Multi-objective TPE fails on integers: cast.
        values = [float(v) if math.isfinite(v) else w for v, w in zip(told.values or worst, worst, strict=True)]
        # The same names in every trial: Optuna's GPSampler makes a matrix of them.
        known = {name: excess for name, excess in told.excesses.items() if excess is not None}
        attributes |= {f"constraints:{name}": known.get(name, unknown) for name, unknown in excesses.items()}
        if constrained:
            attributes["constraints:it_runs"] = 1.0 if told.outcome == "infeasible" else 0.0
    return optuna.trial.create_trial(
        state=state,
        params=dict(told.params),
        distributions=distributions_of(space, told.params),
        values=values,
        system_attrs=attributes,
    )
