"""Builds policy, suggester and settings of a study from its spec and pool."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from search_spaces.space import Space
from studies.control.machine.study_setup import FREE_USD_PER_SLOT_HOUR, StudySetup
from studies.money.budget import Limits
from studies.results.extrapolation import DEFAULT_GRACE, milestones
from studies.search.model.problem import Problem
from studies.search.model.size_model import SizeModel, nothing_counted
from studies.search.model.transfer import EarlierStudy, Transfer
from studies.search.observations import TrialLimits, decision_rungs
from studies.search.policy import Policy, Pruner, PrunerContext
from studies.search.pruners.by_name import make_pruner, takes_context
from studies.search.samplers.advisor import Advisor, AdvisorProgram
from studies.search.samplers.optuna_suggester import OptunaSuggester
from studies.search.samplers.suggester import FirstTrials, Suggester
from studies.search.user_objects import SearchError
from studies.spec.sections import BudgetSpec, SearchSpec
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec
from trainers.checkpoints.locations import study_folder
from trainers.protocol import Params

NOWHERE = "/nowhere"  # checkpoint folder of a study that writes no checkpoints


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolSpec:
    """Kind, number and price of the devices (slots) on which trials train."""

    device: Literal["cpu", "cuda"]
    slots: int
    usd_per_slot_hour: float

    def at_price(self, usd_per_slot_hour: float | None) -> "PoolSpec":
        """Return these slots at another price; None keeps the price."""
        return self if usd_per_slot_hour is None else replace(self, usd_per_slot_hour=usd_per_slot_hour)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """The policy decides about running trials, the suggester proposes configurations."""

    policy: Policy
    suggester: Suggester


def assemble(
    spec: StudySpec,
    pool: PoolSpec,
    *,
    earlier: Sequence[EarlierStudy] = (),
    counted: Callable[[], SizeModel | None] = nothing_counted,
    study_attributes: Mapping[str, Any] | None = None,
    source: str = "spec",
    advisor: Advisor | None = None,
) -> Assembled:
    """Build policy and suggester of a study. Raises SpecError if the sampler or the pruner cannot be built."""
    problem = problem_of(spec, pool, earlier, counted)
    kept = functools.partial(kept_epochs, every=spec.checkpoints.every_epochs)
    return assemble_search(
        spec.search, problem, study_attributes=study_attributes, source=source, milestones_of=kept, advisor=advisor
    )


def advisor_of(spec: StudySpec, folder: Path) -> Advisor | None:
    """Return the advisor, a user's program that suggests configurations, or None."""
    if spec.search.advisor is None:
        return None
    form = spec.model_dump(mode="json", include={"space", "objectives", "constraints"})
    program = AdvisorProgram(
        spec.search.advisor.command, seconds=spec.search.advisor.seconds, folder=folder,
        about={**form, "epochs": spec.training.epochs}, metrics=[one.metric for one in spec.objective_records],
    )  # fmt: skip
    return Advisor(spec.space or Space({}), program, seed=spec.search.seed)


def kept_epochs(pruner: Pruner, epochs: int, *, every: int | None) -> tuple[int, ...]:
    """Return the epochs whose models are saved: the pruner's own, and each multiple of `every`."""
    own = milestones(epochs, getattr(pruner, "grace", DEFAULT_GRACE), pruner.rungs(epochs))
    return own if every is None else tuple(sorted({*own, *range(every, epochs, every)}))


def assemble_search(
    search: SearchSpec,
    problem: Problem,
    *,
    study_attributes: Mapping[str, Any] | None = None,
    candidates: Sequence[Params] | None = None,
    is_threaded: bool = True,
    source: str = "spec",
    milestones_of: Callable[[Pruner, int], tuple[int, ...]] | None = None,
    advisor: Advisor | None = None,
) -> Assembled:
    """Build policy and suggester, which share a learning-curve model if they need it. Raises SpecError.

    `candidates` is the finite set from which the sampler `cokriging` chooses; None: the whole space. If threaded,
    policy and suggester get separate models. With `milestones_of` None, the problem keeps its milestones.
    """
    search = search.chosen
    # Each import takes a second, which commands that only read should not pay.
    from studies.search.model.curve_model import CurveModel
    from studies.search.samplers.model_suggester import ModelSuggester

    model = functools.cache(lambda: CurveModel(problem))
    fits = search.sampler == "cokriging"
    context = PrunerContext(seed=search.seed, problem=problem, model=model, sampler_fits=fits)
    try:
        pruner = make_pruner(search.pruner.name, search.pruner.options, context)
        if milestones_of is not None and has_model(search):
            # Must come last: a pruner that uses the model has its rungs only now.
            model().count_milestones(milestones_of(pruner, problem.epochs))
        suggester: Suggester = (
            ModelSuggester(
                model().sharing_fits() if is_threaded else model(),
                seed=search.seed,
                candidates=candidates,
                advisor=advisor,
            )
            if fits
            else OptunaSuggester(
                space=problem.space,
                directions=tuple(objective.direction for objective in problem.objectives),
                sampler=search.sampler,
                seed=search.seed,
                study_attributes=study_attributes or {},
                transfer=problem.transfer,
                learns_space=search.learn_space,
            )
        )
    except SearchError as error:
        raise SpecError(source, ("search", *error.path), error.problem) from None
    if search.first_trials:
        suggester = FirstTrials(search.first_trials, space=problem.space, seed=search.seed, sampler=suggester)
    return Assembled(policy=Policy(pruner=pruner), suggester=suggester)


def has_model(search: SearchSpec) -> bool:
    """Return whether the sampler or the pruner uses the learning-curve model."""
    search = search.chosen
    return search.sampler == "cokriging" or takes_context(search.pruner.name)


def watched_epochs(search: SearchSpec, epochs: int) -> tuple[int, ...]:
    """Return the epochs that the learning-curve model reads, besides epochs with a saved model."""
    if not has_model(search):
        return ()
    rungs = decision_rungs(epochs)
    return (rungs[0] - 1, *rungs) if rungs[0] > 1 else rungs


def problem_of(
    spec: StudySpec,
    pool: PoolSpec,
    earlier: Sequence[EarlierStudy] = (),
    counted: Callable[[], SizeModel | None] = nothing_counted,
) -> Problem:
    """Return the search problem for `cokriging` and `break_even`; arguments as in `assemble`."""
    given = spec.reference_point
    epochs = spec.training.epochs
    space = spec.space or Space({})
    return Problem(
        space=space,
        objectives=spec.objective_records,
        constraints=spec.constraint_records,
        epochs=epochs,
        milestones=milestones(epochs, rungs=decision_rungs(epochs)),
        usd_per_slot_hour=pool.usd_per_slot_hour or FREE_USD_PER_SLOT_HOUR,
        reference=tuple(o.signed(float(given[o.metric])) for o in spec.objective_records)
        if isinstance(given, dict)
        else None,
        transfer=Transfer(space, spec.objective_records, earlier, spec.constraint_records) if earlier else None,
        counted=counted,
        budget_usd=_budget_usd(spec, pool),
        slots=pool.slots,
        trial_limits=_trial_limits(spec.budget, pool),
    )


def _trial_limits(budget: BudgetSpec, pool: PoolSpec) -> TrialLimits:
    usd, hours = budget.usd_per_trial if pool.usd_per_slot_hour else None, budget.hours_per_trial
    return TrialLimits(usd=math.inf if usd is None else usd, seconds=math.inf if hours is None else 3600.0 * hours)


def _budget_usd(spec: StudySpec, pool: PoolSpec) -> float:
    price, budget = pool.usd_per_slot_hour, spec.budget
    usd = math.inf if budget.usd is None or not price else float(budget.usd)
    hours = math.inf if budget.hours is None else float(budget.hours)
    return min(usd, hours * pool.slots * (price or FREE_USD_PER_SLOT_HOUR))


def _searched_world_sizes(space: Space | None, slots: int) -> tuple[int, ...] | None:
    if space is None or "world_size" not in space:
        return None
    parameter = space.parameter("world_size")
    return tuple(size for size in range(1, slots + 1) if parameter.contains(size))


def checkpoint_folder(spec: StudySpec, base_folder: Path, uid: str) -> str:
    """Return the path or URL of a study's checkpoint folder."""
    return study_folder(spec.checkpoints.folder, base_folder, spec.study, uid)


def setup_of(
    spec: StudySpec,
    pool: PoolSpec,
    policy: Policy,
    base_folder: Path,
    reference: dict[str, float] | None,
    *,
    folder: str = NOWHERE,
) -> StudySetup:
    """Return the settings for a study's state machine."""
    epochs = spec.training.epochs
    return StudySetup(
        study=spec.study,
        objectives=spec.objective_records,
        constraints=spec.constraint_records,
        task=spec.task,
        has_start_in_epoch=spec.is_command,
        task_options=dict(spec.task_options),
        training=spec.training.model_dump(),
        epochs=epochs,
        milestones=kept_epochs(policy.pruner, epochs, every=spec.checkpoints.every_epochs),
        policy=policy,
        limits=Limits(**spec.budget.model_dump()),
        slots=pool.slots,
        usd_per_slot_hour=pool.usd_per_slot_hour,
        seed=spec.search.seed,
        device=pool.device,
        cpus_per_rank=spec.resources.cpus_per_rank,
        checkpoint_folder=folder,
        checkpoint_every_seconds=spec.checkpoints.every_seconds,
        most_paused=spec.checkpoints.most_paused,
        most_checkpoint_gib=spec.checkpoints.max_gib,
        faults=spec.faults,
        on_lost_node=spec.resources.on_lost_node,
        space=spec.space,
        world_sizes=_searched_world_sizes(spec.space, pool.slots),
        autoscale=spec.resources.autoscale,
        learns_space=spec.search.learn_space,
        baselines=tuple(one.params for one in spec.baselines or () if one.params),
        python_path=(str(base_folder),),
        reference_point=reference,
        watched=watched_epochs(spec.search, epochs),
    )
