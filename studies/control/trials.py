"""The state machine's own memory of trials and attempts: the few mutable objects in the project."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from studies.constraints import bounds_of
from studies.extrapolation import extrapolated, mean_per_epoch
from studies.records import (
    CUMULATIVE_METRICS,
    FINISHED_STATES,
    NANO,
    Constraint,
    Objective,
    TrialState,
    check_transition,
)
from studies.resume_state import StoredTrial
from studies.search.observations import Columns, Observation, Outcome, Snapshot
from trainers.protocol import Failure, ParameterValue

FAILS_AGAIN: frozenset[Failure] = frozenset({"diverged", "out_of_memory", "error"})
"""Failures that the configuration is to blame for: a search takes it for as bad as can be."""
_LIVE: Mapping[TrialState, Literal["running", "paused"]] = {"running": "running", "paused": "paused"}


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One dispatch of a trial to a gang, while it lasts.

    Attributes:
        until: The epoch up to which the ranks may train.
        promised_until: The moment by which it will have ended the next epoch: its reservation.
        hung_after: The moment after which silence means that it hangs.
        started: Whether the first step was reached.
        is_repair: Whether a fault made it necessary: its start is then lost money.
        draining: Whether it was told to stop at the end of its epoch.
        stop_reason: Set when the trial must end at the next boundary: its own budget is used up.
    """

    number: int
    slots: tuple[int, ...]
    leased_at: float
    until: int
    promised_until: float
    hung_after: float
    is_repair: bool
    started: bool = False
    draining: bool = False
    stop_reason: str | None = None


@dataclass(kw_only=True, slots=True)
class Trial:
    """One configuration.

    Attributes:
        epochs_done: Epochs that are recorded.
        last_metrics: Of the last recorded epoch.
        epoch_seconds: Durations of the recorded epochs, in seconds.
        epoch_costs_nano_usd: Costs of the recorded epochs, in nano-dollars.
        paid_nano_usd: Start and train charges.
        wall_seconds: Start and train time, the metric of that name.
        resume_epoch: The epoch of the checkpoint to go on from.
        points: Objectives and other bounded metrics, turned to be minimised, at the epochs that a search looks at.
        ends: The same with cumulative metrics extrapolated to the last epoch.
        paused_by: "policy", "drain" (goes on first when there are slots) or "fault" (the same, and its start is lost).
    """

    id: int
    number: int | None
    state: TrialState
    params: Mapping[str, ParameterValue]
    world_size: int
    origin: str
    sampler_attributes: Mapping[str, object] = field(default_factory=dict)
    failure: Failure | None = None
    epochs_done: int = 0
    last_metrics: Mapping[str, float] = field(default_factory=dict)
    epoch_seconds: list[float] = field(default_factory=list)
    epoch_costs_nano_usd: list[int] = field(default_factory=list)
    paid_nano_usd: int = 0
    wall_seconds: float = 0.0
    resume_checkpoint: str | None = None
    resume_epoch: int = 0
    points: dict[int, Columns] = field(default_factory=dict)
    ends: dict[int, Columns] = field(default_factory=dict)
    paused_by: str | None = None
    attempts: int = 0
    lost_attempts: int = 0
    attempt: Attempt | None = None
    _told: Observation | None = None
    _seen: Snapshot | None = None

    @property
    def started_number(self) -> int:
        """Its number; only a trial that was started has one."""
        assert self.number is not None, f"trial {self.id} was never started"  # noqa: S101 - an invariant
        return self.number

    def move(self, state: TrialState) -> None:
        """Change the state, if that is a legal move."""
        check_transition(self.state, state)
        self.state = state
        self._told = self._seen = None

    def values(self, objectives: tuple[Objective, ...]) -> tuple[float, ...] | None:
        """The objectives of the last epoch, in the spec's order; None before the first."""
        if not self.epochs_done:
            return None
        return tuple(self.last_metrics[o.metric] for o in objectives)

    def measured(self, epoch: int, point: Columns, end: Columns, *, is_watched: bool) -> None:
        """An epoch was recorded; its values are kept if a search looks at them.

        Args:
            epoch: Number of the epoch.
            point: Values after it, turned to be minimised.
            end: The same with cumulative metrics extrapolated to the last epoch.
            is_watched: Whether a search looks at this epoch.
        """
        if is_watched:
            self.points = {**self.points, epoch: point}
            self.ends = {**self.ends, epoch: end}
        self._seen = None

    def seen(self, usd_per_slot_hour: float) -> Snapshot:
        """What a search may know; the same object until something changes."""
        if self._seen is None:
            mean_seconds = sum(self.epoch_seconds) / len(self.epoch_seconds) if self.epoch_seconds else None
            a_second = self.world_size * usd_per_slot_hour / 3600.0
            fails = self.state == "failed" and self.failure in FAILS_AGAIN
            self._seen = Snapshot(
                number=self.started_number,
                params=self.params,
                state="failed" if fails else "ended" if self.state in FINISHED_STATES else _LIVE[self.state],
                epochs=self.epochs_done,
                at=self.points,
                ends=self.ends,
                usd_per_epoch=None if mean_seconds is None else mean_seconds * a_second,
                paid_usd=self.paid_nano_usd / NANO or self.wall_seconds * a_second,
                starts=max(self.attempts, 1),
                world_size=self.world_size,
            )
        return self._seen

    def told(
        self, objectives: tuple[Objective, ...], epochs: int, constraints: tuple[Constraint, ...] = ()
    ) -> Observation:
        """What the sampler may know: the last values, cumulative ones extrapolated to the last epoch.

        Diverged trials are told as finished with values that are not finite, which become the worst ones seen.
        """
        if self._told is not None:
            return self._told
        told = self._told_of_failure(len(objectives)) if self.state == "failed" else self._tell(objectives, epochs)
        told = replace(told, excesses=self._excesses(constraints, epochs))
        if self.state in FINISHED_STATES:  # told again for every trial that follows
            self._told = told
        return told

    def _tell(self, objectives: tuple[Objective, ...], epochs: int) -> Observation:
        values = None
        if self.state in {"complete", "pruned", "paused"} and self.epochs_done:
            values = tuple(self._extrapolated(o.metric, epochs) for o in objectives)
        outcome: Outcome = "finished" if values else "failed"
        if self.state == "running" or (self.state == "paused" and values is None):
            outcome = "running"
        return Observation(
            trial_id=self.id, params=self.params, outcome=outcome, values=values, attributes=self.sampler_attributes
        )

    def _told_of_failure(self, objectives: int) -> Observation:
        values = (math.nan,) * objectives if self.failure == "diverged" else None
        infeasible = self.failure in {"out_of_memory", "error"}
        outcome: Outcome = "finished" if values else "infeasible" if infeasible else "failed"
        return Observation(
            trial_id=self.id, params=self.params, outcome=outcome, values=values, attributes=self.sampler_attributes
        )

    def _excesses(self, constraints: tuple[Constraint, ...], epochs: int) -> dict[str, float | None]:
        """By how much each bound is violated, in units of the bound; None before the first epoch."""
        return {
            bound.name: bound.relative_excess(self._extrapolated(bound.metric, epochs)) if self.epochs_done else None
            for bound in bounds_of(constraints)
        }

    def _extrapolated(self, metric: str, epochs: int) -> float:
        value = self.last_metrics[metric]
        # A complete trial costs what it cost, also if it stopped improving before the last epoch.
        if metric not in CUMULATIVE_METRICS or self.state == "complete" or self.epochs_done >= epochs:
            return value
        return self.extrapolated(metric, value, self.epochs_done, epochs)

    def extrapolated(self, metric: str, value: float, epoch: int, to_epoch: int) -> float:
        """A cumulative metric extrapolated from one of the recorded epochs (`studies.extrapolation`)."""
        per_epoch = mean_per_epoch(metric, self.epoch_seconds[:epoch], self.epoch_costs_nano_usd[:epoch])
        return extrapolated(value, epoch, to_epoch, per_epoch)


def remembered(memory: StoredTrial) -> Trial:
    """A trial as the store has it. One that was running when its controller died is picked up as a paused one."""
    record = memory.record
    last = record.epochs[-1] if record.epochs else None
    return Trial(
        id=record.id,
        number=record.number,
        state=record.state,
        params=record.params,
        world_size=record.world_size,
        origin=record.origin,
        sampler_attributes=memory.sampler_attributes,
        failure=record.failure,
        epochs_done=last.epoch if last else 0,
        last_metrics=last.metrics if last else {},
        epoch_seconds=[epoch.wall_seconds for epoch in record.epochs],
        epoch_costs_nano_usd=[epoch.cost_nano_usd for epoch in record.epochs],
        paid_nano_usd=record.paid_nano_usd,
        wall_seconds=memory.wall_seconds,
        resume_checkpoint=record.resume_checkpoint,
        resume_epoch=record.resume_epoch,
        paused_by=memory.paused_by,
        attempts=len(record.attempts),
        lost_attempts=sum(attempt.outcome == "lost" for attempt in record.attempts),
    )
