"""An Optuna study in memory with our study's history. Only changed trials are built again."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optuna

from search_spaces.parameters import Categorical, Float, Int, Parameter
from search_spaces.space import Space
from search_spaces.suggestions import Asked, Constant, Domain, are_compatible
from studies.records.records import Direction, first_domains
from studies.search.observations import Observation

if TYPE_CHECKING:
    from optuna import distributions


Values = tuple[float, ...]
Distributions = Mapping[str, optuna.distributions.BaseDistribution]
"""Distributions by parameter."""


class _Storage(optuna.storages.InMemoryStorage):
    """Optuna's storage in memory, in which trials can be replaced."""

    def put(self, study_id: int, number: int, trial: optuna.trial.FrozenTrial) -> None:
        trial.number = trial._trial_id = number  # noqa: SLF001 - Optuna's ids have no public name
        trials = self._studies[study_id].trials
        if number < len(trials):
            trials[number] = trial
            return
        trials.append(trial)
        self._trial_id_to_study_id_and_number[number] = (study_id, number)
        self._max_trial_id = number

    def cut(self, study_id: int, count: int) -> None:
        """Remove all trials after the first `count`, with the study's caches."""
        study = self._studies[study_id]
        for number in range(count, len(study.trials)):
            del self._trial_id_to_study_id_and_number[number]
        del study.trials[count:]
        study.param_distribution.clear()
        self._max_trial_id = count - 1
        self._prev_waiting_trial_number[study_id] = count

    def get_best_trial(self, study_id: int) -> optuna.trial.FrozenTrial:
        """Return the best trial, without a cache, since trials can be replaced and removed."""
        study = self._studies[study_id]
        study.best_trial_id = None
        for trial in study.trials:
            super()._update_cache(trial._trial_id, study_id)  # noqa: SLF001 - Optuna's ids have no public name
        return super().get_best_trial(study_id)

    def _update_cache(self, trial_id: int, study_id: int) -> None:
        """Do nothing, since Optuna would search for the best trial after each change."""


class OptunaMirror:
    """Optuna's copy of our study's history; `study_attributes` are its system attributes."""

    def __init__(self, space: Space, directions: tuple[Direction, ...], study_attributes: Mapping[str, Any]) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._directions = space, directions
        self._storage = _Storage()
        self.study = optuna.create_study(directions=list(directions), storage=self._storage)
        for key, value in study_attributes.items():
            self._storage.set_study_system_attr(self.study._study_id, key, value)  # noqa: SLF001 - no public way
        self._history: tuple[Observation, ...] = ()
        self._context = _Context(directions)
        self._first_domains: dict[str, Domain] = {}

    def follow(self, history: tuple[Observation, ...]) -> None:
        """Update the Optuna study to this history, with the same result as a new copy."""
        study_id, before = self.study._study_id, self._history  # noqa: SLF001 - no public way
        changed = _changed(before, history)
        known, self._first_domains = self._first_domains, first_domains(one.asked for one in history)
        if changed is None or any(self._first_domains.get(name) != domain for name, domain in known.items()):
            before, changed = (), list(range(len(history)))
            self._context = _Context(self._directions)
        self._storage.cut(study_id, len(before))
        for number in self._context.update(before, history, changed):
            self._storage.put(study_id, number, self._as_trial(history[number]))
        self._history = history

    def _as_trial(self, observation: Observation) -> optuna.trial.FrozenTrial:
        domains = {name: self._domain_of(name, observation.asked) for name in observation.params}
        distributions = {name: to_distribution(domain) for name, domain in domains.items() if domain is not None}
        return self._context.as_trial(observation, distributions)

    def _domain_of(self, name: str, asked: Mapping[str, Asked]) -> Parameter | None:
        if name not in asked:
            return self._space.parameter(name)
        # Optuna accepts one kind and scale per name, so that a requested domain has to fit the first one.
        domain = asked[name].domain
        return None if isinstance(domain, Constant) or not are_compatible(self._first_domains[name], domain) else domain


def _changed(before: Sequence[Observation], history: Sequence[Observation]) -> list[int] | None:
    if len(history) < len(before):
        return None
    same = map(operator.is_, before, history)
    changed = [number for number, is_same in enumerate(same) if not is_same]
    if any(before[number].params.items() - history[number].params.items() for number in changed):
        return None  # values changed; additions are fine, since a trial may request parameters while it runs
    return changed + list(range(len(before), len(history)))


class _Context:
    """The worst values and violations of all trials, which replace unknown values in Optuna."""

    def __init__(self, directions: tuple[Direction, ...]) -> None:
        self._directions = directions
        self._worst: Values | None = None
        self._excesses: dict[str, float] = {}
        self._is_constrained = False
        self._incomplete: set[int] = set()
        self._infeasible: set[int] = set()

    def update(
        self, before: Sequence[Observation], history: Sequence[Observation], changed: Sequence[int]
    ) -> Sequence[int]:
        """Record changed trials, and return the numbers of trials to replace in Optuna."""
        worst, excesses, is_constrained = self._worst, self._excesses, self._is_constrained
        self._worst = self._new_worst(before, history, changed)
        if any(history[number].excesses for number in changed):
            self._excesses = worst_excesses(history)
        for number in changed:
            self._incomplete.discard(number)
            self._infeasible.discard(number)
            if _is_incomplete(history[number]):
                self._incomplete.add(number)
            if history[number].outcome == "infeasible":
                self._infeasible.add(number)
        self._is_constrained = bool(self._infeasible)
        if (self._excesses, self._is_constrained) != (excesses, is_constrained) or (worst is None) != (
            self._worst is None
        ):
            return range(len(history))
        stale = {
            number for number in changed if number >= len(before) or not _is_alike(before[number], history[number])
        }
        if self._worst != worst:
            stale |= self._incomplete
        return sorted(stale)

    def _new_worst(
        self, before: Sequence[Observation], history: Sequence[Observation], changed: Sequence[int]
    ) -> Values | None:
        """Return the worst values; reads all trials only if a trial with a worst value changed."""
        old = [before[number].values for number in changed if number < len(before)]
        gone = [values for values in old if values is not None]
        if self._worst is None or any(any(map(operator.eq, values, self._worst)) for values in gone):
            return worst_values([one.values for one in history if one.values is not None], self._directions)
        new = [history[number].values for number in changed]
        return worst_values([self._worst, *(values for values in new if values is not None)], self._directions)

    def as_trial(self, observation: Observation, distributions: Distributions) -> optuna.trial.FrozenTrial:
        return as_trial(observation, distributions, self._worst, self._excesses, constrained=self._is_constrained)


def _is_incomplete(observation: Observation) -> bool:
    values = observation.values
    return observation.outcome != "running" and (values is None or not all(map(math.isfinite, values)))


def _is_alike(before: Observation, now: Observation) -> bool:
    """Return whether two observations are equal for Optuna, which ignores values of running trials."""
    is_running = before.outcome == now.outcome == "running"
    return is_running and before.attributes == now.attributes and before.params == now.params


def worst_values(values: Sequence[Values], directions: tuple[Direction, ...]) -> Values | None:
    """Return the worst finite value of each objective; None without finite values."""
    worst = []
    for direction, column in zip(directions, zip(*values, strict=True), strict=False):
        finite = [float(value) for value in column if math.isfinite(value)]
        if not finite:
            return None
        worst.append(max(finite) if direction == "minimize" else min(finite))
    return tuple(worst) or None


def worst_excesses(history: Sequence[Observation]) -> dict[str, float]:
    """Return the largest known violation of each bound; 0 if none is known."""
    worst: dict[str, float] = {}
    for name, excess in (item for one in history for item in one.excesses.items()):
        worst[name] = max(worst.get(name, -math.inf), -math.inf if excess is None else excess)
    return {name: excess if math.isfinite(excess) else 0.0 for name, excess in worst.items()}


def as_trial(
    observation: Observation,
    distributions: Distributions,
    worst: Values | None,
    excesses: Mapping[str, float],
    *,
    constrained: bool,
) -> optuna.trial.FrozenTrial:
    """Return Optuna's trial, with the worst known values for missing and infinite values."""
    state, values = optuna.trial.TrialState.FAIL, None
    attributes = dict(observation.attributes)
    if observation.outcome == "running":
        state = optuna.trial.TrialState.RUNNING
    elif observation.outcome in {"finished", "infeasible"} and worst is not None:
        state = optuna.trial.TrialState.COMPLETE
        # Multi-objective TPE fails on integers, so values are cast to float.
        given = observation.values or worst
        values = [float(v) if math.isfinite(v) else w for v, w in zip(given, worst, strict=True)]
        # Every trial needs the same names: Optuna's GPSampler makes a matrix of them.
        known = {name: excess for name, excess in observation.excesses.items() if excess is not None}
        attributes |= {f"constraints:{name}": known.get(name, unknown) for name, unknown in excesses.items()}
        if constrained:
            attributes["constraints:it_runs"] = 1.0 if observation.outcome == "infeasible" else 0.0
    return optuna.trial.create_trial(
        state=state,
        params={name: observation.params[name] for name in distributions},
        distributions=dict(distributions),
        values=values,
        system_attrs=attributes,
    )


def to_distribution(parameter: Parameter) -> distributions.BaseDistribution:
    """Return the Optuna distribution of a parameter."""
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
