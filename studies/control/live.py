"""What a controller knows of its study while it drives it: the state that one machine owns and its parts work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from studies.control.budget_account import BudgetAccount
from studies.control.checkpoints import CheckpointKeeper
from studies.control.commands import FreezeReference
from studies.control.outbox import Outbox
from studies.control.setup import StudySetup
from studies.control.trial_registry import TrialRegistry
from studies.control.trials import Trial
from studies.records import NEXT_10_USD_PERCENT, Action
from studies.search.policy import Decision, History
from studies.storage.changes import Decided

WornSlots = Callable[[tuple[int, ...]], tuple[int, ...]]


@dataclass(kw_only=True, slots=True)
class LiveStudy:
    """A study in the hands of its controller.

    Attributes:
        now: The moment of the event that is being handled, in seconds.
        worn: Which of some slots should get a new process before another trial; the pool knows.
        rungs: Epochs up to which stretches go: the policy's rungs and the last epoch.
        watched: Epochs whose values a search may look at.
        history: What the policy may look at; `look` brings it up to date.
        keeper: Which checkpoint files stay.
        free: Slots that can take a rank now.
        worth_percents: What ten more dollars would add to the hypervolume, as each decision saw it.
        reference_frozen: Whether the reference point is given, stored or about to be.
    """

    setup: StudySetup
    outbox: Outbox
    account: BudgetAccount
    registry: TrialRegistry
    now: float
    worn: WornSlots
    rungs: tuple[int, ...]
    watched: frozenset[int] = frozenset()
    history: History = field(default_factory=History)
    keeper: CheckpointKeeper = field(default_factory=CheckpointKeeper)
    free: set[int] = field(default_factory=set)
    reference_frozen: bool = False
    worth_percents: list[float] = field(default_factory=list)

    @property
    def fresh_allowed(self) -> bool:
        """Whether the budget allows one more trial to be started."""
        limit = self.setup.limits.trials
        return limit is None or self.registry.started_count < limit

    def look(self) -> History:
        """What the policy may look at now."""
        history, price = self.history, self.setup.search_usd_per_slot_hour
        history.trials = [trial.seen(price) for trial in self.registry.started]
        queued = self.registry.next_queued()
        history.upcoming = queued.params if queued is not None else None
        history.fresh_allowed = self.fresh_allowed
        return history

    def decided(self, trial: Trial, decision: Decision) -> None:
        """Write down why the trial goes on, waits or ends."""
        percent = decision.numbers.get(NEXT_10_USD_PERCENT)
        if isinstance(percent, int | float):
            self.worth_percents.append(float(percent))
        self.outbox.write(
            Decided(
                trial_id=trial.id,
                epoch=trial.epochs_done,
                action=decision.action,
                reason=decision.reason,
                numbers=dict(decision.numbers),
                at=self.now,
            )
        )

    def freeze_reference(self) -> None:
        """Have the reference point worked out and stored, unless there is one."""
        if not self.reference_frozen:
            self.reference_frozen = True
            self.outbox.order(FreezeReference())


def decision(action: Action, reason: str) -> Decision:
    """A decision that compares no numbers."""
    return Decision(action=action, reason=reason)
