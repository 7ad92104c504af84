"""Simulates studies on recorded learning curves in virtual time, with the real controller, search and budget.

Only training is replayed, from a table. The search sees validation metrics; its models are scored on test metrics.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from search_spaces.drawing import derived_seed
from studies.control.assembly import PoolSpec, assemble_search, problem_of, setup_of
from studies.control.controller import Controller
from studies.control.machine.state import StudyMachine
from studies.control.machine.study_setup import StudySetup
from studies.gangs.simulated import Curve, SimulatedPool
from studies.records.records import (
    FINISH,
    SIMULATED_TASK,
    STATIC_METRICS,
    Constraint,
    EpochRecord,
    Objective,
    ResumeState,
    StudyRecord,
    TrialRecord,
)
from studies.results.constraints import columns, is_feasible
from studies.search.model.curve_model import EXAMPLES
from studies.search.model.problem import Problem
from studies.search.model.transfer import EarlierStudy
from studies.search.policy import Policy
from studies.search.samplers.advisor import Advisor
from studies.search.samplers.suggester import Suggester
from studies.simulation.recorded_curves import CurveTable
from studies.simulation.recording import (
    Latencies,
    MemoryRecording,
    StoreRecording,
    TimedPruner,
    TimedSuggester,
    recorded_spec,
)
from studies.simulation.setting import (
    START_EPOCHS,
    AdviceChoice,
    Candidates,
    DecisionListener,
    NearestCandidate,
    PrunerChoice,
    RandomCandidate,
    SamplerChoice,
    Setting,
    check_constraints,
    check_objectives,
    shared_milestones,
)
from studies.spec.sections import MOST, FaultsSpec
from studies.spec.study_spec import StudySpec, parse_spec
from studies.storage.study_store import Store
from trainers.protocol import CUMULATIVE_METRICS


def spec_of(setting: Setting, study: str, sampler: SamplerChoice, pruner: PrunerChoice) -> StudySpec:
    """Return the spec to record. Raises SpecError for an unknown sampler, pruner or option."""
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
            "budget": {
                "usd": setting.budget_usd,
                "hours": None,
                "trials": len(setting.table),
                "finish": setting.finish,
            },
            "resources": {"slots": setting.slots, "price_per_slot_hour": setting.usd_per_slot_hour},
            "mlflow": "off",
        },
        "simulate",
    )


def wired(
    setting: Setting,
    spec: StudySpec,
    *,
    sampler: SamplerChoice,
    pruner: PrunerChoice,
    earlier: Sequence[EarlierStudy],
    latencies: Latencies,
    on_decision: DecisionListener | None,
    advice: AdviceChoice | None = None,
) -> tuple[StudySetup, Suggester]:
    """Return a simulated study's settings and suggester. Raises SpecError if a part cannot be built."""
    pool = PoolSpec(device="cpu", slots=setting.slots, usd_per_slot_hour=setting.usd_per_slot_hour)
    candidates = setting.candidates
    assembled = assemble_search(
        spec.search,
        _problem(setting, spec, pool, earlier),
        candidates=candidates.params,
        is_threaded=False,
        source="simulate",
        advisor=advice and Advisor(setting.table.space, advice(setting), seed=setting.seed, background=False),
    )
    chosen = pruner(setting) if callable(pruner) else assembled.policy.pruner
    suggester: Suggester
    if callable(sampler):
        suggester = sampler(setting)
    elif spec.search.chosen.sampler == "random":  # every remaining row has the same probability
        suggester = RandomCandidate(candidates, setting.seed)
    else:
        suggester = NearestCandidate(assembled.suggester, candidates)
    policy = Policy(pruner=TimedPruner(chosen, latencies, on_decision))
    return _setup(setting, spec, pool, policy), TimedSuggester(suggester, latencies)


def _problem(setting: Setting, spec: StudySpec, pool: PoolSpec, earlier: Sequence[EarlierStudy]) -> Problem:
    """Return the search's problem, with the table's constants as known metrics."""
    candidates = setting.candidates
    return replace(
        problem_of(spec, pool, earlier),
        milestones=shared_milestones(setting.epochs),
        known=lambda params: {
            name: float(values[candidates.row_of(params)]) for name, values in candidates.statics.items()
        },
        positive=frozenset(name for name, values in candidates.statics.items() if (values > 0).all()),
        statics=STATIC_METRICS | frozenset(candidates.statics),
        examples=candidates.params[:: max(1, len(candidates.params) // EXAMPLES)],
    )


def _setup(setting: Setting, spec: StudySpec, pool: PoolSpec, policy: Policy) -> StudySetup:
    """Return the study's settings, without a limit for silent trials, since simulated epochs may be long."""
    return replace(
        setup_of(spec, pool, policy, Path("/nowhere"), None),
        # A trial that pauses needs a checkpoint at its rung.
        milestones=tuple(sorted({*shared_milestones(setting.epochs), *policy.pruner.rungs(setting.epochs)})),
        faults=FaultsSpec(start_seconds=MOST, silence_seconds=MOST),
        cut_seconds=0.0,
        watched=tuple(range(1, setting.epochs + 1)),
    )


LOST_ATTEMPTS = 2  # largest number of faults of a configuration, since a third lost attempt would fail its trial


def _curve(setting: Setting, params: Mapping[str, Any], fault_rate: float) -> Curve:
    table, row = setting.table, setting.candidates.row_of(params)
    seen = columns(setting.objectives, setting.constraints)
    names = [column.metric for column in seen if column.metric not in CUMULATIVE_METRICS]
    values_of = [
        table.metrics[name][row].tolist() if name in table.metrics else [float(table.statics[name][row])] * table.epochs
        for name in names
    ]
    seconds = np.diff(table.seconds[row], prepend=0.0)
    return Curve(
        metrics=tuple(dict(zip(names, values, strict=True)) for values in zip(*values_of, strict=True))
        or ({},) * table.epochs,
        epoch_seconds=tuple(seconds.tolist()),
        fails_at=_faults(setting, row, fault_rate),
        start_seconds=setting.start_epochs * float(table.mean_epoch_seconds[row]),
    )


def _faults(setting: Setting, row: int, rate: float) -> Mapping[int, tuple[int, Any]]:
    """Return the epoch and kind of each fault by attempt."""
    if not rate:
        return {}
    rng = np.random.default_rng(derived_seed("fault", setting.seed, row))
    # Ascending, since each attempt continues from where the last one was lost.
    epochs = np.sort(rng.integers(1, setting.epochs + 1, size=LOST_ATTEMPTS))
    return {
        attempt: (int(epochs[attempt - 1]), "lost") for attempt in range(1, LOST_ATTEMPTS + 1) if rng.random() < rate
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedMilestone:
    """A feasible saved model of a simulated study."""

    spent_usd: float  # cost of the study when the model was measured, including idle slots
    trial: int
    row: int
    epoch: int  # from 1
    values: tuple[float, ...]  # objectives as the search saw them, signed so that smaller is better
    test_values: tuple[float, ...]  # as `values`, with test metrics where there are any; may contain NaN


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStudy:
    """Results of a simulated study."""

    record: StudyRecord
    objectives: tuple[Objective, ...]
    seed: int
    budget_usd: float
    milestones: tuple[SimulatedMilestone, ...]  # feasible ones in the order of `spent_usd`
    latencies: Latencies  # real seconds that the search took
    wall_seconds: float  # virtual seconds from opening to closing the pool
    real_seconds: float  # real seconds that the simulation took


def simulate(
    table: CurveTable,
    *,
    objectives: Sequence[Objective],
    slots: int,
    budget_full_trials: float,
    seed: int = 0,
    sampler: SamplerChoice = "auto",
    pruner: PrunerChoice = "auto",
    usd_per_slot_hour: float = 1.0,
    start_epochs: float = START_EPOCHS,
    finish: float = FINISH,
    fault_rate: float = 0.0,
    constraints: Sequence[Constraint] = (),
    earlier: Sequence[EarlierStudy] = (),
    store: Store | None = None,
    study: str = "simulated",
    on_decision: DecisionListener | None = None,
    advice: AdviceChoice | None = None,
) -> SimulatedStudy:
    """Simulate one study on a table's learning curves. Raises CurvesError or SpecError for unusable arguments.

    Args:
        table: Recorded curves. A configuration's `world_size`, if any, is its number of slots.
        objectives: Validation metrics, constants of the table, `cost_usd` or `wall_seconds`.
        start_epochs: Cost of starting or resuming a trial, in mean epochs of its configuration.
        fault_rate: Probability of a fault in each of a trial's first two attempts, at a random epoch of the full
            training; an attempt that ends earlier has no fault.
        constraints: Bounds on possible objectives; models that violate them do not count.
        advice: Source of an advisor's proposals, for the sampler `cokriging`.
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
        finish=finish,
        seed=seed,
        constraints=tuple(constraints),
        record=lambda: recording.record(),  # noqa: PLW0108 - `recording` is made later, from this setting
    )
    spec, latencies = spec_of(setting, study, sampler, pruner), Latencies()
    recording: MemoryRecording | StoreRecording = (
        MemoryRecording(study, recorded_spec(spec)) if store is None else StoreRecording(store, spec)
    )
    pool = SimulatedPool(lambda params, _world_size: _curve(setting, params, fault_rate), opened_at=recording.opened_at)
    try:
        setup, suggester = wired(
            setting, spec, sampler=sampler, pruner=pruner, earlier=earlier, latencies=latencies,
            on_decision=on_decision, advice=advice,
        )  # fmt: skip
        machine = StudyMachine(setup, ResumeState(), alive_since=recording.opened_at, pick=pool.pick, worn=pool.worn)
        Controller(
            machine=machine,
            pool=pool,
            store=recording.rows,
            suggester=suggester,
            study_id=recording.study_id,
            lease_token=recording.lease_token,
            background=False,
            tick_seconds=0.5 * float(table.mean_epoch_seconds.mean()),
        ).run()
    finally:
        recording.close(pool.now())
    record = recording.record()
    return SimulatedStudy(
        record=record,
        objectives=setting.objectives,
        seed=seed,
        budget_usd=setting.budget_usd,
        milestones=_milestones(setting, record, recording.opened_at),
        latencies=latencies,
        wall_seconds=pool.now() - recording.opened_at,
        real_seconds=time.perf_counter() - began,
    )


def _milestones(setting: Setting, record: StudyRecord, opened_at: float) -> tuple[SimulatedMilestone, ...]:
    per_second = setting.slots * setting.usd_per_slot_hour / 3600.0
    scored = {*shared_milestones(setting.epochs)}
    feasible = [
        _milestone(setting, trial, epoch, (epoch.measured_at - opened_at) * per_second)
        for trial in record.started
        for epoch in trial.epochs
        if epoch.epoch in scored and is_feasible(epoch.metrics, setting.constraints)
    ]
    return tuple(sorted(feasible, key=lambda one: (one.spent_usd, one.trial, one.epoch)))


def _milestone(setting: Setting, trial: TrialRecord, epoch: EpochRecord, spent_usd: float) -> SimulatedMilestone:
    row = setting.candidates.row_of(trial.params)
    values, test_values = [], []
    for objective in setting.objectives:
        value = objective.signed(epoch.metrics[objective.metric])
        test_metric = setting.table.test_metric(objective.metric)
        values.append(value)
        test_values.append(
            value
            if test_metric is None
            else objective.signed(float(setting.table.metrics[test_metric][row, epoch.epoch - 1]))
        )
    return SimulatedMilestone(
        spent_usd=spent_usd,
        trial=trial.number or 0,
        row=row,
        epoch=epoch.epoch,
        values=tuple(values),
        test_values=tuple(test_values),
    )
