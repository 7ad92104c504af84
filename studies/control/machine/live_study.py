"""State of a running study, which the parts of the state machine share."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from studies.control.files.kept_files import CheckpointKeeper
from studies.control.machine.budget_account import BudgetAccount
from studies.control.machine.live_trials import Trial
from studies.control.machine.study_setup import Outbox, StudySetup
from studies.control.machine.watchdog import Watchdog
from studies.records.records import NEXT_10_USD_PERCENT, TRIAL_STATES, Action, TrialState
from studies.results.baselines import trials_of
from studies.search.observations import Observation, Snapshot
from studies.search.policy import Decision, History
from studies.storage.writing.changes import Decided


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
        """Add a trial."""
        self.by_id[trial.id] = trial
        self._in_state[trial.state][trial.id] = trial
        if trial.number is not None:
            self._by_number[trial.number] = trial
        self.touch(trial)
        self._note_paused(trial)

    def touch(self, trial: Trial) -> None:
        """Make the search read a changed trial again."""
        if trial.number is not None:
            self._changed.add(trial.number)

    def take_changed(self) -> set[int]:
        """Return the numbers of started trials that changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def move(self, trial: Trial, state: TrialState) -> None:
        """Change a trial's state. Raises IllegalTransitionError for a forbidden change."""
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
        """Number a trial at its first start."""
        trial.number = self.started_count
        self._by_number[trial.number] = trial
        self.touch(trial)

    def in_state(self, state: TrialState) -> list[Trial]:
        """Return trials in a state, sorted by id."""
        return [trial for _, trial in sorted(self._in_state[state].items())]

    def count(self, state: TrialState) -> int:
        """Return the number of trials in a state."""
        return len(self._in_state[state])

    @property
    def started_count(self) -> int:
        """Number of started trials."""
        return len(self._by_number)

    @property
    def started(self) -> list[Trial]:
        """Started trials, sorted by number."""
        return [self._by_number[number] for number in range(len(self._by_number))]

    def numbered(self, number: int) -> Trial:
        """Return the started trial with this number."""
        return self._by_number[number]

    @property
    def running(self) -> list[Trial]:
        """Trials that run on slots, sorted by id."""
        return [trial for trial in self.in_state("running") if trial.attempt is not None]

    def held_by(self, trial_id: int, attempt: int) -> Trial | None:
        """Return the trial if this is its running attempt; None for late events."""
        trial = self.by_id.get(trial_id)
        return trial if trial and trial.attempt and trial.attempt.number == attempt else None

    def next_returning(self, fits: Callable[[Trial], bool] = lambda _trial: True) -> Trial | None:
        """Return the next interrupted trial that `fits`, or None."""
        # Hundreds of trials may wait for the policy: drop them once instead of searching them every time.
        self._may_return = {
            trial_id: trial
            for trial_id, trial in self._may_return.items()
            if trial.state == "paused" and trial.paused_by != "policy"
        }
        returning = [trial for trial in self._may_return.values() if fits(trial)]
        return min(returning, key=lambda trial: trial.started_number, default=None)

    def next_queued(self, most_ranks: float = math.inf) -> Trial | None:
        """Return the next configuration with at most `most_ranks` ranks; users' come first."""
        queued = [trial for trial in self._in_state["queued"].values() if trial.world_size <= most_ranks]
        return min(queued, key=lambda trial: (trial.origin == "sampler", trial.id), default=None)


T = TypeVar("T")


class SearchedTrials:
    """The search's view of started trials, computed only for changed trials."""

    def __init__(self, setup: StudySetup, registry: TrialRegistry) -> None:
        self._setup, self._registry = setup, registry
        self._snapshots: list[Snapshot] = []
        self._observations: list[Observation] = []
        self._unobserved: set[int] = set()

    def snapshots(self) -> Sequence[Snapshot]:
        """Return the policy's view of started trials, sorted by number; later changes do not alter the list."""
        changed = self._registry.take_changed()
        if changed:
            self._unobserved |= changed
            # A copy, since a policy may keep the earlier list.
            self._snapshots = _extended(self._snapshots, self._registry.started_count)
            for number in sorted(changed):
                trial = self._registry.numbered(number)
                self._snapshots[number] = trial.snapshot(
                    self._setup.search_usd_per_slot_hour, has_start_in_epoch=self._setup.has_start_in_epoch
                )
        return self._snapshots

    def observations(self) -> tuple[Observation, ...]:
        """Return the sampler's view of started trials, sorted by number; unchanged trials keep their objects."""
        snapshots, setup = self.snapshots(), self._setup
        self._observations = _extended(self._observations, len(snapshots))
        for number in sorted(self._unobserved):
            trial = self._registry.numbered(number)
            made = trial.observation(setup.objectives, setup.epochs, setup.constraints)
            self._observations[number] = replace(made, snapshot=snapshots[number])
        self._unobserved.clear()
        return tuple(self._observations)


def _extended(items: list[T], length: int) -> list[T]:
    return [*items, *([None] * (length - len(items)))]  # type: ignore[list-item]


def ranks_for(setup: StudySetup, trial: Trial, most_ranks: float) -> int:
    """Return the ranks of a trial on `most_ranks` devices; more ranks if it has to wait for devices."""
    own = trial.world_size
    if own <= most_ranks or setup.on_lost_node == "wait" or trial.number is None:
        return own
    params = trial.declared_params
    if _option(setup, params, "shard", "none") != "none":
        return own
    passes = _option(setup, params, "accumulate", 1)
    if type(passes) is not int or passes < 1:
        return own  # a parameter of the user's own loop
    steps = own * passes
    fitting = (ranks for ranks in range(int(most_ranks), 0, -1) if steps % ranks == 0)
    return next((ranks for ranks in fitting if setup.world_sizes is None or ranks in setup.world_sizes), own)


def params_on(setup: StudySetup, trial: Trial, ranks: int) -> Mapping[str, Any]:
    """Return the trial's parameters for `ranks` ranks; `accumulate` keeps the effective batch size."""
    if ranks == trial.world_size:
        return trial.declared_params
    passes = trial.world_size * int(_option(setup, trial.declared_params, "accumulate", 1)) // ranks
    return {**trial.declared_params, "accumulate": passes}


def _option(setup: StudySetup, params: Mapping[str, Any], name: str, default: Any) -> Any:
    return params.get(name, setup.training.get(name, default))


WornSlots = Callable[[tuple[int, ...]], tuple[int, ...]]


@dataclass(kw_only=True, slots=True)
class LiveStudy:
    """A running study: its trials, slots, costs and decisions."""

    setup: StudySetup
    outbox: Outbox
    account: BudgetAccount
    registry: TrialRegistry
    now: float  # moment of the event that is being handled, in seconds since 1970
    watchdog: Watchdog
    worn: WornSlots  # the pool's function that chooses slots to get a new process before another trial
    rungs: tuple[int, ...]  # epochs up to which gangs may train at a time: the policy's rungs and the last epoch
    watched: frozenset[int] = frozenset()
    history: History = field(default_factory=History)  # view for the policy; `look` updates it
    keeper: CheckpointKeeper = field(default_factory=CheckpointKeeper)
    free: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)  # slots without a device, released ones included
    released: set[int] = field(default_factory=set)  # slots that were released for good
    leaving: set[int] = field(default_factory=set)  # slots whose devices will be gone soon; they get no new trial
    joined: set[int] = field(default_factory=set)
    has_test_part: bool = False  # whether a trial that started here has samples for testing
    can_explain: bool = False  # whether its task describes a model's answers
    saves: bool | None = None  # whether a milestone had a checkpoint; None before the first milestone
    reference_frozen: bool = False
    reference_due: bool = False  # whether to write the reference point with this step
    # Percent of hypervolume that ten more dollars would add, at each decision
    worth_percents: list[float] = field(default_factory=list)
    searched: SearchedTrials = field(init=False)

    def __post_init__(self) -> None:
        self.searched = SearchedTrials(self.setup, self.registry)

    def gain(self, slots: tuple[int, ...]) -> None:
        """Use and charge slots; ignores slots released after the pool sent this event."""
        slots = tuple(slot for slot in slots if slot not in self.released)
        self.joined.update(slot for slot in slots if slot >= self.setup.slots)
        self.leaving.difference_update(slots)
        self.missing.difference_update(slots)
        self.account.slots_back(slots, self.now)
        self.account.slots_ready(self.now)
        self.give_back(slots)

    def give_back(self, slots: Iterable[int]) -> None:
        """Mark slots as free, except leaving slots."""
        self.free.update(set(slots) - self.leaving)

    def lose(self, slots: tuple[int, ...], *, with_device: bool) -> None:
        """Stop using slots until they return; slots lost `with_device` are not charged."""
        self.free.difference_update(slots)
        if with_device:
            self.leaving.difference_update(slots)
            self.missing.update(slots)
            self.account.slots_gone(slots, self.now)

    def release(self, slots: tuple[int, ...]) -> None:
        """Stop using and charging slots for good."""
        self.lose(slots, with_device=True)
        self.released.update(slots)

    def leave(self, slots: tuple[int, ...]) -> None:
        """Start no trial on slots whose devices will soon be removed; they are still charged."""
        self.leaving.update(set(slots) - self.missing)
        self.free.difference_update(slots)

    @property
    def most_ranks(self) -> float:
        """Largest number of ranks with a device; infinite if no device is gone."""
        gone = len(self.missing) + len(self.leaving)
        return self.slots - gone if gone else math.inf

    @property
    def slots(self) -> int:
        """Number of slots that the pool ever had."""
        return self.setup.slots + len(self.joined)

    def ranks(self, trial: Trial) -> int:
        """Return a trial's ranks if it started now, or once enough devices return."""
        return ranks_for(self.setup, trial, min(self.most_ranks, self.slots))

    def is_baseline(self, trial: Trial) -> bool:
        """Return whether a trial is a baseline."""
        named = self.setup.baselines
        return bool(named) and any(trial is one for one in trials_of(named, self.registry.started))

    @property
    def fresh_allowed(self) -> bool:
        """Return whether the limit of trials allows another new trial."""
        limit = self.setup.limits.trials
        return limit is None or self.registry.started_count < limit

    def look(self) -> History:
        """Return the history for the policy, with all changes."""
        history = self.history
        history.trials = self.searched.snapshots()
        queued = self.registry.next_queued()
        history.upcoming = queued.params if queued is not None else None
        history.fresh_allowed = self.fresh_allowed
        return history

    def decided(self, trial: Trial, decision: Decision) -> None:
        """Record a decision about a trial."""
        percent = decision.numbers.get(NEXT_10_USD_PERCENT)
        if isinstance(percent, int | float):
            self.worth_percents.append(float(percent))
        trial.decided = Decided(
            trial_id=trial.id,
            epoch=trial.epochs_done,
            action=decision.action,
            reason=decision.reason,
            numbers=dict(decision.numbers),
            forecasts=decision.forecasts,
            at=self.now,
        )
        self.outbox.write(trial.decided)

    def freeze_reference(self) -> None:
        """Fix the reference point at the end of this step, unless it is fixed."""
        if not self.reference_frozen:
            self.reference_frozen = self.reference_due = True


def decision(action: Action, reason: str) -> Decision:
    """Return a decision without numbers."""
    return Decision(action=action, reason=reason)
