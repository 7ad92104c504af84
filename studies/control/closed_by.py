"""What a study was closed by: its limits, and what its pool cost an hour.

A study closes a little before its dollars or hours are used up: running epochs are cut before the deadline, and the
last rest pays for no epoch. So what is spent does not say whether there is more budget than at the end; only the
limits of then do. Where the pool costs less than then, the rest of the dollars pays for more time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from studies.control.setup import StudySetup
from studies.records import StopReason

_LIMITS = ("usd", "hours", "trials", "usd_per_trial", "hours_per_trial")
ENDS_BY_BUDGET: frozenset[StopReason] = frozenset({"budget_usd", "budget_hours", "budget_trials"})
"""Reasons for which only more budget reopens a study."""


def closed_by(setup: StudySetup, usd_per_slot_hour: float) -> dict[str, float | None]:
    """What is stored of a study that its budget closes.

    Args:
        setup: Settings of the study.
        usd_per_slot_hour: Price of one slot at that moment.
    """
    return {**dataclasses.asdict(setup.limits), "usd_per_hour": setup.slots * usd_per_slot_hour}


def has_more(setup: StudySetup, stored: Mapping[str, float | None]) -> bool:
    """Whether a study may do more now than when its budget closed it.

    Args:
        setup: Settings of the study now.
        stored: What `closed_by` said then.
    """
    now = closed_by(setup, setup.usd_per_slot_hour)
    is_cheaper = _number(now["usd_per_hour"]) < _number(stored.get("usd_per_hour"))
    keeps_more = setup.limits.finish > (stored.get("finish") or 0.0)
    return is_cheaper or keeps_more or any(_number(now[name]) > _number(stored.get(name)) for name in _LIMITS)


def _number(limit: float | None) -> float:
    return math.inf if limit is None else limit
