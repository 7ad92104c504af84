"""All trials of a study, indexed by id, state and number: no event searches thousands of finished trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from studies.control.machine.live_trials import Trial
from studies.records.records import TRIAL_STATES, TrialState


class TrialRegistry:
    """Finds trials by id, by state and by number."""

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self.by_id: dict[int, Trial] = {}
        self._in_state: dict[TrialState, dict[int, Trial]] = {state: {} for state in TRIAL_STATES}
        self._by_number: dict[int, Trial] = {}
        self._changed: set[int] = set()
        self._may_return: dict[int, Trial] = {}
        for trial in trials:
            self.add(trial)

    def add(self, trial: Trial) -> None:
        """Register a trial in its present state."""
        self.by_id[trial.id] = trial
        self._in_state[trial.state][trial.id] = trial
        if trial.number is not None:
            self._by_number[trial.number] = trial
        self.touch(trial)
        self._note_paused(trial)

    def touch(self, trial: Trial) -> None:
        """Note that a search knows something else of a trial from now on."""
        if trial.number is not None:
            self._changed.add(trial.number)

    def take_changed(self) -> set[int]:
        """Numbers of the started trials that were added, moved or touched since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def move(self, trial: Trial, state: TrialState) -> None:
        """Change a trial's state, if that is a legal move."""
        before = trial.state
        trial.move(state)
        del self._in_state[before][trial.id]
        self._in_state[state][trial.id] = trial
        self.touch(trial)
        self._note_paused(trial)

    def _note_paused(self, trial: Trial) -> None:
        if trial.state == "paused":
            self._may_return[trial.id] = trial

    def forget(self, trial: Trial) -> None:
        """Leave out a queued configuration, which will never be a trial."""
        trial.move("pruned")
        del self._in_state["queued"][trial.id], self.by_id[trial.id]

    def give_number(self, trial: Trial) -> None:
        """Give the next number to a trial that starts for the first time."""
        trial.number = self.started_count
        self._by_number[trial.number] = trial
        self.touch(trial)

    def in_state(self, state: TrialState) -> list[Trial]:
        """Trials in a state, in the order of their ids."""
        return [trial for _, trial in sorted(self._in_state[state].items())]

    def count(self, state: TrialState) -> int:
        """Number of trials in a state."""
        return len(self._in_state[state])

    @property
    def started_count(self) -> int:
        """Number of trials that have been started."""
        return len(self._by_number)

    @property
    def started(self) -> list[Trial]:
        """Trials that have been started, in the order of their numbers."""
        return [self._by_number[number] for number in range(len(self._by_number))]

    def numbered(self, number: int) -> Trial:
        """The trial with a number."""
        return self._by_number[number]

    @property
    def running(self) -> list[Trial]:
        """Trials that hold slots, in the order of their ids."""
        return [trial for trial in self.in_state("running") if trial.attempt is not None]

    def held_by(self, trial_id: int, attempt: int) -> Trial | None:
        """The trial with an id if this attempt of it runs, else None: an event of an earlier attempt comes too late."""
        trial = self.by_id.get(trial_id)
        return trial if trial and trial.attempt and trial.attempt.number == attempt else None

    def next_returning(self, fits: Callable[[Trial], bool] = lambda _trial: True) -> Trial | None:
        """The first of the drained and lost trials that fit, which go on before any other trial starts."""
        # Hundreds may wait for the policy, and free slots ask again and again: those are looked at once.
        self._may_return = {
            trial_id: trial
            for trial_id, trial in self._may_return.items()
            if trial.state == "paused" and trial.paused_by != "policy"
        }
        returning = [trial for trial in self._may_return.values() if fits(trial)]
        return min(returning, key=lambda trial: trial.started_number, default=None)

    def next_queued(self, most_ranks: float = math.inf) -> Trial | None:
        """The configuration to start next, of so many ranks: people's come before the sampler's suggestions."""
        queued = [trial for trial in self._in_state["queued"].values() if trial.world_size <= most_ranks]
        return min(queued, key=lambda trial: (trial.origin == "sampler", trial.id), default=None)
