"""Greedy selection of an ensemble with replacement (Caruana et al., "Ensemble selection from libraries", ICML 2004).

    begin with nothing; size times: add the member with which the mean is best; keep the best beginning

A member that is chosen again counts more in the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Outputs = TypeVar("Outputs")
Score = tuple[float, ...]


def selected(
    members: Sequence[Outputs],
    mean: Callable[[Sequence[Outputs]], Outputs],
    score: Callable[[Outputs], Score],
    size: int,
) -> list[int]:
    """Return how often each member is in the best ensemble.

    Of equal ensembles the smaller one is taken, of equal members the first one.

    Args:
        members: What each model answers on the validation part.
        mean: Returns the mean of answers.
        score: What is to be as small as possible.
        size: Largest number of members, those that are chosen again counted.
    """
    chosen: list[int] = []
    best: tuple[Score, int] | None = None
    for _ in range(size):
        inside = [members[place] for place in chosen]
        scores = [score(mean([*inside, one])) for one in members]
        place = min(range(len(members)), key=scores.__getitem__)
        chosen.append(place)
        if best is None or scores[place] < best[0]:
            best = scores[place], len(chosen)
    kept = chosen[: best[1]] if best else []
    return [kept.count(place) for place in range(len(members))]
