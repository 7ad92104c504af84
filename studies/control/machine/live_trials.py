"""Mutable trials and attempts of the state machine; other code reads immutable records."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from search_spaces.suggestions import Asked
from studies.gangs.pool_protocol import Progress
from studies.money.budget import without_start
from studies.records.records import FINISHED_STATES, NANO, Constraint, Objective, StoredTrial, TrialState
from studies.results.constraints import bounds_of
from studies.results.extrapolation import end_of_training, extrapolated, mean_per_epoch
from studies.search.observations import Columns, Observation, Outcome, Snapshot, Values
from studies.storage.writing.changes import Decided
from trainers.protocol import CUMULATIVE_METRICS, Failure, ParameterValue

TRANSITIONS: Mapping[TrialState, frozenset[TrialState]] = {
    "queued": frozenset({"running", "pruned"}),
    "running": frozenset({"paused", "complete", "pruned", "failed"}),
    "paused": frozenset({"running", "pruned"}),
    "complete": frozenset(),
    # Only when the study gets more budget.
    "pruned": frozenset({"paused"}),
    "failed": frozenset(),
}


class IllegalTransitionError(AssertionError):
    """A trial's new state may not follow its current state: a defect of this program."""


FAILS_AGAIN: frozenset[Failure] = frozenset({"diverged", "out_of_memory", "error"})
"""Failures caused by the configuration, which the search ranks below all measured trials."""
_LIVE: Mapping[TrialState, Literal["running", "paused"]] = {"running": "running", "paused": "paused"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Paid:
    """Cost and duration of a part of a training."""

    cost_nano_usd: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Paid") -> "Paid":
        return Paid(cost_nano_usd=self.cost_nano_usd + other.cost_nano_usd, seconds=self.seconds + other.seconds)


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One run of a trial on slots."""

    number: int  # within its trial, from 1
    slots: tuple[int, ...]
    leased_at: float  # moment of the dispatch, in seconds since 1970
    until: int
    promised_until: float  # expected end of the next epoch, up to which the budget is reserved
    is_repair: bool  # a fault made the attempt necessary, so its start is charged as lost
    started: bool = False
    drains_within: float | None = None  # seconds within which the gang must stop, infinite for the epoch's end
    stop_reason: str | None = None  # reason why the trial must end with the current epoch
    epochs_again: int = 0  # number of recorded epochs that it has yet to train again
    has_measured: bool = False  # whether it has ended an epoch
    progress: Progress | None = None  # latest report on the running epoch; None after its end
    saved_fraction: float = 0.0  # part of that epoch that was saved and charged

    def heard(self, progress: Progress, *, has_part: bool) -> None:
        """Record progress within the epoch. After a resume, the first report has the saved fraction."""
        if progress.epoch == 0:  # the gang is still starting, so the saved part is unknown
            return
        if self.progress is None and has_part:
            self.saved_fraction = max(self.saved_fraction, progress.fraction)
        self.progress = progress


@dataclass(kw_only=True, slots=True)
class Trial:
    """One configuration and its training so far."""

    id: int
    number: int | None  # from 0, in order of first start; None while it is queued
    state: TrialState
    params: Mapping[str, ParameterValue]
    world_size: int
    origin: str  # "sampler", "enqueue" or "baseline"
    sampler_attributes: Mapping[str, object] = field(default_factory=dict)
    asked: Mapping[str, Asked] = field(default_factory=dict)
    failure: Failure | None = None
    epochs_done: int = 0  # number of recorded epochs
    last_metrics: Mapping[str, float] = field(default_factory=dict)
    epoch_seconds: list[float] = field(default_factory=list)
    epoch_costs_nano_usd: list[int] = field(default_factory=list)
    part: Paid = field(default_factory=Paid)  # duration and cost of the saved part of an unfinished epoch
    epoch_ranks: dict[int, int] = field(default_factory=dict)  # number of ranks by epoch, for narrower epochs only
    paid_nano_usd: int = 0
    wall_seconds: float = 0.0
    slot_seconds: float = 0.0  # slot time spent on training
    resume_checkpoint: str | None = None  # None to start from the beginning
    resume_epoch: int = 0
    # Signed objectives and other bounded metrics, by the epochs that a search looks at
    points: dict[int, Columns] = field(default_factory=dict)
    ends: dict[int, Columns] = field(default_factory=dict)  # as `points`, with cumulative metrics extrapolated
    milestones: dict[int, Columns] = field(default_factory=dict)  # signed objectives by epoch
    # "policy"; "drain" (continues before new trials); "fault" (as "drain", with its start charged as lost)
    paused_by: str | None = None
    finished_from: int | None = None  # epoch after which an earlier controller finished it as a leader
    attempts: int = 0
    lost_attempts: int = 0
    timeouts: int = 0
    attempt: Attempt | None = None
    decided: Decided | None = None  # latest decision of this controller about the trial
    failed: tuple[str, float] | None = None  # reason and moment of a failure under this controller
    _observation: Observation | None = None
    _snapshot: Snapshot | None = None

    @property
    def started_number(self) -> int:
        """Number of a started trial."""
        assert self.number is not None, f"trial {self.id} was never started"  # noqa: S101 - an invariant
        return self.number

    @property
    def declared_params(self) -> Mapping[str, ParameterValue]:
        """Parameters known at an attempt's start: all except parameters requested at run time."""
        if not self.asked:
            return self.params
        return {name: value for name, value in self.params.items() if name not in self.asked}

    @property
    def epochs_again(self) -> int:
        """Number of recorded epochs that the attempt, or else the next one, has to train again."""
        return self.epochs_done - self.resume_epoch if self.attempt is None else self.attempt.epochs_again

    def has_asked(self, name: str, asked: Asked) -> None:
        """Record a parameter requested at run time."""
        self.asked = {**self.asked, name: asked}
        self.params = {**self.params, name: asked.value}
        self._observation = self._snapshot = None

    @property
    def whole_epoch_seconds(self) -> Sequence[float]:
        """Epoch durations on all ranks: s seconds on k of w ranks count as s k / w seconds."""
        if not self.epoch_ranks:
            return self.epoch_seconds
        ranks = (self.epoch_ranks.get(epoch, self.world_size) for epoch in range(1, len(self.epoch_seconds) + 1))
        return [seconds * k / self.world_size for seconds, k in zip(self.epoch_seconds, ranks, strict=True)]

    def move(self, state: TrialState) -> None:
        """Change the state. Raises IllegalTransitionError for a forbidden change."""
        if state not in (allowed := TRANSITIONS[self.state]):
            raise IllegalTransitionError(f"a {self.state} trial cannot become {state}, only {sorted(allowed)}")
        self.state = state
        self._observation = self._snapshot = None

    def values(self, objectives: tuple[Objective, ...]) -> tuple[float, ...] | None:
        """Return the objectives of the last epoch, in the spec's order; None before the first epoch."""
        if not self.epochs_done:
            return None
        return tuple(self.last_metrics[o.metric] for o in objectives)

    def measured(self, epoch: int, point: Columns, end: Columns, *, is_watched: bool) -> None:
        """Record an epoch's values `point`, and values `end`, extrapolated to the last epoch."""
        if is_watched:
            self.points = {**self.points, epoch: point}
            self.ends = {**self.ends, epoch: end}
        self._snapshot = None

    def snapshot(self, usd_per_slot_hour: float, *, has_start_in_epoch: bool = False) -> Snapshot:
        """Return the policy's view of the trial; the same object until the trial changes.

        With `has_start_in_epoch`, the cost per epoch leaves out a program's start (`studies.money.budget`).
        """
        if self._snapshot is None:
            whole = self.whole_epoch_seconds
            seconds = without_start(whole) if has_start_in_epoch else whole
            mean_seconds = sum(seconds) / len(seconds) if seconds else None
            a_second = usd_per_slot_hour / 3600.0
            fails = self.state == "failed" and self.failure in FAILS_AGAIN
            has_model = self.state == "complete" and self.epochs_done in self.milestones
            self._snapshot = Snapshot(
                number=self.started_number,
                params=self.params,
                state="failed" if fails else "ended" if self.state in FINISHED_STATES else _LIVE[self.state],
                epochs=self.epochs_done,
                at=self.points,
                ends=self.ends,
                usd_per_epoch=None if mean_seconds is None else mean_seconds * self.world_size * a_second,
                paid_usd=self._paid_usd(a_second),
                starts=max(self.attempts, 1),
                world_size=self.world_size,
                last_model=self.epochs_done if has_model else None,
                keeps_nothing=self.resume_checkpoint is None,
            )
        return self._snapshot

    def _paid_usd(self, usd_per_slot_second: float) -> float:
        """Return the trial's cost in dollars at the search's price."""
        paid, worth = self.paid_nano_usd / NANO, self.slot_seconds * usd_per_slot_second
        return paid if math.isclose(paid, worth, rel_tol=1e-3) else worth

    def observation(
        self, objectives: tuple[Objective, ...], epochs: int, constraints: tuple[Constraint, ...] = ()
    ) -> Observation:
        """Return the sampler's view of the trial. A diverged trial counts as finished, with NaN values."""
        if self._observation is not None:
            return self._observation
        values, outcome = self._result(objectives, epochs)
        made = Observation(
            trial_id=self.id, params=self.params, outcome=outcome, values=values, attributes=self.sampler_attributes,
            excesses=self._excesses(constraints, epochs), asked=self.asked,
        )  # fmt: skip
        if self.state in FINISHED_STATES:  # cached: the sampler asks for it again with each later trial
            self._observation = made
        return made

    def _result(self, objectives: tuple[Objective, ...], epochs: int) -> tuple[Values | None, Outcome]:
        values = None
        if self.failure == "diverged" and self.state == "failed":
            values = (math.nan,) * len(objectives)
        elif self.state in {"complete", "pruned", "paused"} and self.epochs_done:
            values = tuple(self._extrapolated(o.metric, epochs) for o in objectives)
        if self.state == "running" or (self.state == "paused" and values is None):
            return values, "running"
        if values:
            return values, "finished"
        infeasible = self.state == "failed" and self.failure in {"out_of_memory", "error"}
        return values, "infeasible" if infeasible else "failed"

    def _excesses(self, constraints: tuple[Constraint, ...], epochs: int) -> dict[str, float | None]:
        """Return each constraint's excess as a fraction of its bound; None before the first epoch."""
        return {
            bound.name: bound.relative_excess(self._extrapolated(bound.metric, epochs)) if self.epochs_done else None
            for bound in bounds_of(constraints)
        }

    def _extrapolated(self, metric: str, epochs: int) -> float:
        value = self.last_metrics[metric]
        if metric not in CUMULATIVE_METRICS:
            return value
        return self.extrapolated(metric, value, self.epochs_done, epochs)

    def ends_of(self, shown: Sequence[Objective], epoch: int, point: Columns, planned: int) -> Columns:
        """Return an epoch's signed values, with cumulative metrics extrapolated to the last epoch."""
        return tuple(
            one.signed(self.extrapolated(one.metric, one.signed(value), epoch, planned))
            if one.metric in CUMULATIVE_METRICS
            else value
            for one, value in zip(shown, point, strict=True)
        )

    def expect_end_of(self, epochs: int, shown: Sequence[Objective]) -> None:
        """Extrapolate recorded epochs to `epochs`, after a training that stopped early."""
        self.ends = {epoch: self.ends_of(shown, epoch, point, epochs) for epoch, point in self.points.items()}
        self._snapshot = None

    def extrapolated(self, metric: str, value: float, epoch: int, planned: int) -> float:
        """Extrapolate a cumulative metric to the last epoch (`studies.results.extrapolation`)."""
        is_complete = self.state == "complete"
        to_epoch = end_of_training(is_complete=is_complete, epochs_done=self.epochs_done, planned=planned)
        per_epoch = mean_per_epoch(metric, self.epoch_seconds[:epoch], self.epoch_costs_nano_usd[:epoch])
        return extrapolated(value, epoch, to_epoch, per_epoch)


def restored(stored: StoredTrial) -> Trial:
    """Return a stored trial as a live trial; still "running" if its controller died."""
    record = stored.record
    last = record.epochs[-1] if record.epochs else None
    return Trial(
        id=record.id,
        number=record.number,
        state=record.state,
        params=record.params,
        world_size=record.world_size,
        origin=record.origin,
        sampler_attributes=stored.sampler_attributes,
        asked=record.asked,
        failure=record.failure,
        epochs_done=last.epoch if last else 0,
        last_metrics=last.metrics if last else {},
        epoch_seconds=list(stored.epoch_seconds),
        epoch_costs_nano_usd=list(stored.epoch_costs_nano_usd),
        epoch_ranks=dict(stored.epoch_ranks),
        paid_nano_usd=record.paid_nano_usd,
        part=Paid(
            cost_nano_usd=max(stored.train_nano_usd - sum(stored.epoch_costs_nano_usd), 0),
            seconds=max(stored.train_seconds - sum(stored.epoch_seconds), 0.0),
        ),
        wall_seconds=stored.wall_seconds,
        slot_seconds=stored.slot_seconds,
        resume_checkpoint=record.resume_checkpoint,
        resume_epoch=record.resume_epoch,
        paused_by=stored.paused_by,
        finished_from=stored.finished_from,
        attempts=len(stored.outcomes),
        lost_attempts=sum(outcome in {"lost", "timeout"} for outcome in stored.outcomes),
        timeouts=stored.outcomes.count("timeout"),
    )
