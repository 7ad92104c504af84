"""Interface of suggesters: parameters for a trial, given the history of the study."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

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


def draw_untried(draw: Callable[[int], Params], tried: Collection[Identity]) -> Params:
    """Return parameters from `draw(0)`, `draw(1)`, ... that no trial has; after `REDRAWS` redraws, any parameters."""
    for redraw in range(REDRAWS):
        params = draw(redraw)
        if identity(params) not in tried:
            return params
    return draw(REDRAWS)
