"""All trials that a search has seen, in arrays with a row each; a trial that has not changed costs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from studies.search.model.encoding import Encoder
from studies.search.model.gaussian_process import Array
from studies.search.observations import Snapshot
from trainers.protocol import ParameterValue

Known = Callable[[Mapping[str, ParameterValue]], Mapping[str, float]]
Rows = NDArray[np.intp]
_FIRST_ROWS = 64


class TrialTable:
    """Keeps one row per trial, in the order in which trials are given.

    Args:
        encoder: Of the space.
        rungs: Epochs between which forecasts go, ascending.
        objectives: How many.
        known: What can be told of a configuration without training it; see `hint`.
        earlier: What earlier studies tell of points [m, D]: more hints [m, L].

    Attributes:
        trials: As they were given last.
    """

    def __init__(
        self,
        encoder: Encoder,
        rungs: Sequence[int],
        objectives: int,
        known: Known | None,
        earlier: Callable[[Array], Array] | None = None,
    ) -> None:
        self._encoder, self._rungs, self._objectives = encoder, tuple(rungs), objectives
        self._known, self._earlier = known, earlier
        self._clear()

    def _clear(self) -> None:
        self.trials: list[Snapshot] = []
        self._row_of: dict[int, int] = {}
        self._x = np.zeros((_FIRST_ROWS, self._encoder.width))
        self._hints: Array | None = None
        self._at_rungs = np.full((_FIRST_ROWS, self._objectives, len(self._rungs)), np.nan)
        self._before = np.full((_FIRST_ROWS, self._objectives), np.nan)
        self._first = np.full_like(self._before, np.nan)
        self._numbers = np.zeros((_FIRST_ROWS, 6))
        self._states = np.zeros(_FIRST_ROWS, dtype="U8")

    def update(self, trials: Sequence[Snapshot]) -> list[Snapshot]:
        """Bring the rows up to date; returns the trials that are new or have changed.

        Args:
            trials: All that were started. A trial that is the same object as before has not changed.
        """
        if not _goes_on(self.trials, trials):
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
        for name in ("_x", "_hints", "_at_rungs", "_before", "_first", "_numbers", "_states"):
            if (array := getattr(self, name)) is None:
                continue
            fill = np.zeros((more, *array.shape[1:]), dtype=array.dtype)
            setattr(self, name, np.concatenate([array, fill]))

    def _write(self, row: int, trial: Snapshot, *, is_new: bool) -> None:
        if is_new:
            self._row_of[trial.number] = row
            self._x[row] = self._encoder.encode(trial.params)
            told = hint(self._known(trial.params) if self._known else {})
            if self._earlier is not None:
                told = np.concatenate([told, self._earlier(self._x[row : row + 1])[0]])
            if self._hints is None:
                self._hints = np.zeros((len(self._x), len(told)))
            self._hints[row] = told
        absent = (math.nan,) * self._objectives
        reached = [trial.at.get(rung, absent) for rung in self._rungs]
        place = max((k for k, rung in enumerate(self._rungs) if rung in trial.at), default=-1)
        values = np.array(reached, dtype=float).T
        if trial.state == "failed" and place + 1 < len(self._rungs):
            values[:, place + 1] = math.inf  # as bad as can be, on the way to its next rung
        self._at_rungs[row] = values
        self._before[row] = trial.at.get(self._rungs[0] - 1, absent)
        self._first[row] = next(iter(trial.at.values()), absent)
        usd = trial.usd_per_epoch or math.nan
        self._numbers[row] = (place, trial.epochs, usd, trial.paid_usd, trial.starts, trial.world_size)
        self._states[row] = trial.state

    def __len__(self) -> int:
        return len(self.trials)

    def row_of(self, number: int) -> int:
        """Where a trial is."""
        return self._row_of[number]

    def by_place(self, rows: Rows) -> list[tuple[int, Rows]]:
        """Rows grouped by the last rung that they have reached, ascending."""
        places = self.places[rows]
        return [(int(place), rows[places == place]) for place in np.unique(places)]

    @property
    def x(self) -> Array:
        """Points of the configurations [n, D]."""
        return self._x[: len(self)]

    @property
    def hints(self) -> Array:
        """Logarithms of what was known of them before training [n, K]."""
        return np.zeros((0, 0)) if self._hints is None else self._hints[: len(self)]

    def at_rungs(self, j: int) -> Array:
        """Objective `j` at each rung [n, R]; NaN where a trial has not been, infinite where it failed on the way."""
        return self._at_rungs[: len(self), j]

    def before(self, j: int) -> Array:
        """Objective `j` one epoch before the first rung [n]; NaN where that is not known."""
        return self._before[: len(self), j]

    def first(self, j: int) -> Array:
        """Objective `j` when it was first measured [n]; NaN before that."""
        return self._first[: len(self), j]

    @property
    def places(self) -> Rows:
        """Index of the last rung that each has reached [n]; -1 before the first."""
        return self._numbers[: len(self), 0].astype(np.intp)

    @property
    def epochs(self) -> Array:
        """Epochs that are recorded [n]."""
        return self._numbers[: len(self), 1]

    @property
    def usd_per_epoch(self) -> Array:
        """Mean over the epochs of each [n]; NaN before the first."""
        return self._numbers[: len(self), 2]

    @property
    def paid_usd(self) -> Array:
        """Start and train charges [n]."""
        return self._numbers[: len(self), 3]

    @property
    def paid(self) -> Rows:
        """Rows of the trials whose price is known."""
        return np.flatnonzero((self.epochs > 0) & ~np.isnan(self.usd_per_epoch))

    @property
    def starts(self) -> Array:
        """How often each was dispatched [n]."""
        return self._numbers[: len(self), 4]

    @property
    def world_sizes(self) -> Array:
        """Ranks [n]."""
        return self._numbers[: len(self), 5]

    def are(self, state: str) -> NDArray[np.bool_]:
        """Which are in a state of `Snapshot` [n]."""
        are: NDArray[np.bool_] = self._states[: len(self)] == state
        return are


def hint(known: Mapping[str, float]) -> Array:
    """What is known of a configuration, as inputs of a regression [K]."""
    return np.array([math.log(value) for _, value in sorted(known.items()) if value > 0])


def _goes_on(before: Sequence[Snapshot], now: Sequence[Snapshot]) -> bool:
    return len(now) >= len(before) and all(a.number == b.number for a, b in zip(before, now, strict=False))
