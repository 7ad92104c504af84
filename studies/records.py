"""Records: what every reader downstream of the store sees. Plain frozen values, no SQL, no torch, no Optuna.

States of a trial, and the moves between them:

    queued ─► running ◄─► paused ─► pruned
                 ├─► complete
                 ├─► pruned
                 └─► failed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from trainers.protocol import Failure, ParameterValue

TrialState = Literal["queued", "running", "paused", "complete", "pruned", "failed"]
SIMULATED_TASK = "recorded_curves"
"""What a simulated study has for its task."""
StudyState = Literal["running", "drained", "closed", "failed"]
StopReason = Literal[
    "budget_usd", "budget_hours", "budget_trials", "exhausted", "not_worthwhile", "interrupted", "stopped", "error"
]  # fmt: skip
ChargeKind = Literal["start", "train", "lost", "idle", "confirm"]
Action = Literal["continue", "pause", "stop"]
Direction = Literal["minimize", "maximize"]

NANO = 1_000_000_000
"""Amounts are whole nano-dollars."""

TRIAL_STATES: tuple[TrialState, ...] = ("queued", "running", "paused", "complete", "pruned", "failed")
FINISHED_STATES: frozenset[TrialState] = frozenset({"complete", "pruned", "failed"})
CHARGE_KINDS: tuple[ChargeKind, ...] = ("start", "train", "lost", "idle", "confirm")
CUMULATIVE_METRICS = frozenset({"cost_usd", "wall_seconds"})
"""Known functions of the epoch: they only grow, so a pruned trial's value is extrapolated to the last epoch."""
STATIC_METRICS = frozenset({"model_parameters", "latency_ms", "peak_memory_bytes"})
"""Metrics that do not change while a trial trains."""

TRANSITIONS: Mapping[TrialState, frozenset[TrialState]] = {
    "queued": frozenset({"running"}),
    "running": frozenset({"paused", "complete", "pruned", "failed"}),
    "paused": frozenset({"running", "pruned"}),
    "complete": frozenset(),
    # Only a trial that was pruned because its study closed may return, when the study gets more budget.
    "pruned": frozenset({"paused"}),
    "failed": frozenset(),
}


class IllegalTransitionError(AssertionError):
    """A trial was moved to a state that its present state does not lead to: a mistake in this program."""


def check_transition(before: TrialState, after: TrialState) -> None:
    """Raise `IllegalTransitionError` unless `after` may follow `before`."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransitionError(f"a {before} trial cannot become {after}; allowed: {sorted(TRANSITIONS[before])}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """One thing to optimise: the name of a metric and which way is better."""

    metric: str
    direction: Direction = "minimize"

    def signed(self, value: float) -> float:
        """The value turned so that smaller is better."""
        return value if self.direction == "minimize" else -value


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraint:
    """Bounds that a metric has to keep, both inclusive; at least one of them is a number."""

    metric: str
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """One committed epoch of a trial.

    Attributes:
        epoch: From 1, without holes.
        metrics: By name; `cost_usd` and `wall_seconds` are the trial's sums up to this epoch, the others of this epoch.
        wall_seconds: Duration of this epoch alone.
        cost_nano_usd: Cost of this epoch alone.
        checkpoint: Kept file of a milestone (absolute path), else None.
        is_milestone: Whether this epoch's model is a deliverable, kept or not.
        measured_at: Seconds since 1970; of equal points the archive keeps the earliest.
    """

    epoch: int
    metrics: Mapping[str, float]
    wall_seconds: float
    cost_nano_usd: int
    checkpoint: str | None = None
    is_milestone: bool = False
    measured_at: float = 0.0


NEXT_10_USD_PERCENT = "next_10_usd_percent"
"""Among a decision's numbers: how much ten more dollars would add to the hypervolume, in percent of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionRecord:
    """Why a trial went on, was paused or was stopped at an epoch; `numbers` are what the rule compared."""

    epoch: int
    action: Action
    reason: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    decided_at: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRecord:
    """One dispatch of a trial to a gang.

    Attributes:
        attempt: From 1 within its trial.
        world_size: Ranks.
        start_epoch: Epochs that were done before it.
        slots: Numbers of the slots that its ranks have or had.
        outcome: "running", "complete", "paused", "pruned", "lost", "failed", ...
        facts: The trainer's `TrialFacts` as a mapping, empty before the first step.
    """

    attempt: int
    world_size: int
    start_epoch: int
    slots: tuple[int, ...] = ()
    outcome: str
    started_at: datetime
    ended_at: datetime | None = None
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChargeRecord:
    """One line of the ledger: `slots` slots for `seconds` at `usd_per_slot_hour`, in whole nano-dollars."""

    kind: ChargeKind
    trial: int | None
    attempt: int | None
    slots: int
    seconds: float
    usd_per_slot_hour: float
    cost_nano_usd: int
    charged_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord:
    """One configuration and all that became of it.

    Attributes:
        number: From 0 in order of first start; None while queued.
        failure: Set when and only when the state is failed.
        params: By name, inactive ones left out.
        reason: One sentence: why it is in its state.
        error: Traceback or message of the last failure, kept although a later attempt may have succeeded.
        origin: "sampler", "enqueue" or "baseline".
        resume_checkpoint: What a paused or lost trial goes on from.
        resume_epoch: The epoch of that checkpoint, 0 without one.
        paid_nano_usd: All its start and train charges.
    """

    id: int
    number: int | None
    state: TrialState
    failure: Failure | None = None
    params: Mapping[str, ParameterValue]
    world_size: int = 1
    reason: str = ""
    error: str | None = None
    origin: str = "sampler"
    epochs: tuple[EpochRecord, ...] = ()
    decisions: tuple[DecisionRecord, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    resume_checkpoint: str | None = None
    resume_epoch: int = 0
    paid_nano_usd: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None

    def values(self, objectives: tuple[Objective, ...]) -> dict[str, float]:
        """The objectives of the last epoch by name, in the spec's order; empty before the first."""
        if not self.epochs:
            return {}
        metrics = self.epochs[-1].metrics
        return {o.metric: metrics[o.metric] for o in objectives if o.metric in metrics}


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetLine:
    """One limit, what of it is gone, and what running trials may still take; a limit of None is none."""

    limit: float | None
    spent: float
    reserved: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewRecord:
    """How far the Optuna or the MLflow view of a study is: `behind` commits, and why, if its last try failed."""

    view: str
    behind: int
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyLine:
    """A study in a list of many: what can be told without reading its trials.

    Attributes:
        driven: Whether a living controller has it.
        trials: How many were started.
    """

    name: str
    state: StudyState
    driven: bool
    trials: int
    cost_nano_usd: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRecord:
    """A study with everything in it, as committed.

    Attributes:
        uid: A random identity that no other store shares.
        spec: The spec as a plain mapping, defaults filled in, without the store's URL.
        reference_point: By metric, None until it is known.
        alive_seconds: How long a controller was alive for it.
        driven: Whether a living controller has it: that of a study which stays `running` may have died.
        constraints: What a model has to keep to count.
        views: Its Optuna view, and its MLflow view if the spec wants one.
        mlflow_uri: Where its MLflow view is, or None.
    """

    id: int
    uid: str
    name: str
    state: StudyState
    stop_reason: StopReason | None
    spec: Mapping[str, object]
    objectives: tuple[Objective, ...]
    reference_point: Mapping[str, float] | None
    budget: Mapping[str, BudgetLine]
    alive_seconds: float
    trials: tuple[TrialRecord, ...]
    charges: tuple[ChargeRecord, ...]
    overshoot_nano_usd: int = 0
    mlflow_uri: str | None = None
    driven: bool = False
    constraints: tuple[Constraint, ...] = ()
    views: tuple[ViewRecord, ...] = ()
    created_at: datetime
    ended_at: datetime | None = None

    @property
    def is_simulated(self) -> bool:
        """Whether it was replayed from recorded curves: it has no models, and nothing that could go on."""
        return self.spec.get("task") == SIMULATED_TASK

    @property
    def is_abandoned(self) -> bool:
        """Whether its controller died: it is running by its state, and nobody drives it."""
        return self.state == "running" and not self.driven

    @property
    def cost_nano_usd(self) -> int:
        """What the study has cost so far: the sum of the ledger."""
        return sum(charge.cost_nano_usd for charge in self.charges)

    @property
    def started(self) -> tuple[TrialRecord, ...]:
        """All trials that have a number, by number."""
        return tuple(sorted((t for t in self.trials if t.number is not None), key=lambda t: t.number or 0))
