"""Fair shares: how much of the slots each user has had lately.

Usage decays by half each day, as SLURM's multifactor priority does it (https://slurm.schedmd.com/priority_multifactor.html):
who used much last week is not behind for ever, and who has just come does not displace everybody for a week.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HALF_LIFE_SECONDS = 86_400.0
"""Time after which slot-seconds count half."""
EXPECTED_SECONDS = 60.0
"""Seconds for which a slot that is in use counts ahead: of jobs that start together each user gets some."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stay:
    """Slots that a user had for a while.

    Attributes:
        user: Name of the user.
        slots: Number of slots.
        since: Begin in seconds since 1970.
        until: End in seconds since 1970; None while it goes on.
    """

    user: str
    slots: int
    since: float
    until: float | None


def usage(stays: Iterable[Stay], now: float) -> Mapping[str, float]:
    """Return slot-seconds by user, decayed, and those that running jobs are expected to use next.

    A stay from a to b on s slots counts s times the integral of 2^(-(now - t) / half-life) over t from a to b.

    Args:
        stays: What users had.
        now: Present moment in seconds since 1970.
    """
    rate = math.log(2.0) / HALF_LIFE_SECONDS
    found: dict[str, float] = {}
    for stay in stays:
        until = now if stay.until is None else min(stay.until, now)
        begin, end = max(now - stay.since, 0.0), max(now - until, 0.0)
        used = stay.slots * (math.exp(-rate * end) - math.exp(-rate * begin)) / rate
        ahead = stay.slots * EXPECTED_SECONDS if stay.until is None else 0.0
        found[stay.user] = found.get(stay.user, 0.0) + used + ahead
    return found
