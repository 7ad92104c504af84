"""End of a study: its pool, its state, its reference point, and the limits that closed it."""

import dataclasses
import math
from collections.abc import Mapping

from studies.control.machine.commands import ClosePool
from studies.control.machine.live_study import LiveStudy
from studies.control.machine.study_setup import StudySetup
from studies.records.records import StopReason, StudyState
from studies.results.pareto import reference_coordinate
from studies.storage.writing.changes import PoolChanged, StudyChanged, StudyColumns, TrialChanged, TrialColumns

_LIMITS = ("usd", "hours", "trials", "usd_per_trial", "hours_per_trial")

ENDS_BY_BUDGET: frozenset[StopReason] = frozenset({"budget_usd", "budget_hours", "budget_trials"})
"""Reasons for which only more budget reopens a study."""


def closed_by(setup: StudySetup, usd_per_slot_hour: float) -> dict[str, float | None]:
    """Return the limits to store when a study's budget closes it."""
    return {**dataclasses.asdict(setup.limits), "usd_per_hour": setup.slots * usd_per_slot_hour}


def has_more(setup: StudySetup, stored: Mapping[str, float | None]) -> bool:
    """Return whether a study that `closed_by` ended under the limits `stored` may continue under its limits of now."""
    now = closed_by(setup, setup.usd_per_slot_hour)
    is_cheaper = _number(now["usd_per_hour"]) < _number(stored.get("usd_per_hour"))
    keeps_more = setup.limits.finish > (stored.get("finish") or 0.0)
    return is_cheaper or keeps_more or any(_number(now[name]) > _number(stored.get(name)) for name in _LIMITS)


def _number(limit: float | None) -> float:
    return math.inf if limit is None else limit


def end_study(live: LiveStudy, state: StudyState, reason: StopReason) -> None:
    """Close the pool, and write the state of the study and the reason for its end."""
    if live.account.is_open:
        live.account.charge_idle(live.account.slots, live.now)
        live.outbox.write(PoolChanged(columns={"pool_closed_at": live.now}))
        live.outbox.order(ClosePool())
    if state == "closed":
        _close_paused(live)
        live.freeze_reference()
    columns: StudyColumns = {
        "state": state,
        "stop_reason": reason,
        "ended_at": live.now,
        "overshoot_nano_usd": live.account.overshoot_nano_usd,
    }
    if reason in ENDS_BY_BUDGET:
        columns["closed_by"] = closed_by(live.setup, live.account.usd_per_slot_hour)
    live.outbox.write(StudyChanged(columns=columns))


def _close_paused(live: LiveStudy) -> None:
    """Prune the paused trials; only more budget reopens them."""
    for trial in live.registry.in_state("paused"):
        live.registry.move(trial, "pruned")
        columns: TrialColumns = {"state": "pruned", "reason": "closed", "ended_at": live.now}
        live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))


def freeze(live: LiveStudy) -> None:
    """Write the automatic reference point, equal to `reference_point` of the study's records."""
    live.outbox.write(StudyChanged(columns={"reference_point": _point(live)}))


def _point(live: LiveStudy) -> dict[str, float] | None:
    objectives = live.setup.objectives
    ends = [
        trial.ends_of(objectives, epoch, values, live.setup.epochs)
        for trial in live.registry.by_id.values()
        for epoch, values in trial.milestones.items()
    ]
    if not ends:
        return None
    columns = zip(objectives, zip(*ends, strict=True), strict=True)
    return {one.metric: one.signed(reference_coordinate(column)) for one, column in columns}
