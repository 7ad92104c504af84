"""Index of a study's trials by id, state and number, so that no event searches thousands of finished trials."""

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
        """Register a trial in its current state."""
        self.by_id[trial.id] = trial
        self._in_state[trial.state][trial.id] = trial
        if trial.number is not None:
            self._by_number[trial.number] = trial
        self.touch(trial)
        self._note_paused(trial)

    def touch(self, trial: Trial) -> None:
        """Mark a trial as changed for the search."""
        if trial.number is not None:
            self._changed.add(trial.number)

    def take_changed(self) -> set[int]:
        """Return the numbers of the started trials that changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def move(self, trial: Trial, state: TrialState) -> None:
        """Change a trial's state; raises IllegalTransitionError for an illegal move."""
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
        """Remove a queued configuration that will never start."""
        trial.move("pruned")
        del self._in_state["queued"][trial.id], self.by_id[trial.id]

    def give_number(self, trial: Trial) -> None:
        """Assign the next number to a trial that starts for the first time."""
        trial.number = self.started_count
        self._by_number[trial.number] = trial
        self.touch(trial)

    def in_state(self, state: TrialState) -> list[Trial]:
        """Return the trials in a state, by id."""
        return [trial for _, trial in sorted(self._in_state[state].items())]

    def count(self, state: TrialState) -> int:
        """Return the number of trials in a state."""
        return len(self._in_state[state])

    @property
    def started_count(self) -> int:
        """Return the number of started trials."""
        return len(self._by_number)

    @property
    def started(self) -> list[Trial]:
        """Return the started trials, by number."""
        return [self._by_number[number] for number in range(len(self._by_number))]

    def numbered(self, number: int) -> Trial:
        """Return the trial with a number."""
        return self._by_number[number]

    @property
    def running(self) -> list[Trial]:
        """Return the trials that hold slots, by id."""
        return [trial for trial in self.in_state("running") if trial.attempt is not None]

    def held_by(self, trial_id: int, attempt: int) -> Trial | None:
        """Return the trial if this attempt runs; None for late events of earlier attempts."""
        trial = self.by_id.get(trial_id)
        return trial if trial and trial.attempt and trial.attempt.number == attempt else None

    def next_returning(self, fits: Callable[[Trial], bool] = lambda _trial: True) -> Trial | None:
        """Return the first fitting drained or lost trial; these continue before any other trial starts."""
        # Hundreds of trials may wait for the policy; they are dropped here once instead of searched every time.
        self._may_return = {
            trial_id: trial
            for trial_id, trial in self._may_return.items()
            if trial.state == "paused" and trial.paused_by != "policy"
        }
        returning = [trial for trial in self._may_return.values() if fits(trial)]
        return min(returning, key=lambda trial: trial.started_number, default=None)

    def next_queued(self, most_ranks: float = math.inf) -> Trial | None:
        """Return the next configuration with at most `most_ranks`; enqueued configurations come before suggestions."""
        queued = [trial for trial in self._in_state["queued"].values() if trial.world_size <= most_ranks]
        return min(queued, key=lambda trial: (trial.origin == "sampler", trial.id), default=None)
