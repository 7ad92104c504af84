"""What a controller knows of its study while it drives it: the state on which the parts of a state machine work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from studies.baselines import trials_of
from studies.control.budget_account import BudgetAccount
from studies.control.checkpoints import CheckpointKeeper
from studies.control.outbox import Outbox
from studies.control.searched_trials import SearchedTrials
from studies.control.setup import StudySetup
from studies.control.shrinking import ranks_for
from studies.control.trial_registry import TrialRegistry
from studies.control.trials import Trial
from studies.control.watchdog import Watchdog
from studies.records import NEXT_10_USD_PERCENT, Action
from studies.search.policy import Decision, History
from studies.storage.changes import Decided

WornSlots = Callable[[tuple[int, ...]], tuple[int, ...]]


@dataclass(kw_only=True, slots=True)
class LiveStudy:
    """A study that a controller drives.

    Attributes:
        setup: Settings of the study.
        outbox: Rows to commit and commands to carry out.
        account: Charges, promises and the deadline of the budget.
        registry: All trials.
        now: Moment of the event that is being handled, in seconds since 1970.
        watchdog: Silences of the gangs that train.
        worn: Function of the pool: which of some slots should get a new process before another trial.
        rungs: Epochs up to which gangs are granted training: the policy's rungs and the last epoch.
        watched: Epochs whose values a search may look at.
        history: What the policy may look at; `look` brings it up to date.
        keeper: Reasons to keep each checkpoint file.
        free: Slots that can take a rank now.
        missing: Slots whose devices are gone, or are not there yet.
        released: Slots that were let go for good, which are among the missing ones.
        joined: Slots that came to the pool after it was opened.
        leaving: Slots whose devices will be gone soon, and which get nothing new.
        reference_frozen: Whether the reference point is given, stored or about to be stored.
        reference_due: Whether it is to be written with this step: enough trials are complete, or the study ends.
        worth_percents: Expected growth of the hypervolume by ten more dollars at each decision, in percent, oldest
            first.
        searched: What the search may know of each started trial.
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
