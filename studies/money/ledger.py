"""Arithmetic of the ledger: every slot-second from opening to closing the pool is part of exactly one charge."""

from __future__ import annotations

import math
from collections.abc import Iterable

from studies.records import NANO, ChargeKind
from studies.storage.changes import Charged

ABSORBS_ROUNDING: frozenset[ChargeKind] = frozenset({"lost", "idle"})
"""Kinds of charges that take up what rounding left: they are part of no trial's objective."""


def cost_nano_usd(slots: int, seconds: float, usd_per_slot_hour: float) -> int:
    """Cost of `slots` slots over `seconds`, in whole nano-dollars, rounded once."""
    return round(slots * seconds * usd_per_slot_hour * NANO / 3600)


class SlotMeter:
    """Knows up to which moment each slot is charged, and makes charges of the time since then.

    Each charge of a trial is rounded by itself, so that equal epochs cost the same whenever they are trained. Overhead
    absorbs the rounding errors, so that all charges together never exceed the cost of the pool's time.

    Args:
        slots: Number of slots in the pool, numbered from 0.
        usd_per_slot_hour: Price of one slot.
        opened_at: Moment at which the pool began to cost money, in seconds since 1970.
    """

    def __init__(self, *, slots: int, usd_per_slot_hour: float, opened_at: float) -> None:
        self.usd_per_slot_hour = usd_per_slot_hour
        self._charged_until = dict.fromkeys(range(slots), opened_at)
        self._slot_seconds = 0.0
        self._charged_nano_usd = 0

    def charged_until(self, slot: int) -> float:
        """Moment up to which a slot is charged, in seconds since 1970."""
        return self._charged_until[slot]

    def charge(
        self,
        slots: Iterable[int],
        kind: ChargeKind,
        now: float,
        *,
        trial_id: int | None = None,
        attempt: int | None = None,
    ) -> list[Charged]:
        """Charge slots for their time since they were last charged: one line for all slots with the same span."""
        spans: dict[float, list[int]] = {}
        for slot in slots:
            since = self._charged_until[slot]
            self._charged_until[slot] = max(now, since)
            if now > since:
                spans.setdefault(since, []).append(slot)
        charges = []
        for since, numbers in sorted(spans.items()):
            cost = self._cost(len(numbers), now - since, exactly=kind not in ABSORBS_ROUNDING)
            self._charged_nano_usd += cost
            charges.append(
                Charged(
                    kind=kind,
                    trial_id=trial_id,
                    attempt=attempt,
                    slots=len(numbers),
                    slot_numbers=tuple(numbers),
                    since=since,
                    seconds=now - since,
                    usd_per_slot_hour=self.usd_per_slot_hour,
                    cost_nano_usd=cost,
                    at=now,
                )
            )
        return charges

    def pause(self, slots: Iterable[int]) -> None:
        """Charge nothing for these slots, which are charged up to now, until they go on."""
        self._charged_until |= dict.fromkeys(slots, math.inf)

    def go_on(self, slots: Iterable[int], now: float) -> None:
        """Charge those of these slots that are paused from now on."""
        self._charged_until |= {slot: now for slot in slots if self._charged_until[slot] == math.inf}

    def _cost(self, slots: int, seconds: float, *, exactly: bool) -> int:
        self._slot_seconds += slots * seconds
        cost = cost_nano_usd(slots, seconds, self.usd_per_slot_hour)
        if exactly:
            return cost
        owed = math.floor(self._slot_seconds * self.usd_per_slot_hour * NANO / 3600)
        return max(min(cost, owed - self._charged_nano_usd), 0)

    def uncharged_nano_usd(self, now: float) -> int:
        """Cost of the pool since the last charges, in nano-dollars."""
        slot_seconds = sum(max(now - since, 0.0) for since in self._charged_until.values())
        return cost_nano_usd(1, slot_seconds, self.usd_per_slot_hour)
