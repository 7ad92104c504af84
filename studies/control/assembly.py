"""Wires a study together: from a spec, and the slots that there are, to a policy, a suggester and settings.

Launching, adapters and simulation all go through here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from search_spaces.space import Space
from studies.control.setup import FREE_USD_PER_SLOT_HOUR, StudySetup
from studies.milestones import DEFAULT_GRACE, milestones
from studies.money.budget import Limits
from studies.search.model.cokriging import decision_rungs
from studies.search.model.search_model import Problem, SearchModel
from studies.search.model.size_model import SizeModel, nothing_counted
from studies.search.model.transfer import EarlierStudy, Transfer
from studies.search.policy import Policy, Pruner
from studies.search.pruners.break_even import BreakEven
from studies.search.pruners.median import Median
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner
from studies.search.samplers.suggester import Suggester
from studies.spec.sections import SearchSpec
from studies.spec.study_spec import StudySpec


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolSpec:
    """Where trials train: a slot is one device of this kind at this price."""

    device: Literal["cpu", "cuda"]
    slots: int
    usd_per_slot_hour: float


def policy_of(search: SearchSpec, problem: Problem) -> Policy:
    """The policy that a spec names.

    Args:
        search: Section of the spec.
        problem: What our own search has to know.
    """
    search = search.chosen
    pruner, model = search.pruner, SearchModel(problem)
    fits_elsewhere = search.sampler == "cokriging"
    chosen: Pruner
    match pruner.name:
        case "none":
            chosen = NoPruner()
        case "break_even":
            chosen = BreakEven(model, seed=search.seed, refits=not fits_elsewhere)
        case "median":
            chosen = Median(grace=pruner.grace, startup_trials=pruner.startup_trials, combine=pruner.combine)
        case _:
            chosen = MoAsha(variant=pruner.variant, grace=pruner.grace, eta=pruner.eta)
    return Policy(pruner=chosen, model=model)


def has_model(search: SearchSpec) -> bool:
    """Whether a spec names the sampler `cokriging` or the pruner `break_even`, which look at the search model."""
    search = search.chosen
    return search.sampler == "cokriging" or search.pruner.name == "break_even"


def watched_epochs(search: SearchSpec, epochs: int) -> tuple[int, ...]:
    """Epochs whose values the model of `cokriging` and `break_even` looks at, beside milestones."""
    if not has_model(search):
        return ()
    rungs = decision_rungs(epochs)
    return (rungs[0] - 1, *rungs) if rungs[0] > 1 else rungs


def problem_of(
    spec: StudySpec,
    place: PoolSpec,
    earlier: Sequence[EarlierStudy] = (),
    counted: Callable[[], SizeModel | None] = nothing_counted,
) -> Problem:
    """What the model of `cokriging` and `break_even` has to know."""
    given = spec.reference_point
    epochs = spec.training.epochs
    return Problem(
        space=spec.space or Space({}),
        objectives=spec.objective_records,
        constraints=spec.constraint_records,
        epochs=epochs,
        milestones=milestones(epochs, rungs=decision_rungs(epochs)),
        usd_per_slot_hour=place.usd_per_slot_hour or FREE_USD_PER_SLOT_HOUR,
        reference=tuple(o.signed(float(given[o.metric])) for o in spec.objective_records)
        if isinstance(given, dict)
        else None,
        transfer=Transfer(spec.space or Space({}), spec.objective_records, earlier, spec.constraint_records)
        if earlier
        else None,
        counted=counted,
        budget_usd=_budget_usd(spec, place),
        slots=place.slots,
    )


def _budget_usd(spec: StudySpec, place: PoolSpec) -> float:
    """What the pool may cost; hours limit that as well, and are all that limits a pool without a price."""
    price, budget = place.usd_per_slot_hour, spec.budget
    usd = math.inf if budget.usd is None or not price else float(budget.usd)
    hours = math.inf if budget.hours is None else float(budget.hours)
    return min(usd, hours * place.slots * (price or FREE_USD_PER_SLOT_HOUR))


def setup_of(
    spec: StudySpec,
    place: PoolSpec,
    base_folder: Path,
    reference: dict[str, float] | None,
    earlier: Sequence[EarlierStudy] = (),
    *,
    counted: Callable[[], SizeModel | None] = nothing_counted,
) -> StudySetup:
    """A spec, on slots, as the state machine wants it."""
    search, epochs = spec.search.chosen, spec.training.epochs
    policy = policy_of(search, problem_of(spec, place, earlier, counted))
    grace = search.pruner.grace if search.pruner.name in {"mo_asha", "median"} else DEFAULT_GRACE
    budget = spec.budget
    return StudySetup(
        study=spec.study,
        objectives=spec.objective_records,
        constraints=spec.constraint_records,
        task=spec.task,
        task_options=dict(spec.task_options),
        training=spec.training.model_dump(),
        epochs=epochs,
        milestones=milestones(epochs, grace, policy.pruner.rungs(epochs)),
        policy=policy,
        limits=Limits(
            usd=budget.usd,
            hours=budget.hours,
            trials=budget.trials,
            usd_per_trial=budget.usd_per_trial,
            hours_per_trial=budget.hours_per_trial,
            least_percent_per_10_usd=budget.least_percent_per_10_usd,
        ),
        slots=place.slots,
        usd_per_slot_hour=place.usd_per_slot_hour,
        seed=spec.search.seed,
        device=place.device,
        cpus_per_rank=spec.resources.cpus_per_rank,
        checkpoint_folder=str((base_folder / spec.checkpoints.folder).absolute() / spec.study),
        checkpoint_every_seconds=spec.checkpoints.every_seconds,
        most_paused=spec.checkpoints.most_paused,
        python_path=(str(base_folder),),
        reference_point=reference,
        watched=watched_epochs(search, epochs),
    )


def suggester_of(spec: StudySpec, policy: Policy, study_attributes: Mapping[str, Any] | None = None) -> Suggester:
    """Who is asked for parameters.

    Args:
        spec: With its space filled in.
        policy: Made from the same spec; its model gets a twin, since a thread of its own prepares suggestions.
        study_attributes: Optuna's system attributes of the study as they were stored.

    Raises:
        SamplerError: The sampler cannot be made.
    """
    return Suggester(
        space=spec.space or Space({}),
        directions=tuple(objective.direction for objective in spec.objectives),
        sampler=spec.search.chosen.sampler,
        seed=spec.search.seed,
        study_attributes=study_attributes or {},
        model=None if policy.model is None else policy.model.twin(),
        transfer=None if policy.model is None else policy.model.problem.transfer,
    )
