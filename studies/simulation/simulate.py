"""Studies over recorded learning curves in virtual time: the controller, policy, prices and budget are the real ones.

Only training is replayed: an epoch takes the time that the table says and gives the metrics that it has. The search
sees validation metrics; the same epochs are scored on test metrics as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from search_spaces.wording import found, listed, nearest
from studies.constraints import columns, is_feasible
from studies.control.assembly import policy_of
from studies.control.controller import Asked, Controller, Rows
from studies.control.setup import Deadlines, StudySetup
from studies.control.state import StudyMachine
from studies.gangs.simulated import Curve, SimulatedPool
from studies.milestones import milestones
from studies.money.budget import Limits
from studies.records import (
    CUMULATIVE_METRICS,
    SIMULATED_TASK,
    STATIC_METRICS,
    Constraint,
    EpochRecord,
    Objective,
    StudyRecord,
    TrialRecord,
)
from studies.resume_state import Memory
from studies.search.model.cokriging import decision_rungs
from studies.search.model.search_model import EXAMPLES, Problem, SearchModel
from studies.search.model.transfer import EarlierStudy, Transfer
from studies.search.policy import Decision, History, Policy, Pruner, Thaw
from studies.search.pruners.mo_asha import MoAsha
from studies.search.samplers.suggester import Observation, Suggester, Suggestion, derived_seed
from studies.simulation.candidates import Candidates, NearestCandidate, RandomCandidate
from studies.simulation.curves import CurvesError, CurveTable
from studies.simulation.memory_store import MemoryStore
from studies.spec.study_spec import StudySpec, parse_spec
from studies.storage import lease as leases
from studies.storage.reader import load_study
from studies.storage.store import Store

START_EPOCHS = 0.3
"""What starting a gang costs by default, fresh or thawed, in mean epochs of the configuration."""
LOST_ATTEMPTS = 2
"""A configuration is struck by so many faults at most: at the third lost attempt its trial would fail."""


def shared_milestones(epochs: int) -> tuple[int, ...]:
    """The milestones of every simulated study, whatever its pruner, so that no pruner is scored on more models.

    They are those of a study without pruner and the rungs of `break_even` and `mo_asha` at their defaults, since each
    may hand over the models of its own; of 52 epochs 2 3 4 5 6 9 11 13 19 24 27 28 41 52.
    """
    return milestones(epochs, rungs=(*decision_rungs(epochs), *MoAsha().rungs(epochs)))


@dataclass(kw_only=True)
class Setting:
    """What whoever suggests or prunes in a simulation may want to know.

    Attributes:
        table: Whose curves are replayed; who searches must not look at them.
        candidates: Its configurations, those that were used already, and what is known before training.
        slots: Of the pool.
        start_epochs: What starting a gang costs, in mean epochs of its configuration.
        seed: The study's.
        constraints: What a milestone has to keep to count.
        record: Reads the study while it runs, as committed.
    """

    table: CurveTable
    candidates: Candidates
    objectives: tuple[Objective, ...]
    epochs: int
    slots: int
    usd_per_slot_hour: float
    budget_usd: float
    start_epochs: float
    seed: int
    constraints: tuple[Constraint, ...] = ()
    record: Callable[[], StudyRecord] | None = None


Searches = str | Callable[[Setting], Asked]
Watches = Callable[[Pruner, History, int, int], None]
"""Is told of each decision at a rung: the pruner, what it knew, the trial's number and the rung."""
Prunes = str | Mapping[str, object] | Callable[[Setting], Pruner]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedMilestone:
    """A model that a study could have handed over; it kept the constraints as the search saw it.

    Attributes:
        spent_usd: What the study had cost when it was measured, idle slots included.
        trial: Number of its trial.
        row: Of the table.
        epoch: Of the trial, from 1.
        values: The objectives as the search saw them, turned so that smaller is better.
        test_values: The same with the test twin of each validation metric that has one; may hold NaN.
    """

    spent_usd: float
    trial: int
    row: int
    epoch: int
    values: tuple[float, ...]
    test_values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Latencies:
    """Real seconds that the search took, with the number of trials at that time.

    Attributes:
        suggest: One pair for each suggestion.
        decide: One pair for each decision at a rung.
        free_slot: One pair for each time it was asked what a free slot does.
    """

    suggest: list[tuple[int, float]] = field(default_factory=list)
    decide: list[tuple[int, float]] = field(default_factory=list)
    free_slot: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStudy:
    """A study after its end.

    Attributes:
        record: As any study's; with a store the same can be read from there.
        budget_usd: Its limit.
        milestones: In the order of their measurement; `spent_usd` does not fall.
        wall_seconds: Virtual time from opening to closing the pool.
        real_seconds: What simulating it took.
    """

    record: StudyRecord
    objectives: tuple[Objective, ...]
    seed: int
    budget_usd: float
    milestones: tuple[SimulatedMilestone, ...]
    latencies: Latencies
    wall_seconds: float
    real_seconds: float


class _Keeps(Protocol):
    """Where a simulated study is written."""

    rows: Rows
    study_id: int
    lease_id: int | None
    opened_at: float

    def record(self) -> StudyRecord: ...

    def close(self, now: float) -> None: ...


class _InMemory:
    """For scoring only."""

    def __init__(self, name: str, objectives: tuple[Objective, ...], spec: Mapping[str, object]) -> None:
        self.study_id, self.opened_at = 1, 0.0
        self.lease_id: int | None = None
        self._store = MemoryStore(name, objectives, spec)
        self.rows: Rows = self._store

    def record(self) -> StudyRecord:
        return self._store.record()

    def close(self, now: float) -> None:
        pass


class _InStore:
    """Kept like any study; its lease is released at the virtual end, so that its hours are virtual ones."""

    def __init__(self, store: Store, spec: StudySpec) -> None:
        name = spec.study
        if store.study_row(name) is not None:
            raise CurvesError(f"study: found {name!r}, which the store has already, allowed: another name")
        self.rows: Rows = store
        self._store, self._name = store, name
        self.study_id = store.create_study(name, _mapping(spec), ".", time.time())
        lease = leases.acquire(store, self.study_id)
        assert isinstance(lease, leases.Lease)  # noqa: S101 - nobody else knows the study yet
        self.lease_id: int | None = lease.id
        self.opened_at = lease.acquired_at

    def record(self) -> StudyRecord:
        return load_study(self._store, self._name)

    def close(self, now: float) -> None:
        with self._store.engine.begin() as connection:
            assert self.lease_id is not None  # noqa: S101 - set in the constructor
            leases.release_row(connection, self.lease_id, now)


def simulate(
    table: CurveTable,
    *,
    objectives: Sequence[Objective],
    slots: int,
    budget_full_trials: float,
    seed: int = 0,
    sampler: Searches = "auto",
    pruner: Prunes = "auto",
    usd_per_slot_hour: float = 1.0,
    start_epochs: float = START_EPOCHS,
    fault_rate: float = 0.0,
    constraints: Sequence[Constraint] = (),
    earlier: Sequence[EarlierStudy] = (),
    store: Store | None = None,
    study: str = "simulated",
    on_decision: Watches | None = None,
) -> SimulatedStudy:
    """Run one study over a table's learning curves.

    Args:
        table: Recorded curves. A configuration with `world_size` among its parameters takes so many slots.
        objectives: Validation metrics, constants of the table, `cost_usd` or `wall_seconds`.
        slots: Devices that trials share.
        budget_full_trials: The budget in mean costs of a full training over the table.
        seed: Of the sampler, and of faults.
        sampler: As `search.sampler` of a spec, or a function that makes a suggester.
        pruner: As `search.pruner` of a spec, or a function that makes a pruner.
        usd_per_slot_hour: Price of a slot.
        start_epochs: Cost of starting or thawing a gang, in mean epochs of its configuration.
        fault_rate: Probability of a fault in each of a trial's first two attempts, at an epoch drawn evenly over the
            full training; an attempt that ends before it is spared.
        constraints: Bounds of what may be an objective; milestones that violate them do not count.
        earlier: Studies to learn from, over the same space and objectives.
        store: Where to keep the study; in memory by default.
        study: Its name.
        on_decision: Told after each decision at a rung.

    Raises:
        CurvesError: An objective or a bounded metric is none of the table's, or the study is in the store already.
        SpecError: The sampler's or the pruner's name is unknown.
    """
    began = time.perf_counter()
    check_objectives(table, objectives)
    check_constraints(table, constraints)
    setting = Setting(
        table=table,
        candidates=Candidates(table.space, table.params, table.statics),
        objectives=tuple(objectives),
        epochs=table.epochs,
        slots=slots,
        usd_per_slot_hour=usd_per_slot_hour,
        budget_usd=budget_full_trials * float(table.full_trial_usd(usd_per_slot_hour).mean()),
        start_epochs=start_epochs,
        seed=seed,
        constraints=tuple(constraints),
    )
    spec = _spec(setting, study, sampler, pruner)
    latencies = Latencies()
    keeps: _Keeps = _InMemory(study, setting.objectives, _mapping(spec)) if store is None else _InStore(store, spec)
    pool = SimulatedPool(lambda params, _size: _curve(setting, params, fault_rate), opened_at=keeps.opened_at)
    chosen = policy_of(spec.search, _problem(setting, earlier))
    chosen = Policy(pruner=pruner(setting), model=chosen.model) if callable(pruner) else chosen
    policy = Policy(pruner=_Watched(chosen.pruner, latencies, on_decision), model=chosen.model)
    setting.record = keeps.record
    suggester = _TimedSuggester(_suggester(setting, spec, sampler, chosen.model), latencies)
    try:
        _controller(setting, _setup(setting, study, policy), suggester, pool, keeps).run()
    finally:
        keeps.close(pool.now())
    record = keeps.record()
    return SimulatedStudy(
        record=record,
        objectives=setting.objectives,
        seed=seed,
        budget_usd=setting.budget_usd,
        milestones=_milestones(setting, record, keeps.opened_at),
        latencies=latencies,
        wall_seconds=pool.now() - keeps.opened_at,
        real_seconds=time.perf_counter() - began,
    )


def _controller(
    setting: Setting, setup: StudySetup, suggester: _TimedSuggester, pool: SimulatedPool, keeps: _Keeps
) -> Controller:
    """The real one, over recorded curves in virtual time."""
    machine = StudyMachine(setup, Memory(), alive_since=keeps.opened_at, pick=pool.pick, worn=pool.worn)
    return Controller(
        machine=machine,
        pool=pool,
        store=keeps.rows,
        load=keeps.record,
        suggester=suggester,
        study_id=keeps.study_id,
        lease_id=keeps.lease_id,
        background=False,
        tick_seconds=0.5 * float(setting.table.mean_epoch_seconds.mean()),
    )


def check_objectives(table: CurveTable, objectives: Sequence[Objective]) -> None:
    """Raise `CurvesError` unless the search may see each of the objectives."""
    _check_metrics(table, "objective", [objective.metric for objective in objectives])
    if len({objective.metric for objective in objectives}) < len(objectives) or not objectives:
        names = listed(objective.metric for objective in objectives) or "none"
        raise CurvesError(f"objective: found {names}, allowed: at least one, and metrics that all differ")


def check_constraints(table: CurveTable, constraints: Sequence[Constraint]) -> None:
    """Raise `CurvesError` unless the search may see each of the bounded metrics."""
    _check_metrics(table, "constraint", [constraint.metric for constraint in constraints])


def _check_metrics(table: CurveTable, place: str, metrics: Sequence[str]) -> None:
    allowed = [name for name, about in table.about.items() if about.split == "validation"]
    allowed += [*table.statics, *sorted(CUMULATIVE_METRICS)]
    for metric in metrics:
        if metric not in allowed:
            raise CurvesError(f"{table.name}: {place}: {found(metric, listed(allowed), nearest(metric, allowed))}")


# ---------------------------------------------------------------------- the study's parts


def _spec(setting: Setting, study: str, sampler: Searches, pruner: Prunes) -> StudySpec:
    """The spec that a stored study shows; it also checks the names of sampler and pruner."""
    search = {
        "sampler": sampler if isinstance(sampler, str) else "random",
        "pruner": "none" if callable(pruner) else pruner,
        "seed": setting.seed,
    }
    return parse_spec(
        {
            "study": study,
            "task": SIMULATED_TASK,
            "task_options": {"table": setting.table.name, "start_epochs": setting.start_epochs},
            "objectives": [{"metric": o.metric, "direction": o.direction} for o in setting.objectives],
            "constraints": [asdict(constraint) for constraint in setting.constraints],
            "space": setting.table.space,
            "training": {"epochs": setting.epochs},
            "search": search,
            "budget": {"usd": setting.budget_usd, "hours": None, "trials": len(setting.table)},
            "resources": {"slots": setting.slots, "price_per_slot_hour": setting.usd_per_slot_hour},
            "mlflow": "off",
        },
        "simulate",
    )


def _mapping(spec: StudySpec) -> dict[str, Any]:
    mapping = spec.model_dump(mode="json")
    mapping.pop("store")
    return mapping


def _setup(setting: Setting, study: str, policy: Policy) -> StudySetup:
    """No gang hangs here, however uneven its epochs are: the watchdog's deadlines are infinite."""
    return StudySetup(
        study=study,
        objectives=setting.objectives,
        constraints=setting.constraints,
        task=SIMULATED_TASK,
        task_options={},
        training={"epochs": setting.epochs},
        epochs=setting.epochs,
        milestones=shared_milestones(setting.epochs),
        policy=policy,
        limits=Limits(usd=setting.budget_usd, trials=len(setting.table)),
        slots=setting.slots,
        usd_per_slot_hour=setting.usd_per_slot_hour,
        seed=setting.seed,
        checkpoint_folder="/nowhere",
        deadlines=Deadlines(start=math.inf, first_epoch=math.inf, epoch_least=math.inf),
        watched=tuple(range(1, setting.epochs + 1)),
    )


def _problem(setting: Setting, earlier: Sequence[EarlierStudy]) -> Problem:
    """What our own search may know: the table's constants, as a count of parameters is known before training."""
    candidates = setting.candidates
    return Problem(
        space=setting.table.space,
        objectives=setting.objectives,
        epochs=setting.epochs,
        milestones=shared_milestones(setting.epochs),
        usd_per_slot_hour=setting.usd_per_slot_hour,
        known=lambda params: {
            name: float(values[candidates.row_of(params)]) for name, values in candidates.statics.items()
        },
        statics=STATIC_METRICS | frozenset(candidates.statics),
        constraints=setting.constraints,
        examples=candidates.params[:: max(1, len(candidates.params) // EXAMPLES)],
        transfer=Transfer(setting.table.space, setting.objectives, earlier, setting.constraints) if earlier else None,
        budget_usd=setting.budget_usd,
        slots=setting.slots,
    )


def _suggester(setting: Setting, spec: StudySpec, sampler: Searches, model: SearchModel | None) -> Asked:
    """Who suggests rows of the table. `random` needs no Optuna: each row that is left has the same chance.

    There is one thread here, so that the pruner's model can be the sampler's, too.
    """
    if callable(sampler):
        return sampler(setting)
    if spec.search.chosen.sampler == "random":
        return RandomCandidate(setting.candidates, setting.seed)
    anywhere = Suggester(
        space=setting.table.space,
        directions=tuple(objective.direction for objective in setting.objectives),
        sampler=spec.search.chosen.sampler,
        seed=setting.seed,
        study_attributes={},
        model=model,
        candidates=setting.candidates.params,
        transfer=None if model is None else model.problem.transfer,
    )
    return NearestCandidate(anywhere, setting.candidates)


class _TimedSuggester:
    def __init__(self, suggester: Asked, latencies: Latencies) -> None:
        self._suggester, self._latencies = suggester, latencies

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        began = time.perf_counter()
        suggestion = self._suggester.suggest(number, history)
        self._latencies.suggest.append((number, time.perf_counter() - began))
        return suggestion


class _Watched:
    """A pruner whose decisions are timed and told."""

    def __init__(self, pruner: Pruner, latencies: Latencies, on_decision: Watches | None) -> None:
        self._pruner, self._latencies = pruner, latencies
        self._tell = on_decision or (lambda _pruner, _history, _number, _rung: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pruner, name)

    def rungs(self, epochs: int) -> tuple[int, ...]:
        return self._pruner.rungs(epochs)

    def decide(self, history: History, number: int, rung: int) -> Decision:
        began = time.perf_counter()
        decision = self._pruner.decide(history, number, rung)
        self._latencies.decide.append((len(history.trials), time.perf_counter() - began))
        self._tell(self._pruner, history, number, rung)
        return decision

    def prepare(self, history: History) -> None:
        self._pruner.prepare(history)

    def worth_least(self, history: History) -> int | None:
        return self._pruner.worth_least(history)

    def thaw(self, history: History) -> Thaw | None:
        began = time.perf_counter()
        thaw = self._pruner.thaw(history)
        self._latencies.free_slot.append((len(history.trials), time.perf_counter() - began))
        return thaw


# ---------------------------------------------------------------------- replaying


def _curve(setting: Setting, params: Mapping[str, Any], fault_rate: float) -> Curve:
    """What the table has for a configuration; its seconds are those of its own world size."""
    table, row = setting.table, setting.candidates.row_of(params)
    seen = columns(setting.objectives, setting.constraints)
    names = [column.metric for column in seen if column.metric not in CUMULATIVE_METRICS]
    values_of = [_values(table, row, name) for name in names]
    seconds = np.diff(table.seconds[row], prepend=0.0)
    return Curve(
        metrics=tuple(dict(zip(names, values, strict=True)) for values in zip(*values_of, strict=True))
        or ({},) * table.epochs,
        epoch_seconds=tuple(seconds.tolist()),
        fails_at=_faults(setting, row, fault_rate),
        start_seconds=setting.start_epochs * float(table.mean_epoch_seconds[row]),
    )


def _values(table: CurveTable, row: int, metric: str) -> list[float]:
    """A metric or a constant of one configuration after each epoch [T]."""
    if metric in table.metrics:
        values: list[float] = table.metrics[metric][row].tolist()
        return values
    return [float(table.statics[metric][row])] * table.epochs


def _faults(setting: Setting, row: int, rate: float) -> Mapping[int, tuple[int, Any]]:
    if not rate:
        return {}
    rng = np.random.default_rng(derived_seed("fault", setting.seed, row))
    # Ascending, since an attempt goes on from where the one before it was lost.
    epochs = np.sort(rng.integers(1, setting.epochs + 1, size=LOST_ATTEMPTS))
    return {
        attempt: (int(epochs[attempt - 1]), "lost") for attempt in range(1, LOST_ATTEMPTS + 1) if rng.random() < rate
    }


# ---------------------------------------------------------------------- what came of it


def _milestones(setting: Setting, record: StudyRecord, opened_at: float) -> tuple[SimulatedMilestone, ...]:
    per_second = setting.slots * setting.usd_per_slot_hour / 3600.0
    found = [
        _milestone(setting, trial, epoch, (epoch.measured_at - opened_at) * per_second)
        for trial in record.started
        for epoch in trial.epochs
        if epoch.is_milestone and is_feasible(epoch.metrics, setting.constraints)
    ]
    return tuple(sorted(found, key=lambda one: (one.spent_usd, one.trial, one.epoch)))


def _milestone(setting: Setting, trial: TrialRecord, epoch: EpochRecord, spent_usd: float) -> SimulatedMilestone:
    row = setting.candidates.row_of(trial.params)
    values, test_values = [], []
    for objective in setting.objectives:
        seen = epoch.metrics[objective.metric]
        twin = setting.table.test_metric(objective.metric)
        values.append(objective.signed(seen))
        test_values.append(
            values[-1] if twin is None else objective.signed(float(setting.table.metrics[twin][row, epoch.epoch - 1]))
        )
    return SimulatedMilestone(
        spent_usd=spent_usd,
        trial=trial.number or 0,
        row=row,
        epoch=epoch.epoch,
        values=tuple(values),
        test_values=tuple(test_values),
    )
