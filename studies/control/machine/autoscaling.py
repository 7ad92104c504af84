"""Release of slots that a study no longer needs, on a cluster with an autoscaler.

    needed = slots that gangs hold                                      if no more trials are started
             min(slots, ranks of unfinished trials + ranks of new ones)  otherwise

The second line never grows under one controller, so a released slot is never requested again. If no new trial may start
and the policy has not used a free slot for `PATIENCE_SECONDS`, the slot is released too.
"""

import math
from collections.abc import Callable

from studies.control.machine.commands import ReleaseSlots
from studies.control.machine.draining import Draining
from studies.control.machine.live_study import LiveStudy

SpareSlots = Callable[[tuple[int, ...], int], tuple[int, ...]]

PATIENCE_SECONDS = 300.0  # seconds for which a slot is kept that the policy does not use


class SlotNeeds:
    """Releases slots that no trial will need; `spare` is the pool's function that chooses free slots."""

    def __init__(self, live: LiveStudy, draining: Draining, spare: SpareSlots) -> None:
        self._live, self._draining, self._spare = live, draining, spare
        self._unused_since = math.inf

    @property
    def awaited(self) -> int:
        """Return the number of missing slots that the autoscaler has to provide."""
        return len(self._live.missing - self._live.released)

    @property
    def there(self) -> int | None:
        """Return the number of available slots; None while the pool is not open."""
        return self._live.slots - len(self._live.missing) if self._live.account.is_open else None

    @property
    def let_go(self) -> int:
        """Return the number of released slots."""
        return len(self._live.released)

    def opened(self) -> None:
        """Count all slots as missing until their processes are ready, since they cost money only from then on."""
        if self._live.setup.autoscale:
            self._live.lose(tuple(range(self._live.slots)), with_device=True)
            self.look(has_no_use=False)

    def look(self, *, has_no_use: bool) -> None:
        """Release slots that are not needed. Call it after the free slots were filled."""
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
        """Release unpaid slots first, then slots without a process, then free slots."""
        live = self._live
        held = {slot for trial in live.registry.running if trial.attempt for slot in trial.attempt.slots}
        others = set(range(live.slots)) - held - live.released
        there, waiting = others & live.free, others & live.missing
        first = [*sorted(waiting, reverse=True), *sorted(others - there - waiting, reverse=True)][:count]
        slots = (*first, *self._spare(tuple(sorted(there)), min(count - len(first), len(there))))
        if slots:
            live.release(slots)
            live.outbox.order(ReleaseSlots(slots=slots))
