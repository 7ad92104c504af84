"""Stops trials with a checkpoint when a study ends early, and releases slots that no trial needs."""

import math
from collections.abc import Callable

from search_spaces.untrusted_text import redact
from studies.control.machine import trial_endings
from studies.control.machine.live_study import LiveStudy
from studies.control.machine.live_trials import Attempt, Trial
from studies.control.machine.study_setup import DrainGang, ReleaseSlots
from studies.records.records import StopReason
from studies.storage.writing.changes import StudyChanged

END_SECONDS = 5.0
"""Seconds to finish an epoch if a user waits, its device will soon be gone, or it cannot be saved."""
_SOON: frozenset[StopReason] = frozenset({"interrupted", "stopped", "storage", "error"})


class Draining:
    """Stops running trials (all of them if there is a `reason`), and forbids starts."""

    def __init__(self, live: LiveStudy) -> None:
        self.reason: StopReason | None = None
        self.nothing_fits = False
        self._live = live

    @property
    def starts_nothing(self) -> bool:
        """Return whether no trial may start."""
        return self.reason is not None or self.nothing_fits

    def look_again(self) -> None:
        """Reset `nothing_fits`, unless slots were released, since they do not return."""
        self.nothing_fits = self.nothing_fits and bool(self._live.released)

    def drain(self, reason: StopReason, message: str = "") -> None:
        """Stop all running trials; a later, more urgent reason stops them sooner. Stores `message`."""
        live = self._live
        if message:
            live.outbox.write(StudyChanged(columns={"error": redact(message)}))
        if self.reason is not None and reason not in _SOON:
            return
        self.reason = self.reason or reason
        for trial in live.registry.running:
            attempt = trial.attempt
            # A user waits, or checkpoints cannot be written.
            if reason in _SOON - {"error"} and attempt is not None:
                self._stop_soon(trial, attempt, "interrupted")
            elif attempt is not None:
                self.drain_gang(trial, attempt, END_SECONDS if reason in _SOON else math.inf)

    def refuse(self, trial: Trial) -> None:
        """End a study that was resumed on fewer slots than this trial needs."""
        name = f"trial {trial.number}" if trial.number is not None else "a queued trial"
        problem = f"{name} needs {trial.world_size} slots, but the study has {self._live.slots}"
        self.drain("error", f"{problem}. Resume with more slots")

    def drain_leaving(self) -> None:
        """Stop trials on devices that will soon be removed."""
        for trial in self._live.registry.running:
            if trial.attempt is not None and self.must_leave(trial.attempt):
                self._stop_soon(trial, trial.attempt, "its device will be removed; stopped")

    def _stop_soon(self, trial: Trial, attempt: Attempt, why: str) -> None:
        """Stop a trial within seconds; immediately if its processes are still starting."""
        if attempt.started:
            self.drain_gang(trial, attempt, END_SECONDS)
        else:
            trial_endings.cut(
                self._live, trial, f"{why} before it trained a step; continues from epoch {trial.resume_epoch}"
            )

    def must_leave(self, attempt: Attempt) -> bool:
        """Return whether the attempt uses a device that will soon be removed."""
        return not self._live.leaving.isdisjoint(attempt.slots)

    def drain_gang(self, trial: Trial, attempt: Attempt, within_seconds: float = math.inf) -> None:
        """Stop a trial at the end of its epoch or after `within_seconds`; a later call can only shorten this time."""
        if attempt.drains_within is None or within_seconds < attempt.drains_within:
            attempt.drains_within = within_seconds
            order = DrainGang(trial_id=trial.id, attempt=attempt.number, within_seconds=within_seconds)
            self._live.outbox.order(order)


SpareSlots = Callable[[tuple[int, ...], int], tuple[int, ...]]

PATIENCE_SECONDS = 300.0  # seconds for which a slot is kept that the policy does not use


class SlotNeeds:
    """Releases slots that no trial will need to the autoscaler; `spare` chooses among free slots."""

    def __init__(self, live: LiveStudy, draining: Draining, spare: SpareSlots) -> None:
        self._live, self._draining, self._spare = live, draining, spare
        self._unused_since = math.inf

    @property
    def awaited(self) -> int:
        """Number of slots that wait for a device from the autoscaler."""
        return len(self._live.missing - self._live.released)

    @property
    def there(self) -> int | None:
        """Number of slots with a device; None while the pool is closed."""
        return self._live.slots - len(self._live.missing) if self._live.account.is_open else None

    @property
    def let_go(self) -> int:
        """Number of released slots."""
        return len(self._live.released)

    def opened(self) -> None:
        """With an autoscaler, count slots as missing until their processes run: before, they cost nothing."""
        if self._live.setup.autoscale:
            self._live.lose(tuple(range(self._live.slots)), with_device=True)
            self.look(has_no_use=False)

    def look(self, *, has_no_use: bool) -> None:
        """Release slots that no trial needs. Call it after starting trials on free slots."""
        live = self._live
        if not live.setup.autoscale or not live.account.is_open:
            return
        has_no_use = has_no_use and not live.fresh_allowed
        self._unused_since = min(self._unused_since, live.now) if has_no_use else math.inf
        surplus = live.slots - len(live.released) - self._needed()
        if surplus > 0:
            self._release(surplus)

    def _needed(self) -> int:
        live = self._live
        running, paused = live.registry.running, live.registry.in_state("paused")
        held = sum(len(trial.attempt.slots) for trial in running if trial.attempt is not None)
        if self._draining.starts_nothing:
            return held
        if live.now >= self._unused_since + PATIENCE_SECONDS:
            return max(held, *(trial.world_size for trial in (*running, *paused)), 0)
        limit = live.setup.limits.trials
        if limit is None:
            return live.slots
        begun = sum(max(trial.world_size, live.ranks(trial)) for trial in (*running, *paused))
        return min(begun + max(limit - live.registry.started_count, 0) * self._widest_new(), live.slots)

    def _widest_new(self) -> int:
        queued = (trial.world_size for trial in self._live.registry.in_state("queued"))
        return max(*(self._live.setup.world_sizes or (1,)), *queued, 1)

    def _release(self, count: int) -> None:
        """Release slots without a device first, then without a process, then free slots."""
        live = self._live
        held = {slot for trial in live.registry.running if trial.attempt for slot in trial.attempt.slots}
        others = set(range(live.slots)) - held - live.released
        there, waiting = others & live.free, others & live.missing
        first = [*sorted(waiting, reverse=True), *sorted(others - there - waiting, reverse=True)][:count]
        slots = (*first, *self._spare(tuple(sorted(there)), min(count - len(first), len(there))))
        if slots:
            live.release(slots)
            live.outbox.order(ReleaseSlots(slots=slots))
