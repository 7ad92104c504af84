"""Suggestions that are wider than the devices that are left.

A sampler does not know how many devices there are, and suggests wide trials again and again while a node is gone. A
few of them wait for it; those beyond become trials of the largest world size that fits, or no slot that is left would
have anything to train.
"""

from __future__ import annotations

import random
from dataclasses import replace

from search_spaces.completion import complete
from search_spaces.seeds import derived_seed
from search_spaces.space import Space
from studies.control.setup import StudySetup
from studies.search.samplers.protocol import Suggestion


def widest_that_fits(space: Space | None, most_ranks: float) -> int | None:
    """The largest world size that a space allows on so many devices; None if it has none to choose, or none so small.

    Args:
        space: Search space.
        most_ranks: Number of ranks for which there are devices, which is finite.
    """
    if space is None or "world_size" not in space:
        return None
    parameter = space.parameter("world_size")
    return next((size for size in range(int(most_ranks), 0, -1) if parameter.contains(size)), None)


def narrowed(setup: StudySetup, suggestion: Suggestion, most_ranks: int, number: int) -> Suggestion:
    """The suggestion with a smaller world size, if its own is larger.

    Parameters that do not exist at the smaller one are left out, and those that exist there alone are drawn.

    Args:
        setup: Settings of the study.
        suggestion: What the sampler suggested.
        most_ranks: World size of the space that a larger one is replaced by.
        number: Number that the trial will probably get.
    """
    space, params = setup.space, suggestion.params
    if space is None or int(params.get("world_size") or 1) <= most_ranks:
        return suggestion
    chosen = {**params, "world_size": most_ranks}
    given = {name: chosen[name] for name in space.active(chosen) if name in chosen}
    generator = random.Random(derived_seed("narrow", setup.seed, number))
    return replace(suggestion, params=complete(space, given, generator))
