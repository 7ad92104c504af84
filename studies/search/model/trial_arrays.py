"""Trials as arrays with one row per trial. Rows of unchanged trials are not computed again."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from studies.search.arrays import Array, Rows
from studies.search.model.encoding import Encoder
from studies.search.observations import Snapshot
from trainers.protocol import Params

Covariates = Callable[[Params], Array]
"""Function from a configuration's parameters to covariates known without training [K]."""
_FIRST_ROWS = 64


class TrialTable:
    """Arrays with one row per trial, in the given order of trials.

    `known` returns covariates that need no training. `earlier` returns covariates [m, L] at points [m, D] from earlier
    studies.
    """

    def __init__(
        self,
        encoder: Encoder,
        rungs: Sequence[int],
        columns: int,
        known: Covariates,
        earlier: Callable[[Array], Array] | None = None,
    ) -> None:
        self._encoder, self._rungs, self._columns = encoder, tuple(rungs), columns
        self._known, self._earlier = known, earlier
        self._clear()

    def _clear(self) -> None:
        self.trials: list[Snapshot] = []
        self._row_of: dict[int, int] = {}
        self._x = np.zeros((_FIRST_ROWS, self._encoder.width))
        self._covariates: Array | None = None
        self._at_rungs = np.full((_FIRST_ROWS, self._columns, len(self._rungs)), np.nan)
        self._before = np.full((_FIRST_ROWS, self._columns), np.nan)
        self._first = np.full_like(self._before, np.nan)
        self._numbers = np.zeros((_FIRST_ROWS, 7))
        self._states = np.zeros(_FIRST_ROWS, dtype="U8")

    def update(self, trials: Sequence[Snapshot]) -> list[Snapshot]:
        """Set the rows to all started trials, and return the changed trials."""
        if not _continues(self.trials, trials):
            self._clear()
        known = len(self.trials)
        changed = [row for row, trial in enumerate(trials) if row >= known or trial is not self.trials[row]]
        self._make_room(len(trials))
        for row in changed:
            self._write(row, trials[row], is_new=row >= known)
        self.trials = list(trials)
        return [trials[row] for row in changed]

    def _make_room(self, rows: int) -> None:
        if rows <= len(self._x):
            return
        more = max(rows, 2 * len(self._x)) - len(self._x)
        for name in ("_x", "_covariates", "_at_rungs", "_before", "_first", "_numbers", "_states"):
            if (array := getattr(self, name)) is None:
                continue
            fill = np.zeros((more, *array.shape[1:]), dtype=array.dtype)
            setattr(self, name, np.concatenate([array, fill]))

    def _write(self, row: int, trial: Snapshot, *, is_new: bool) -> None:
        if is_new:
            self._row_of[trial.number] = row
            self._x[row] = self._encoder.encode(trial.params)
            covariates = self._known(trial.params)
            if self._earlier is not None:
                covariates = np.concatenate([covariates, self._earlier(self._x[row : row + 1])[0]])
            if self._covariates is None:
                self._covariates = np.zeros((len(self._x), len(covariates)))
            self._covariates[row] = covariates
        absent = (math.nan,) * self._columns
        values, at_rung = self._reached(trial)
        if trial.state == "failed" and at_rung + 1 < len(self._rungs):
            values[:, at_rung + 1] = math.inf  # a failure counts as the worst value at the next rung
        self._at_rungs[row] = values
        self._before[row] = trial.at.get(self._rungs[0] - 1, absent)
        self._first[row] = next(iter(trial.at.values()), absent)
        usd = trial.usd_per_epoch or math.nan
        length = trial.last_model or math.nan
        self._numbers[row] = (at_rung, trial.epochs, usd, trial.paid_usd, trial.starts, trial.world_size, length)
        self._states[row] = trial.state

    def _reached(self, trial: Snapshot) -> tuple[Array, int]:
        """Return the values at each rung [columns, R], and the index of the last rung reached, or -1."""
        at = [trial.at_rung(rung) for rung in self._rungs]
        absent = (math.nan,) * self._columns
        values = np.array([absent if one is None else one for one in at], dtype=float).T
        return values, max((k for k, one in enumerate(at) if one is not None), default=-1)

    def __len__(self) -> int:
        return len(self.trials)

    def row_of(self, number: int) -> int:
        """Return the row of a trial."""
        return self._row_of[number]

    def by_rung(self, rows: Rows) -> list[tuple[int, Rows]]:
        """Return rows grouped by `last_rungs`, ascending."""
        rung_of = self.last_rungs[rows]
        return [(int(rung), rows[rung_of == rung]) for rung in np.unique(rung_of)]

    @property
    def x(self) -> Array:
        """Points of configurations [n, D]."""
        return self._x[: len(self)]

    @property
    def covariates(self) -> Array:
        """Covariates that need no training [n, K]."""
        return np.zeros((0, 0)) if self._covariates is None else self._covariates[: len(self)]

    def at_rungs(self, j: int) -> Array:
        """Return column `j` at each rung [n, R]: NaN if not reached, infinite at the rung a failed trial missed."""
        return self._at_rungs[: len(self), j]

    def before(self, j: int) -> Array:
        """Return column `j` one epoch before the first rung [n]; NaN if not measured."""
        return self._before[: len(self), j]

    def first(self, j: int) -> Array:
        """Return the first measured value of column `j` [n]; NaN without one."""
        return self._first[: len(self), j]

    @property
    def last_rungs(self) -> Rows:
        """Index of the last rung reached [n]; -1 before any."""
        return self._numbers[: len(self), 0].astype(np.intp)

    @property
    def epochs(self) -> Array:
        """Numbers of recorded epochs [n]."""
        return self._numbers[: len(self), 1]

    @property
    def usd_per_epoch(self) -> Array:
        """Mean dollars per epoch [n]; NaN before the first epoch."""
        return self._numbers[: len(self), 2]

    @property
    def paid_usd(self) -> Array:
        """Dollars charged for starts and training [n]."""
        return self._numbers[: len(self), 3]

    @property
    def rows_with_cost(self) -> Rows:
        """Rows with a known cost per epoch."""
        return np.flatnonzero((self.epochs > 0) & ~np.isnan(self.usd_per_epoch))

    @property
    def starts(self) -> Array:
        """Numbers of starts and resumes [n]."""
        return self._numbers[: len(self), 4]

    @property
    def world_sizes(self) -> Array:
        """Numbers of ranks [n]."""
        return self._numbers[: len(self), 5]

    @property
    def lengths(self) -> Array:
        """Numbers of epochs of complete trials [n]; NaN for other trials."""
        return self._numbers[: len(self), 6]

    def are(self, state: str) -> NDArray[np.bool_]:
        """Return whether each trial has this state of `Snapshot` [n]."""
        are: NDArray[np.bool_] = self._states[: len(self)] == state
        return are


def _continues(before: Sequence[Snapshot], now: Sequence[Snapshot]) -> bool:
    return len(now) >= len(before) and all(a.number == b.number for a, b in zip(before, now, strict=False))
