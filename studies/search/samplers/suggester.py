"""Interface of suggesters: parameters for a trial, given the history of the study."""

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from search_spaces.drawing import complete
from search_spaces.space import Space
from studies.search.model.encoding import identity
from studies.search.observations import Observation
from trainers.protocol import Params

REDRAWS = 10
"""Number of times that parameters which equal an earlier trial's are drawn again."""
Identity = tuple[tuple[str, str], ...]
"""Key shared by equal configurations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """Parameters for the next trial; if the spec names them (`is_named`), they are tried unchanged."""

    params: Params
    # JSON data that the sampler gets back with this trial's observation
    trial_attributes: Mapping[str, Any] = field(default_factory=dict)
    # JSON data that the sampler gets back when the study is resumed
    study_attributes: Mapping[str, Any] = field(default_factory=dict)
    is_named: bool = False


class Suggester(Protocol):
    """Suggests the parameters of trials, one at a time; called by one thread."""

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """Return the parameters for trial `number`; `history` holds all started trials, by number."""
        ...


def identities(history: Iterable[Observation]) -> set[Identity]:
    """Return the identities of the parameters of all trials of a history."""
    return {identity(observation.params) for observation in history}


def draw_untried(draw: Callable[[int], Params], tried: Collection[Identity], space: Space, seed: int) -> Params:
    """Return parameters from `draw(0)`, `draw(1)`, ... that no trial has and the space allows.

    After `REDRAWS` redraws they may equal a trial's; if none was allowed, they are drawn at random.
    """
    allowed: Params | None = None
    for redraw in range(REDRAWS + 1):
        params = draw(redraw)
        if space.allows(params):
            allowed = params
            if identity(params) not in tried:
                break
    return allowed if allowed is not None else complete(space, {}, random.Random(seed))
