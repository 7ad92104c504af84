"""Choice of epoch 1 as a rung: after it, the first trials have to rank as they do at the next rung.

In the recorded real trainings they do (rank correlations of 0.77 to 0.95), in the surrogate curves of
LCBench they do not (-0.36 to 0.6).
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from studies.search.observations import Snapshot

TELLING_TRIALS, TELLING_CORRELATION = 6, 0.7
"""Number of first trials that show whether epoch 1 tells something, and the least rank correlation for that."""


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
