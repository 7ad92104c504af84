"""Assembly of a simulated study, with the exceptions that recorded curves need."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from studies.control.assembly import PoolSpec, assemble_search, problem_of, setup_of
from studies.control.machine.study_setup import StudySetup
from studies.records.records import SIMULATED_TASK, STATIC_METRICS
from studies.search.model.curve_model import EXAMPLES
from studies.search.model.earlier_study import EarlierStudy
from studies.search.model.problem import Problem
from studies.search.policy import Policy
from studies.search.samplers.advisor import Advisor
from studies.search.samplers.suggester import Suggester
from studies.simulation.candidates import NearestCandidate, RandomCandidate
from studies.simulation.recording import Latencies, TimedPruner, TimedSuggester
from studies.simulation.setting import (
    AdviceChoice,
    DecisionListener,
    PrunerChoice,
    SamplerChoice,
    Setting,
    shared_milestones,
)
from studies.spec.sections import MOST, FaultsSpec
from studies.spec.study_spec import StudySpec, parse_spec


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedParts:
    """Parts that drive a simulated study; decisions of the policy in `setup` and of `suggester` are timed."""

    setup: StudySetup
    suggester: Suggester


def spec_of(setting: Setting, study: str, sampler: SamplerChoice, pruner: PrunerChoice) -> StudySpec:
    """Return the spec for the record of the study. Raises SpecError for an unknown sampler, pruner or option."""
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
) -> SimulatedParts:
    """Return a simulated study's parts, with one model for its single thread; SpecError if they cannot be made."""
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
    return SimulatedParts(
        setup=_setup(setting, spec, pool, Policy(pruner=TimedPruner(chosen, latencies, on_decision))),
        suggester=TimedSuggester(suggester, latencies),
    )


def _problem(setting: Setting, spec: StudySpec, pool: PoolSpec, earlier: Sequence[EarlierStudy]) -> Problem:
    """Return the problem with the table's constants, such as parameter counts, which are known before training."""
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
    """Return the settings with an endless watchdog: no simulated gang hangs, however uneven its epochs are."""
    return replace(
        setup_of(spec, pool, policy, Path("/nowhere"), None),
        # A trial that pauses needs a checkpoint at its rung.
        milestones=tuple(sorted({*shared_milestones(setting.epochs), *policy.pruner.rungs(setting.epochs)})),
        faults=FaultsSpec(start_seconds=MOST, silence_seconds=MOST),
        cut_seconds=0.0,
        watched=tuple(range(1, setting.epochs + 1)),
    )
