"""The interface of samplers (suggesters), and the start design, which tries each choice of a parameter early."""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

import numpy as np

from search_spaces.drawing import complete, derived_seed, untried_choices
from search_spaces.parameters import Categorical, Parameter, Value
from search_spaces.space import Space
from studies.search.acquisition.acquisition import INITIAL_TRIALS
from studies.search.model.encoding import identity
from studies.search.model.problem import Problem
from studies.search.observations import Observation, Snapshot
from trainers.protocol import ParameterValue, Params

REDRAWS = 10
"""Largest number of new draws of a configuration that an earlier trial had."""
Identity = tuple[tuple[str, str], ...]
"""Key of equal configurations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """Parameters for the next trial; used unchanged if the spec names them (`is_named`)."""

    params: Params
    trial_attributes: Mapping[str, Any] = field(default_factory=dict)  # JSON data, returned with its observation
    study_attributes: Mapping[str, Any] = field(default_factory=dict)  # JSON data, returned when the study is resumed
    is_named: bool = False


class Suggester(Protocol):
    """Suggests parameters for one trial at a time, in one thread."""

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """Return the parameters for trial `number`; `history`: all started trials by number."""
        ...


class Tried:
    """Keys of a history's configurations, without parameters requested at run time; updated as the history grows."""

    def __init__(self) -> None:
        self._identities, self._seen = list[Identity](), set[Identity]()

    def of(self, history: Sequence[Observation]) -> set[Identity]:
        """Return the keys, which the caller must not change. A history that does not continue the last is read anew."""
        count = len(self._identities)
        if len(history) < count or (count and _suggested(history[count - 1]) != self._identities[-1]):
            self._identities, self._seen, count = [], set(), 0
        more = [_suggested(observation) for observation in history[count:]]
        self._identities += more
        self._seen.update(more)
        return self._seen


def _suggested(observation: Observation) -> Identity:
    return identity({name: value for name, value in observation.params.items() if name not in observation.asked})


def draw_untried(draw: Callable[[int], Params], tried: Collection[Identity], space: Space, seed: int) -> Params:
    """Return the first result of `draw(0)`, `draw(1)`, ... that no trial had and the space allows.

    After `REDRAWS`, an allowed repetition is accepted. Without an allowed result, the configuration is random.
    """
    allowed: Params | None = None
    for redraw in range(REDRAWS + 1):
        params = draw(redraw)
        if space.allows(params):
            allowed = params
            if identity(params) not in tried:
                break
    return allowed if allowed is not None else complete(space, {}, random.Random(seed))


MOST_CHOICES = 8
"""Largest number of choices of a parameter in the start design."""
DESIGN_SHARE = 0.25
"""Largest share of the budget for the rest of the start design, after the initial trials."""

Untried = Mapping[str, Sequence[ParameterValue]]


def to_be_tried(problem: Problem, trials: Sequence[Snapshot]) -> Untried:
    """Return each parameter's choices to try early, while `DESIGN_SHARE` pays for them up to the first rung."""
    untried = untried_in(problem.space, (trial.params for trial in trials))
    is_paid = (
        len(trials) < INITIAL_TRIALS or _expected_usd(problem, trials, untried) <= DESIGN_SHARE * problem.budget_usd
    )
    return untried if is_paid else {}


def untried_in(space: Space, tried: Iterable[Params]) -> Untried:
    """Return the untried choices of categorical parameters with few choices and without a user prior."""
    found = untried_choices(space, tried, conditional=False)
    return {name: values for name, values in found.items() if _is_gone_through(space.parameter(name))}


def _is_gone_through(parameter: Parameter) -> bool:
    return isinstance(parameter, Categorical) and parameter.prior is None and 1 < len(parameter.choices) <= MOST_CHOICES


def _expected_usd(problem: Problem, trials: Sequence[Snapshot], untried: Untried) -> float:
    known = [trial.usd_per_epoch for trial in trials if trial.usd_per_epoch is not None]
    remaining = max(map(len, untried.values()), default=0)
    return remaining * problem.rungs()[0] * fmean(known) if known else 0.0


def drawn(untried: Untried, rng: np.random.Generator) -> dict[str, ParameterValue]:
    """Return a random untried choice for each parameter that has any."""
    return {name: values[int(rng.integers(len(values)))] for name, values in untried.items()}


def most_covering(candidates: Sequence[Params], rows: Sequence[int], untried: Untried) -> list[int]:
    """Return the rows whose configurations contain the most untried choices."""
    wanted = {name: set(values) for name, values in untried.items()}
    counts = [sum(candidates[row].get(name) in values for name, values in wanted.items()) for row in rows]
    most = max(counts, default=0)
    return [row for row, count in zip(rows, counts, strict=True) if count == most]


class FirstTrials:
    """Suggests the spec's first trials, with missing parameters drawn at random, then asks a sampler."""

    def __init__(self, named: Sequence[Mapping[str, Value]], *, space: Space, seed: int, sampler: Suggester) -> None:
        self._sampler, self._tried = sampler, Tried()
        self._params = [
            complete(space, one, random.Random(derived_seed("first", seed, number))) for number, one in enumerate(named)
        ]

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """Return the spec's next configuration that no trial had, if any is left, else the sampler's suggestion.

        Enqueued configurations have numbers too, so `number` only shows how many configurations are waiting.
        """
        tried = self._tried.of(history)
        left = [one for one in self._params if identity(one) not in tried]
        waiting = number - len(history)
        if waiting < len(left):
            return Suggestion(params=left[waiting], is_named=True)
        return self._sampler.suggest(number, history)
