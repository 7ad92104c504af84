"""Decision rungs: the epochs at which a trial may be paused, and between which learning curves are forecast.

Epoch 1 is a rung as well if it tells how the first trials rank at the next rung. In the recorded real trainings it does
(rank correlations of 0.77 to 0.95), in the surrogate curves of LCBench it does not (-0.36 to 0.6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from studies.search.observations import Snapshot

RUNG_RATIO = 2.2
"""Ratio of a rung to the previous rung."""
FIRST_RUNG = 2
"""Smallest epoch that may be a rung before the first trials are known, unless the full training is shorter."""
TELLING_TRIALS, TELLING_CORRELATION = 6, 0.7
"""Number of first trials that show whether epoch 1 tells something, and the least rank correlation for that."""


def decision_rungs(epochs: int, ratio: float = RUNG_RATIO, least: int = FIRST_RUNG) -> tuple[int, ...]:
    """Return the epochs at which to make forecasts, ascending by a constant ratio from `least` to the last epoch."""
    found, epoch = [epochs], float(epochs)
    while (epoch := epoch / ratio) >= least - 0.5 and round(epoch) < found[-1]:
        found.append(max(round(epoch), 1))
    return tuple(sorted(set(found)))


def first_epoch_tells(trials: Sequence[Snapshot], rung: int, column: int) -> bool:
    """Return whether a learned column ranks the first trials after epoch 1 as it does at the first rung.

    False until each of the first trials has reached the rung or ended; then it does not change any more.
    """
    first = trials[:TELLING_TRIALS]
    at = [(trial.at.get(1), trial.at_rung(rung)) for trial in first]
    if any(late is None and one.state in {"running", "paused"} for one, (_, late) in zip(first, at, strict=True)):
        return False
    pairs = [(early[column], late[column]) for early, late in at if early is not None and late is not None]
    if len(first) < TELLING_TRIALS or len(pairs) < TELLING_TRIALS - 1:
        return False
    early, late = (rankdata(np.nan_to_num(values, nan=math.inf)) for values in np.array(pairs).T)
    if not (early.std() and late.std()):
        return False
    return float(np.corrcoef(early, late)[0, 1]) >= TELLING_CORRELATION
