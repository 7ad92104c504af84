"""A study as frozen values without SQL (records)."""

import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal, TypeAlias

from search_spaces.space import CONSTRAINTS
from search_spaces.suggestions import Asked, Constant, Domain, are_compatible, asked_from_plain
from trainers.protocol import Failure, ParameterValue

INTERVAL = 0.8  # probability of the intervals that reports show
_NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Forecast of one objective, with its own sign and unit."""

    epochs: tuple[int, ...]  # ascending: the next rungs
    mean: tuple[float, ...]  # expected value at each epoch, of its logarithm if `is_log`
    deviation: tuple[float, ...]  # standard deviation like `mean`; 0 for a known value
    is_log: bool = False  # the logarithm of the value is normally distributed

    def median(self, place: int) -> float:
        """Return the median at the epoch with index `place`."""
        return self._value(self.mean[place])

    def interval(self, place: int, probability: float = INTERVAL) -> tuple[float, float]:
        """Return the central interval of this probability at the epoch with index `place`."""
        reach = _NORMAL.inv_cdf((1 + probability) / 2) * self.deviation[place]
        return self._value(self.mean[place] - reach), self._value(self.mean[place] + reach)

    def quantile_of(self, place: int, value: float) -> float | None:
        """Return the probability of a smaller value; None without a spread."""
        if self.is_log and value <= 0:
            return 0.0
        if not math.isfinite(value) or self.deviation[place] <= 0:
            return None
        z = math.log(value) if self.is_log else value
        return _NORMAL.cdf((z - self.mean[place]) / self.deviation[place])

    def _value(self, z: float) -> float:
        return math.exp(min(z, 700.0)) if self.is_log else z  # exp(710) overflows a float


Forecasts: TypeAlias = Mapping[str, Forecast]  # forecasts by the objective's metric


def as_plain(forecasts: Forecasts) -> dict[str, dict[str, Any]] | None:
    """Return forecasts as JSON data with six digits; None without forecasts."""
    return {
        metric: {
            "epochs": list(one.epochs),
            "mean": _rounded(one.mean),
            "deviation": _rounded(one.deviation),
            "log": one.is_log,
        }
        for metric, one in forecasts.items()
    } or None


def from_plain(stored: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Forecast]:
    """Return the forecasts for JSON data of `as_plain`; empty for None."""
    return {
        metric: Forecast(
            epochs=tuple(one["epochs"]), mean=tuple(one["mean"]), deviation=tuple(one["deviation"]), is_log=one["log"]
        )
        for metric, one in (stored or {}).items()
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


TrialState = Literal["queued", "running", "paused", "complete", "pruned", "failed"]
StudyState = Literal["running", "drained", "closed", "failed"]
StopReason = Literal[
    "budget_usd", "budget_hours", "budget_trials", "exhausted", "not_worthwhile", "nothing_works", "interrupted",
    "stopped", "storage", "error", "imported",
]  # fmt: skip
ChargeKind = Literal["start", "train", "lost", "idle", "confirm", "test"]
Action = Literal["continue", "pause", "stop"]
Direction = Literal["minimize", "maximize"]
DIRECTIONS: Mapping[str, Direction] = {"min": "minimize", "max": "maximize"}  # directions by their short names

SIMULATED_TASK = "recorded_curves"  # task of a simulated study
IMPORTED: Literal["imported"] = "imported"  # task, end and origin of what `automl import` has stored
NOT_TRAINED_HERE: Mapping[object, str] = {SIMULATED_TASK: "was simulated", IMPORTED: "was imported"}
"""Tasks of studies without trainings here, in words: these studies have no models and cannot continue."""
STOP_REASONS: Mapping[StopReason, str] = {
    "budget_usd": "the dollars of its budget are used up",
    "budget_hours": "the time of its budget is used up",
    "budget_trials": "all trials that its budget allows have been started",
    "exhausted": "there was nothing left to try",
    "not_worthwhile": "ten more dollars would have bought too little (budget.least_percent_per_10_usd)",
    "nothing_works": (
        "its first trials all failed before they had trained an epoch; fix the error that `automl explain` shows, then "
        "continue with `automl resume {study}` (limit: faults.errors_at_start)"
    ),
    "interrupted": "it was interrupted; `automl resume {study}` continues it",
    "stopped": "it was stopped; `automl resume {study}` continues it",
    "storage": "its checkpoints cannot be written; it continues when they can be, or with `automl resume {study}`",
    "error": "an error ended it",
    "imported": "it was imported: another tool ran and paid its trials, so they are in no budget here",
}
"""Reasons for a study's end as clauses for users; `why_ended` replaces `{study}`."""


def why_ended(reason: StopReason | None, study: str) -> str:
    """Return why a study ended, as a clause for users; empty without a reason."""
    return STOP_REASONS[reason].format(study=shlex.quote(study)) if reason else ""


NANO = 1_000_000_000  # nano-dollars of a dollar: amounts are whole nano-dollars
MOST_USD = 1e9  # largest amount in dollars: as nano-dollars it fits 64 bits
MOST_PRICE = 1e6  # largest price of a slot in dollars per hour, whose charges fit 64 bits

TRIAL_STATES: tuple[TrialState, ...] = ("queued", "running", "paused", "complete", "pruned", "failed")
FINISHED_STATES: frozenset[TrialState] = frozenset({"complete", "pruned", "failed"})
CANCELLABLE_STATES: frozenset[TrialState] = frozenset({"queued", "running", "paused"})
CHARGE_KINDS: tuple[ChargeKind, ...] = ("start", "train", "lost", "idle", "confirm", "test")
OF_SAVED_MODELS: tuple[ChargeKind, ...] = ("confirm", "test")
"""Kinds of charges for models that the search has found."""
OWN_CHARGES: tuple[ChargeKind, ...] = ("start", "train")  # charges that a trial pays; their sum is its `cost_usd`
STATIC_METRICS = frozenset({"model_parameters", "latency_ms", "peak_memory_bytes"})
"""Metrics that training does not improve: constants, and peak memory, which never falls."""


def name_of_trial(trial_id: int, number: int | None) -> str:
    """Return a trial's name in commands: its number, or `q` and its row id before it started."""
    return f"q{trial_id}" if number is None else str(number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """A metric to minimise or maximise."""

    metric: str
    direction: Direction = "minimize"

    def signed(self, value: float) -> float:
        """Return the value, negated if larger is better."""
        return value if self.direction == "minimize" else -value


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraint:
    """A metric's lower or upper bound, or both; bounds are allowed values."""

    metric: str
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """One stored epoch of a trial."""

    epoch: int  # from 1, without gaps
    metrics: Mapping[str, float]  # by name; `cost_usd` and `wall_seconds` are the trial's sums up to this epoch
    wall_seconds: float  # of this epoch alone
    cost_nano_usd: int  # of this epoch alone
    checkpoint: str | None = None  # kept file of a milestone (absolute path)
    is_milestone: bool = False  # this epoch's model is a deliverable, kept or not
    measured_at: float = 0.0  # seconds since 1970; of equal points the archive keeps the earliest


NEXT_10_USD_PERCENT = "next_10_usd_percent"
"""Key in a decision's numbers: hypervolume in percent that ten more dollars would add."""
FINISHING = "finish: "
"""Prefix of a decision's reason when a leader trains to its last epoch, or a trial waits for a leader."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionRecord:
    """A decision about a trial at an epoch, with its reason and forecasts by metric."""

    epoch: int
    action: Action
    reason: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    forecasts: Forecasts = field(default_factory=dict)
    decided_at: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRecord:
    """One run of a trial on slots."""

    attempt: int  # number within its trial, from 1
    world_size: int
    start_epoch: int  # number of epochs recorded before this attempt
    slots: tuple[int, ...] = ()
    outcome: str  # "running", "complete", "paused", "pruned", "lost", "failed", ...
    started_at: datetime
    ended_at: datetime | None = None
    facts: Mapping[str, object] = field(default_factory=dict)  # the trainer's `TrialFacts`; empty before the first step


@dataclass(frozen=True, kw_only=True, slots=True)
class ChargeRecord:
    """One charge, for `slots` slots and the `seconds` before `charged_at`."""

    kind: ChargeKind
    trial: int | None
    attempt: int | None
    slots: int
    seconds: float
    usd_per_slot_hour: float
    cost_nano_usd: int
    charged_at: datetime
    slot_numbers: tuple[int, ...] = ()  # within the pool; empty in charges of earlier versions


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmationRecord:
    """One training of a chosen model with a new seed (`automl confirm`), or one test of a saved model."""

    trial: int
    seed: int
    epoch: int
    epochs: int  # number trained; below `epoch` if the training stopped improving earlier, 0 for a test
    metrics: Mapping[str, float]  # of the last epoch, test metrics with their prefix
    cost_nano_usd: int
    checkpoint: str | None  # path or URL of a kept model of this seed, from this or an earlier training
    confirmed_at: datetime
    answers: Mapping[str, Any] | None = None  # of a recommended model at the end; see `trainers.loop.epoch_metrics`

    @property
    def is_test(self) -> bool:
        """Return whether a saved model was tested or described, without training."""
        return self.epochs == 0 and bool(self.metrics or self.answers)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord:
    """One configuration with its training, decisions and cost."""

    id: int
    number: int | None  # from 0, in order of first start; None while it is queued
    state: TrialState
    failure: Failure | None = None  # set only for the state failed
    params: Mapping[str, ParameterValue]
    world_size: int = 1
    reason: str = ""
    error: str | None = None  # traceback or message of the last failure, even if a later attempt has succeeded
    origin: str = "sampler"  # "sampler", "enqueue", "baseline" or "imported"
    epochs: tuple[EpochRecord, ...] = ()  # ascending
    decisions: tuple[DecisionRecord, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    resume_checkpoint: str | None = None
    resume_epoch: int = 0  # epoch of the checkpoint to resume from, 0 without one
    paid_nano_usd: int = 0
    asked: Mapping[str, Asked] = field(default_factory=dict)
    is_advised: bool = False  # `search.advisor` proposed its parameters
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def name(self) -> str:
        """Return the trial's name in commands; see `name_of_trial`."""
        return name_of_trial(self.id, self.number)

    @property
    def declared_params(self) -> dict[str, ParameterValue]:
        """Return the parameters without those requested at run time."""
        return {name: value for name, value in self.params.items() if name not in self.asked}

    def values(self, objectives: tuple[Objective, ...]) -> dict[str, float]:
        """Return the objectives of the last epoch by metric, in the spec's order; empty before any epoch."""
        if not self.epochs:
            return {}
        metrics = self.epochs[-1].metrics
        return {o.metric: metrics[o.metric] for o in objectives if o.metric in metrics}


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetLine:
    """One limit of the budget (None: no limit), with amounts spent and reserved for running trials."""

    limit: float | None
    spent: float
    reserved: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewRecord:
    """Progress of a study's copy in Optuna or MLflow; `link` is its address."""

    view: str
    behind: int
    error: str | None = None
    link: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyLine:
    """A study without its trials, for lists of studies."""

    name: str
    state: StudyState
    stop_reason: StopReason | None
    driven: bool
    trials: int
    cost_nano_usd: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True)  # without slots, since `cached_property` needs a `__dict__`
class StudyRecord:
    """A stored study with trials, charges and settings."""

    id: int
    uid: str
    name: str
    state: StudyState
    stop_reason: StopReason | None
    spec: Mapping[str, object]  # plain mapping, with defaults and without the store's URL
    objectives: tuple[Objective, ...]  # in the spec's order
    reference_point: Mapping[str, float] | None  # by metric, None until it is known
    budget: Mapping[str, BudgetLine]
    alive_seconds: float
    trials: tuple[TrialRecord, ...]
    charges: tuple[ChargeRecord, ...]
    error: str | None = None
    overshoot_nano_usd: int = 0  # spent beyond the budget
    mlflow_uri: str | None = None  # tracking URI of its MLflow view
    driven: bool = False  # a living controller drives it; a study whose controller died stays `running`
    constraints: tuple[Constraint, ...] = ()
    views: tuple[ViewRecord, ...] = ()
    slots_there: int | None = None  # number of slots that cost money now; None if no pool is open
    confirmations: tuple[ConfirmationRecord, ...] = ()  # with fresh seeds, the latest of each trial, epoch and seed
    tests: tuple[ConfirmationRecord, ...] = ()  # saved models at the end, on the test part if there is one
    created_at: datetime
    ended_at: datetime | None = None

    @property
    def has_test_values(self) -> bool:
        """Return whether models were measured on a test part."""
        return any(one.metrics for one in self.tests)

    @property
    def not_trained_here(self) -> str:
        """Return "was simulated" or "was imported" for a study without models, else ""."""
        return NOT_TRAINED_HERE.get(self.spec.get("task"), "")

    @property
    def why_ended(self) -> str:
        """Return why the study ended, as a clause for users; empty while it runs."""
        why = why_ended(self.stop_reason, self.name)
        if self.stop_reason not in {"budget_usd", "budget_hours"} or any(trial.epochs for trial in self.trials):
            return why
        if any(trial.state == "failed" for trial in self.trials):
            return f"{why} before any trial ended an epoch, and trials have failed"
        more = f"continue it with a larger budget, for example `{self.resume_with_more}`"
        return f"{why} before any trial ended an epoch; {more}"

    @property
    def ended_by_budget(self) -> bool:
        """Return whether a limit of the budget ended the study."""
        return self.stop_reason in {"budget_usd", "budget_hours", "budget_trials"}

    @property
    def resume_with_more(self) -> str:
        """Return the command that continues the study after doubling the limit that ended it, or else all limits."""
        limits = {name: line.limit for name, line in self.budget.items()}
        ended_by = (self.stop_reason or "").removeprefix("budget_")
        ends = [ended_by] if ended_by in limits else list(limits)
        more = {name: 2 * limit for name in ends if (limit := limits[name]) is not None}
        spec = self.spec.get("budget")
        return resume_command(self.name, {**(spec if isinstance(spec, Mapping) else {}), **limits, **more}, more)

    @property
    def most_slots(self) -> int | None:
        """Return the largest number of slots to request from an autoscaler, if there is one."""
        resources = self.spec.get("resources")
        slots = resources.get("slots") if isinstance(resources, Mapping) and resources.get("autoscale") else None
        return slots if isinstance(slots, int) else None

    @property
    def is_abandoned(self) -> bool:
        """Return whether the study's controller died: the state is running, but no controller drives it."""
        return self.state == "running" and not self.driven

    @property
    def cost_nano_usd(self) -> int:
        """Return the sum of all charges in nano-dollars."""
        return sum(charge.cost_nano_usd for charge in self.charges)

    @property
    def enqueued(self) -> tuple[TrialRecord, ...]:
        """Return users' configurations that wait to start, oldest first."""
        return tuple(trial for trial in self.trials if trial.state == "queued" and trial.origin != "sampler")

    @cached_property
    def started(self) -> tuple[TrialRecord, ...]:
        """Return the started trials by number."""
        return tuple(sorted((t for t in self.trials if t.number is not None), key=lambda t: t.number or 0))


FINISH = 0.1
"""Default share of a budget for leaders that were cut short."""


def resume_command(study: str, budget: Mapping[str, Any], changed: Collection[str]) -> str:
    """Return `automl resume STUDY --set 'budget=2 min'`, or with a `--set` for each limit in `changed`."""
    given = {name: value for name, value in budget.items() if value is not None and name != "finish"}
    is_short = given.keys() <= {"hours", "usd", "trials"} and budget.get("finish", FINISH) == FINISH
    if is_short and "finish" not in changed:  # the short form of a budget holds no other limit
        sets = ["budget=" + ", ".join(_in_words(name, value) for name, value in given.items())]
    else:
        sets = [f"budget.{name}={'null' if budget[name] is None else _plain(budget[name])}" for name in changed]
    return " ".join(["automl resume", shlex.quote(study), *(f"--set {shlex.quote(one)}" for one in sets)])


def _in_words(name: str, limit: float) -> str:
    if name != "hours":
        return f"${_plain(limit)}" if name == "usd" else f"{_plain(limit)} trials"
    seconds = round(3600 * limit, 3)
    return f"{_plain(seconds)} s" if seconds % 60 else f"{_plain(seconds / 60)} min"


def _plain(number: float) -> str:
    """Return a number without an exponent, which the short form of a budget does not accept."""
    return f"{number:.9f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTrial:
    """A stored trial, with details that only controllers need."""

    record: TrialRecord  # without decisions and attempts, with its milestones, last epoch and watched epochs
    paused_by: str | None  # "policy", "drain" or "fault" for a paused trial
    wall_seconds: float
    slot_seconds: float  # slot time spent on training
    sampler_attributes: Mapping[str, object]
    epoch_seconds: Sequence[float] = ()  # durations of all its epochs
    epoch_costs_nano_usd: Sequence[int] = ()
    epoch_ranks: Mapping[int, int] = field(default_factory=dict)  # number of ranks, for narrower epochs only
    outcomes: tuple[str, ...] = ()
    train_seconds: float = 0.0
    train_nano_usd: int = 0
    finished_from: int | None = None  # epoch after which it was finished as a leader of the archive


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeState:
    """Stored state from which a controller resumes a study."""

    trials: tuple[StoredTrial, ...] = ()  # all trials by id, queued ones included
    spent_nano_usd: int = 0
    alive_seconds: float = 0.0
    checkpoint_bytes: Mapping[str, int] = field(default_factory=dict)  # known sizes of checkpoint files, by path

    @property
    def closed_trial_ids(self) -> list[int]:
        """Return the ids of trials pruned only because the study closed."""
        records = (stored.record for stored in self.trials)
        return [record.id for record in records if record.state == "pruned" and record.reason == "closed"]


ASKED, PROPOSED, ADVISED = "automl:asked", "automl:proposed", "automl:advised"
"""Keys in a trial's stored attributes, beside the sampler's own keys."""


def asked_in(attributes: Mapping[str, object]) -> dict[str, Asked]:
    """Return the parameters that a trial requested at run time."""
    return asked_from_plain(attributes.get(ASKED))


def proposed_in(attributes: Mapping[str, object]) -> dict[str, Asked]:
    """Return a sampler's proposals for parameters that a trial may request."""
    return asked_from_plain(attributes.get(PROPOSED))


def first_domains(trials: Iterable[Mapping[str, Asked]]) -> dict[str, Domain]:
    """Return each parameter's first requested domain, which later domains must match."""
    first: dict[str, Domain] = {}
    for asked in trials:
        for name, one in asked.items():
            if not isinstance(one.domain, Constant):
                first.setdefault(name, one.domain)
    return first


def latest_domains(trials: Iterable[Mapping[str, Asked]]) -> dict[str, Domain]:
    """Return each parameter's latest requested domain that is compatible with its first domain."""
    trials = list(trials)
    first, latest = first_domains(trials), dict[str, Domain]()
    for asked in trials:
        for name, one in asked.items():
            if not isinstance(one.domain, Constant) and are_compatible(first[name], one.domain):
                latest[name] = one.domain
    return latest


def known_space(study: StudyRecord) -> dict[str, Mapping[str, object]]:
    """Return each parameter's definition: declared parameters, then parameters requested at run time."""
    declared = study.spec.get("space")
    known: dict[str, Mapping[str, object]] = dict(declared) if isinstance(declared, Mapping) else {}
    known.pop(CONSTRAINTS, None)
    learnt = latest_domains(trial.asked for trial in study.started)
    return known | {name: one.to_dict() for name, one in learnt.items() if name not in known}
