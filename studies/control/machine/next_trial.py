"""Chooses the next trial for a free slot, and requests one suggestion in advance."""

import math
import random
from contextlib import suppress
from dataclasses import replace

from search_spaces.drawing import complete, derived_seed
from search_spaces.parameters import SpaceError
from studies.control.machine.finishing import Finishing
from studies.control.machine.live_study import LiveStudy, decision
from studies.control.machine.live_trials import Trial
from studies.control.machine.study_setup import StudySetup, Suggest
from studies.gangs.pool_protocol import TrialQueued
from studies.records.records import StopReason
from studies.search.policy import Fresh, Thaw
from studies.search.samplers.suggester import Suggestion


class FirstErrors:
    """Counts errors of the user's code since this controller started."""

    def __init__(self, live: LiveStudy) -> None:
        self._live = live
        self._before = self._errors()

    def _errors(self) -> int:
        return sum(trial.failure == "error" for trial in self._live.registry.by_id.values())

    @property
    def nothing_works(self) -> bool:
        """Return whether `faults.errors_at_start` trials failed and no trial has finished an epoch."""
        most = self._live.setup.faults.errors_at_start
        registry = self._live.registry
        if most is None or registry.count("failed") < most or any(one.epochs_done for one in registry.by_id.values()):
            return False
        return self._errors() - self._before >= most


def narrowed(setup: StudySetup, suggestion: Suggestion, most_ranks: int, number: int) -> Suggestion:
    """Narrow a suggestion to `most_ranks` ranks, unless the space forbids this size.

    Parameters that are not allowed at this size are dropped or drawn again.
    """
    space, params = setup.space, suggestion.params
    if space is None or int(params.get("world_size") or 1) <= most_ranks:
        return suggestion
    chosen = {**params, "world_size": most_ranks}
    given = {name: chosen[name] for name in space.active(chosen) if name in chosen}
    generator = random.Random(derived_seed("narrow", setup.seed, number))
    for kept in (given, {"world_size": most_ranks}):
        with suppress(SpaceError):
            return replace(suggestion, params=complete(space, kept, generator))
    return suggestion


MOST_TOO_WIDE = 8
"""Number of configurations that may wait for lost devices; further suggestions are narrowed."""


class NextTrial:
    """Chooses the next trial for a free slot."""

    def __init__(self, live: LiveStudy, finishing: Finishing) -> None:
        self._live, self._finishing = live, finishing
        self._first_errors = FirstErrors(live)
        self._suggesting = False

    def trial(self) -> tuple[Trial, Thaw | None] | None:
        """Return the next trial to start, with the policy's decision if it was paused; None if no trial can start.

        Order: interrupted trials, users' configurations, the policy's choice, leaders that were stopped early (first if
        time ends the study). A trial that needs lost devices lets later trials start.
        """
        chosen = self._of_search()
        return chosen and self._finishing.instead_of(chosen)

    def _of_search(self) -> tuple[Trial, Thaw | None] | None:
        live = self._live
        if returning := live.registry.next_returning(self._fits):
            return returning, None
        if self._first_errors.nothing_works:
            return None
        queued = live.registry.next_queued(live.most_ranks)
        if queued and queued.origin != "sampler" and live.fresh_allowed:
            return queued, None
        return self._of_policy(queued)

    def _of_policy(self, queued: Trial | None) -> tuple[Trial, Thaw | None] | None:
        live = self._live
        match self._action():
            case Thaw() as thaw if self._fits(live.registry.numbered(thaw.number)):
                return live.registry.numbered(thaw.number), thaw
            case Thaw() if not live.fresh_allowed:
                return self._narrower_one()  # the policy's choice waits for a lost device
            case Fresh() | Thaw():
                if queued:
                    return queued, None
                # Waiting configurations need lost devices: request a narrower one.
                if self._live.most_ranks < math.inf and (not self._too_many_wait or self._narrow_size() is not None):
                    self.want_suggestion()
            case None:
                return self._finishing.after_search()
        return None

    def _narrower_one(self) -> tuple[Trial, Thaw] | None:
        """Return the paused trial with the best first objective that fits the remaining devices."""
        first = self._live.setup.objectives[0]
        fitting = [trial for trial in self._live.registry.in_state("paused") if self._fits(trial)]
        if not fitting:
            return None
        best = min(fitting, key=lambda one: (first.signed(one.last_metrics[first.metric]), one.started_number))
        made = decision("continue", "the trials ahead of it need more devices than there are now")
        return best, Thaw(number=best.started_number, decision=made)

    def _fits(self, trial: Trial) -> bool:
        return self._live.ranks(trial) <= self._live.most_ranks

    @property
    def _too_many_wait(self) -> bool:
        return self._live.registry.count("queued") >= MOST_TOO_WIDE

    def _narrow_size(self) -> int | None:
        space = self._live.setup.space
        if space is None or "world_size" not in space:
            return None
        parameter = space.parameter("world_size")
        return next((size for size in range(int(self._live.most_ranks), 0, -1) if parameter.contains(size)), None)

    def why_none(self) -> StopReason | None:
        """Return why no trial could start even on free slots; None if a trial could start."""
        if self._live.registry.next_returning():
            return None
        if self._first_errors.nothing_works:
            return "nothing_works"
        if self._action() or self._finishing.after_search():
            return None
        return "exhausted" if self._live.fresh_allowed else "budget_trials"

    def want_suggestion(self) -> None:
        """Request a suggestion, unless a configuration waits or no more trials may start."""
        live = self._live
        if self._suggesting or not live.fresh_allowed or live.registry.next_queued(live.most_ranks):
            return
        self._suggesting = True
        number = live.registry.started_count + live.registry.count("queued")
        most_ranks = self._narrow_size() if self._too_many_wait else None
        live.outbox.order(Suggest(number=number, history=live.searched.observations(), most_ranks=most_ranks))

    def prepare(self) -> None:
        """Let the policy prepare its next choice while all slots are busy."""
        live = self._live
        if not live.free and (live.registry.next_queued() or not live.fresh_allowed):
            live.setup.policy.prepare(live.look())

    def queued(self, event: TrialQueued) -> None:
        """Add a suggested or enqueued configuration."""
        self._suggesting = self._suggesting and event.origin != "sampler"
        trial = Trial(
            id=event.trial_id,
            number=None,
            state="queued",
            params=event.params,
            world_size=event.world_size,
            origin=event.origin,
            sampler_attributes=event.attributes,
        )
        self._live.registry.add(trial)

    def _action(self) -> Fresh | Thaw | None:
        return self._live.setup.policy.for_free_slot(self._live.look())
