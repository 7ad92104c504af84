"""What a controller knows of its study while it drives it: the state on which the parts of a state machine work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from studies.control.files.kept_files import CheckpointKeeper
from studies.control.machine.budget_account import BudgetAccount
from studies.control.machine.commands import Outbox
from studies.control.machine.live_trials import Trial
from studies.control.machine.study_setup import StudySetup
from studies.control.machine.trial_registry import TrialRegistry
from studies.control.machine.watchdog import Watchdog
from studies.records.records import NEXT_10_USD_PERCENT, Action
from studies.results.baselines import trials_of
from studies.search.observations import Observation, Snapshot
from studies.search.policy import Decision, History
from studies.storage.writing.changes import Decided

T = TypeVar("T")


class SearchedTrials:
    """Keeps snapshots and observations of the started trials.

    Args:
        registry: All trials; it tells which of them changed.
    """

    def __init__(self, setup: StudySetup, registry: TrialRegistry) -> None:
        self._setup, self._registry = setup, registry
        self._snapshots: list[Snapshot] = []
        self._observations: list[Observation] = []
        self._unobserved: set[int] = set()

    def snapshots(self) -> Sequence[Snapshot]:
        """Snapshots by number; what is returned does not change when trials do."""
        changed = self._registry.take_changed()
        if changed:
            self._unobserved |= changed
            # A copy, since a policy may keep the list that it saw: copying pointers is cheap.
            self._snapshots = _extended(self._snapshots, self._registry.started_count)
            for number in sorted(changed):
                trial = self._registry.numbered(number)
                self._snapshots[number] = trial.snapshot(self._setup.search_usd_per_slot_hour)
        return self._snapshots

    def observations(self) -> tuple[Observation, ...]:
        """Observations by number, each with its snapshot; one of a trial that did not change is the same object."""
        snapshots, setup = self.snapshots(), self._setup
        self._observations = _extended(self._observations, len(snapshots))
        for number in sorted(self._unobserved):
            trial = self._registry.numbered(number)
            made = trial.observation(setup.objectives, setup.epochs, setup.constraints)
            self._observations[number] = replace(made, snapshot=snapshots[number])
        self._unobserved.clear()
        return tuple(self._observations)


def _extended(items: list[T], length: int) -> list[T]:
    """A copy with room for so many items; the new places are filled by the caller."""
    return [*items, *([None] * (length - len(items)))]  # type: ignore[list-item]


def ranks_for(setup: StudySetup, trial: Trial, most_ranks: float) -> int:
    """Number of ranks with which a trial goes on if there are devices for so many; its own if it has to wait for them.

    A trial that has not begun waits, and so does one whose model is sharded, which fewer devices may not hold.
    """
    own = trial.world_size
    if own <= most_ranks or setup.on_lost_node == "wait" or trial.number is None:
        return own
    if _option(setup, trial.declared_params, "shard", "none") != "none":
        return own
    steps = own * accumulated(setup, trial.declared_params)
    fitting = (ranks for ranks in range(int(most_ranks), 0, -1) if steps % ranks == 0)
    return next((ranks for ranks in fitting if setup.world_sizes is None or ranks in setup.world_sizes), own)


def params_on(setup: StudySetup, trial: Trial, ranks: int) -> Mapping[str, Any]:
    """Parameters with which that many ranks begin to train the trial."""
    if ranks == trial.world_size:
        return trial.declared_params
    passes = trial.world_size * accumulated(setup, trial.declared_params) // ranks
    return {**trial.declared_params, "accumulate": passes}


def accumulated(setup: StudySetup, params: Mapping[str, Any]) -> int:
    """Number of micro-batches in a step of each rank of a trial with its own world size."""
    return int(_option(setup, params, "accumulate", 1))


def _option(setup: StudySetup, params: Mapping[str, Any], name: str, default: Any) -> Any:
    return params.get(name, setup.training.get(name, default))


WornSlots = Callable[[tuple[int, ...]], tuple[int, ...]]


@dataclass(kw_only=True, slots=True)
class LiveStudy:
    """A study that a controller drives.

    Attributes:
        now: Moment of the event that is being handled, in seconds since 1970.
        worn: Function of the pool: which of some slots should get a new process before another trial.
        rungs: Epochs up to which gangs are granted training: the policy's rungs and the last epoch.
        history: What the policy may look at; `look` brings it up to date.
        missing: Slots whose devices are gone, or are not there yet.
        released: Slots that were let go for good, which are among the missing ones.
        leaving: Slots whose devices will be gone soon, and which get nothing new.
        reference_due: Whether it is to be written with this step: enough trials are complete, or the study ends.
        worth_percents: Expected growth of the hypervolume by ten more dollars at each decision, in percent, oldest
            first.
    """

    setup: StudySetup
    outbox: Outbox
    account: BudgetAccount
    registry: TrialRegistry
    now: float
    watchdog: Watchdog
    worn: WornSlots
    rungs: tuple[int, ...]
    watched: frozenset[int] = frozenset()
    history: History = field(default_factory=History)
    keeper: CheckpointKeeper = field(default_factory=CheckpointKeeper)
    free: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)
    reference_frozen: bool = False
    reference_due: bool = False
    worth_percents: list[float] = field(default_factory=list)
    searched: SearchedTrials = field(init=False)

    def __post_init__(self) -> None:
        """Keep what the search may know of the registry's trials."""
        self.searched = SearchedTrials(self.setup, self.registry)

    def gain(self, slots: tuple[int, ...]) -> None:
        """Slots can take a rank; those whose devices were gone, and new ones, are charged for from now on.

        One that was let go in the meantime stays so: the pool had told of it before it heard of that.
        """
        slots = tuple(slot for slot in slots if slot not in self.released)
        self.joined.update(slot for slot in slots if slot >= self.setup.slots)
        self.leaving.difference_update(slots)
        self.missing.difference_update(slots)
        self.account.slots_back(slots, self.now)
        self.give_back(slots)

    def give_back(self, slots: Iterable[int]) -> None:
        """Slots are free, but for those whose devices will be gone."""
        self.free.update(set(slots) - self.leaving)

    def lose(self, slots: tuple[int, ...], *, with_device: bool) -> None:
        """Slots cannot take a rank until they are gained again; nothing is paid for those without a device."""
        self.free.difference_update(slots)
        if with_device:
            self.leaving.difference_update(slots)
            self.missing.update(slots)
            self.account.slots_gone(slots, self.now)

    def release(self, slots: tuple[int, ...]) -> None:
        """Do without slots for good; nothing is paid for them any more."""
        self.lose(slots, with_device=True)
        self.released.update(slots)

    def leave(self, slots: tuple[int, ...]) -> None:
        """Slots get nothing new: their devices will be gone soon. They are paid for as long as they are there."""
        self.leaving.update(set(slots) - self.missing)
        self.free.difference_update(slots)

    @property
    def most_ranks(self) -> float:
        """Number of ranks of the widest trial for which there are devices now; infinite as long as none is gone."""
        gone = len(self.missing) + len(self.leaving)
        return self.slots - gone if gone else math.inf

    @property
    def slots(self) -> int:
        """Number of slots that the pool has had: those with which it was opened, and those that joined."""
        return self.setup.slots + len(self.joined)

    def ranks(self, trial: Trial) -> int:
        """Number of ranks with which a trial would be started now, or once there are devices for it."""
        return ranks_for(self.setup, trial, min(self.most_ranks, self.slots))

    def is_baseline(self, trial: Trial) -> bool:
        """Whether others are compared with a trial, so that it is trained to its end whatever it looks like."""
        named = self.setup.baselines
        return bool(named) and any(trial is one for one in trials_of(named, self.registry.started))

    @property
    def fresh_allowed(self) -> bool:
        """Whether the budget allows one more trial to be started."""
        limit = self.setup.limits.trials
        return limit is None or self.registry.started_count < limit

    def look(self) -> History:
        """Everything that the policy may look at, brought up to date."""
        history = self.history
        history.trials = self.searched.snapshots()
        queued = self.registry.next_queued()
        history.upcoming = queued.params if queued is not None else None
        history.fresh_allowed = self.fresh_allowed
        return history

    def decided(self, trial: Trial, decision: Decision) -> None:
        """Record why the trial goes on, waits or ends."""
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
        """Have the reference point written with all epochs of this step, unless there is one."""
        if not self.reference_frozen:
            self.reference_frozen = self.reference_due = True


def decision(action: Action, reason: str) -> Decision:
    """A decision that no comparison of numbers led to."""
    return Decision(action=action, reason=reason)
