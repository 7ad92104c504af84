"""Early stopping: a trial whose validation loss has stopped improving is complete before its last epoch.

Prechelt 1998, "Early stopping - but when?", the criterion UP in its common form: so many epochs without a new best.
"""

from __future__ import annotations

import math
from typing import Any


class Patience:
    """Counts epochs since the best one.

    Every rank has one and tells it the same averages over ranks, so all of them run out of patience together.

    Args:
        epochs: Number of epochs that may pass without a new best loss; None never stops.
    """

    def __init__(self, epochs: int | None) -> None:
        self._epochs = epochs
        self._best = math.inf
        self._waited = 0

    def runs_out(self, val_loss: float) -> bool:
        """Add an epoch's validation loss, and return whether patience has run out.

        A loss that is not a number is no new best.
        """
        if val_loss < self._best:
            self._best, self._waited = val_loss, 0
        else:
            self._waited += 1
        return self._epochs is not None and self._waited >= self._epochs

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed trial needs to run out of patience at the same epoch."""
        return {"best": self._best, "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint."""
        self._best, self._waited = float(state["best"]), int(state["waited"])
