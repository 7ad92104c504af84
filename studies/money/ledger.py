"""Calculates charges: each second of each slot in the open pool is charged exactly once."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from studies.records.records import NANO, ChargeKind
from studies.storage.writing.changes import Charged

ABSORBS_ROUNDING: frozenset[ChargeKind] = frozenset({"lost", "idle"})
"""Kinds of charges that absorb rounding errors, since no objective contains them."""


def cost_nano_usd(slots: int, seconds: float, usd_per_slot_hour: float) -> int:
    """Return the cost in nano-dollars, rounded once."""
    return round(slots * seconds * usd_per_slot_hour * NANO / 3600)


class PricedSpan(NamedTuple):
    """A time interval with one price; begin and end in seconds since 1970."""

    begin: float
    end: float
    usd_per_slot_hour: float


def charged(
    span: PricedSpan, slots: Sequence[int], kind: ChargeKind, cost: int, *, trial_id: int | None, attempt: int | None
) -> Charged:
    """Return the charge for slots; `cost` is in nano-dollars."""
    return Charged(
        kind=kind,
        trial_id=trial_id,
        attempt=attempt,
        slots=len(slots),
        slot_numbers=tuple(slots),
        since=span.begin,
        seconds=span.end - span.begin,
        usd_per_slot_hour=span.usd_per_slot_hour,
        cost_nano_usd=cost,
        at=span.end,
    )


class PriceHistory:
    """Prices of a slot over time; times are in seconds since 1970."""

    def __init__(self, usd_per_slot_hour: float) -> None:
        self._prices = [(-math.inf, usd_per_slot_hour)]

    @property
    def usd_per_slot_hour(self) -> float:
        """Return the latest price."""
        return self._prices[-1][1]

    @property
    def changed_at(self) -> float:
        """Return the time of the latest price change; minus infinity without a change."""
        return self._prices[-1][0]

    def change(self, usd_per_slot_hour: float, at: float) -> None:
        """Set the price from the time `at`. Calls must be in chronological order."""
        self._prices.append((max(at, self.changed_at), usd_per_slot_hour))

    def spans(self, since: float, until: float) -> Iterator[PricedSpan]:
        """Yield the parts of an interval, split at price changes."""
        if since >= self.changed_at:  # by far the most frequent case
            yield PricedSpan(since, until, self.usd_per_slot_hour)
            return
        ends = [*(begin for begin, _ in self._prices[1:]), math.inf]
        for (begin, usd_per_slot_hour), end in zip(self._prices, ends, strict=True):
            first, last = max(begin, since), min(end, until)
            if last > first:
                yield PricedSpan(first, last, usd_per_slot_hour)


class SlotMeter:
    """Charges each slot for the time since its last charge; times are in seconds since 1970.

    Charges of trials are rounded separately, so that equal epochs cost the same. Overhead charges absorb the rounding,
    so that the sum of charges never exceeds the cost of the pool's time.

    Args:
        opened_at: Time from which the pool costs money.
    """

    def __init__(self, *, slots: int, usd_per_slot_hour: float, opened_at: float) -> None:
        self._prices = PriceHistory(usd_per_slot_hour)
        self.opened_at = opened_at
        self._charged_until = dict.fromkeys(range(slots), opened_at)
        # Number of charged slots, and the sum of their charged seconds since the opening.
        self._charged_count, self._charged_seconds = slots, 0.0
        self._slot_seconds: dict[float, float] = {}  # charged so far, by price
        self._charged_nano_usd = 0

    @property
    def usd_per_slot_hour(self) -> float:
        """Return the current price of a slot."""
        return self._prices.usd_per_slot_hour

    @property
    def charged_slots(self) -> tuple[int, ...]:
        """Return the slots that cost money now: all except paused slots."""
        return tuple(sorted(slot for slot, since in self._charged_until.items() if since != math.inf))

    @property
    def nano_usd_per_second(self) -> float:
        """Return the current cost of all charged slots, in nano-dollars per second."""
        return self._charged_count * self.usd_per_slot_hour * NANO / 3600

    def change_price(self, usd_per_slot_hour: float, now: float) -> None:
        """Charge slots at another price from `now`."""
        if usd_per_slot_hour != self.usd_per_slot_hour:
            self._prices.change(usd_per_slot_hour, now)

    def cost_nano_usd(self, slots: int, since: float, until: float) -> int:
        """Return the cost of slots in an interval, with each second at its own price."""
        spans = self._prices.spans(since, until)
        return sum(cost_nano_usd(slots, span.end - span.begin, span.usd_per_slot_hour) for span in spans)

    def charged_until(self, slot: int) -> float:
        """Return the time up to which a slot is charged."""
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
        """Charge slots for the time since their last charge; slots with equal intervals share one charge."""
        spans: dict[float, list[int]] = {}
        for slot in slots:
            since = self._charged_until[slot]
            if now > since:
                self._charged_until[slot] = now
                self._charged_seconds += now - since
                spans.setdefault(since, []).append(slot)
        charges = []
        for since, numbers in sorted(spans.items()):
            for span in self._prices.spans(since, now):
                price, exactly = span.usd_per_slot_hour, kind not in ABSORBS_ROUNDING
                cost = self._cost(len(numbers), span.end - span.begin, price, exactly=exactly)
                self._charged_nano_usd += cost
                charges.append(charged(span, numbers, kind, cost, trial_id=trial_id, attempt=attempt))
        return charges

    def pause(self, slots: Iterable[int]) -> None:
        """Stop charging slots, which must be charged up to now."""
        for slot in slots:
            if (since := self._charged_until[slot]) != math.inf:
                self._charged_count -= 1
                self._charged_seconds -= since - self.opened_at
            self._charged_until[slot] = math.inf

    def go_on(self, slots: Iterable[int], now: float) -> None:
        """Charge slots from `now`, if they are new or paused."""
        for slot in slots:
            if self._charged_until.get(slot, math.inf) == math.inf:
                self._charged_count += 1
                self._charged_seconds += now - self.opened_at
                self._charged_until[slot] = now

    def _cost(self, slots: int, seconds: float, usd_per_slot_hour: float, *, exactly: bool) -> int:
        at_price = self._slot_seconds
        at_price[usd_per_slot_hour] = at_price.get(usd_per_slot_hour, 0.0) + slots * seconds
        cost = cost_nano_usd(slots, seconds, usd_per_slot_hour)
        if exactly:
            return cost
        owed = math.floor(sum(slot_seconds * price * NANO / 3600 for price, slot_seconds in at_price.items()))
        return max(min(cost, owed - self._charged_nano_usd), 0)

    def uncharged_nano_usd(self, now: float) -> int:
        """Return the cost of the pool's uncharged time, in nano-dollars."""
        if self._prices.changed_at == -math.inf:  # fast path: called at every commit, and a pool may have 1000 slots
            seconds = self._charged_count * (now - self.opened_at) - self._charged_seconds
            return cost_nano_usd(1, max(seconds, 0.0), self.usd_per_slot_hour)
        slot_seconds: dict[float, float] = {}
        for since in self._charged_until.values():
            if since < now:
                for begin, end, price in self._prices.spans(since, now):
                    slot_seconds[price] = slot_seconds.get(price, 0.0) + end - begin
        return sum(cost_nano_usd(1, seconds, price) for price, seconds in slot_seconds.items())
