"""Tools that start, spend and stop; what spends takes a budget, and says first what it expects to cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from automl.mcp_server.answers import ToolProblem
from automl.mcp_server.backend import Backend
from automl.mcp_server.reading_tools import OfStudy, in_thread, short_job
from automl.mcp_server.spending import CONSENT, Usd, is_agreed, lacks_consent
from automl.mcp_server.tool import Arguments as _Arguments
from automl.mcp_server.tool import ServedTool
from studies.spec.errors import SpecError
from studies.spec.yaml_reader import read_yaml

_LONGEST_SPEC = 200_000
_PLAN = ("study", "slots", "price", "rungs", "first_params", "expected_cost")


class Launch(_Arguments):
    """A study, and its money."""

    spec: dict[str, Any] | Annotated[str, Field(max_length=_LONGEST_SPEC)] = Field(
        description="The spec of the study, as a mapping or as YAML: task, objectives, space, training, budget."
    )
    budget_usd: Usd | None = Field(
        None, description="Dollars that the study may cost; budget.usd of the spec without it."
    )
    confirm_cost_usd: Usd | None = Field(None, description=CONSENT)
    code: str | None = Field(None, max_length=100, description="Name of the operator's code folder with the task.")
    priority: int = Field(0, ge=-100, le=100, description="Jobs of a higher priority go first.")


class Resume(OfStudy):
    """A study that goes on."""

    budget_usd: Usd | None = Field(None, description="Dollars that the study may cost in all; None leaves its budget.")
    trials: Annotated[int, Field(ge=1, le=10**6)] | None = Field(None, description="Trials in all; None leaves them.")
    confirm_cost_usd: Usd | None = Field(None, description=CONSENT)


class Confirm(OfStudy):
    """Models that are trained again."""

    points: list[Annotated[str, Field(min_length=1, max_length=40)]] = Field(
        default_factory=list,
        max_length=20,
        description="2@6, 2, best, cheapest or knee; none takes the recommended model and its neighbours.",
    )
    seeds: int = Field(3, ge=1, le=20, description="Trainings of each.")
    budget_usd: Usd = Field(description="Dollars that the trainings may cost, beside the study's own budget.")
    confirm_cost_usd: Usd | None = Field(None, description=CONSENT)


async def launch(backend: Backend, given: Launch) -> Mapping[str, Any]:
    """Queue a study on a budget."""
    spec, budget = _with_budget(_mapping(given.spec), given.budget_usd)
    plan = await in_thread(lambda: backend.check(spec, given.code))
    expected = {name: plan[name] for name in _PLAN} | {"accounts": await in_thread(backend.accounts)}
    if not is_agreed(budget, given.confirm_cost_usd):
        return lacks_consent("launch", budget, given.confirm_cost_usd, expected)
    job = await in_thread(lambda: backend.submit(spec, given.code, given.priority))
    return {"started": True, "job": short_job(job), "expected_cost": plan["expected_cost"], "next": "call watch"}


async def resume(backend: Backend, given: Resume) -> Mapping[str, Any]:
    """Queue a study again, with more budget if it is given."""
    job = (await in_thread(lambda: backend.status(given.study)))["job"]
    limit = job["limit_usd"] if given.budget_usd is None else given.budget_usd
    if limit is None:
        raise ToolProblem(f"{job['study']} has no budget in dollars", "call resume with budget_usd")
    left = max(limit - job["spent_usd"], 0.0)
    overrides = [] if given.budget_usd is None else [f"budget.usd={given.budget_usd!r}"]
    overrides += [] if given.trials is None else [f"budget.trials={given.trials}"]
    if left == 0:
        spent = f"{job['study']} has spent {job['spent_usd']:g} of its {limit:g} dollars"
        raise ToolProblem(spent, "call resume with a larger budget_usd: it counts from the study's begin")
    if not is_agreed(left, given.confirm_cost_usd):
        expected = {"study": job["study"], "expected_cost": f"at most ${left:.4g}, what its budget leaves"}
        return lacks_consent("resume", left, given.confirm_cost_usd, expected)
    job = await in_thread(lambda: backend.resume(given.study, overrides))
    return {"started": True, "job": short_job(job), "next": "call watch"}


async def stop(backend: Backend, given: OfStudy) -> Mapping[str, Any]:
    """Let a study drain."""
    job = await in_thread(lambda: backend.stop(given.study))
    return {"job": short_job(job), "next": "call watch until it has ended; resume goes on with it"}


async def confirm(backend: Backend, given: Confirm) -> Mapping[str, Any]:
    """Train models of a study again, with money of their own."""
    plan = await in_thread(lambda: backend.check_confirm(given.study, given.points, given.seeds))
    if not is_agreed(given.budget_usd, given.confirm_cost_usd):
        accounts = await in_thread(backend.accounts)
        return lacks_consent("confirm", given.budget_usd, given.confirm_cost_usd, plan | {"accounts": accounts})
    job = await in_thread(lambda: backend.confirm(given.study, given.points, given.seeds, given.budget_usd))
    step = f"call watch with study={job['study']!r} until it has ended, then recommendation of {plan['study']}"
    return {"started": True, "job": short_job(job), "expected_usd": plan["expected_usd"], "next": step}


def _mapping(spec: dict[str, Any] | str) -> dict[str, Any]:
    read = read_yaml(spec, source="spec") if isinstance(spec, str) else spec
    if not isinstance(read, dict):
        raise SpecError("spec", (), "found YAML that is no mapping, allowed: a spec")
    return {str(name): value for name, value in read.items()}


def _with_budget(spec: dict[str, Any], budget_usd: float | None) -> tuple[dict[str, Any], float]:
    """Return a spec with a budget in dollars, and that budget."""
    budget = spec.get("budget")
    if budget is not None and not isinstance(budget, dict):
        raise SpecError("spec", ("budget",), "found no mapping, allowed: limits such as {usd: 5}")
    named = None if budget is None else budget.get("usd")
    usd = named if budget_usd is None else budget_usd
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not usd > 0:
        raise ToolProblem(
            "budget: found none in dollars", "call launch with budget_usd, or with budget.usd in the spec"
        )
    if budget_usd is not None and named is not None and named != budget_usd:
        raise ToolProblem(
            f"budget: found budget_usd={budget_usd:g} and budget.usd={named} in the spec", "give one of them"
        )
    return spec | {"budget": {**(budget or {}), "usd": usd}}, float(usd)


TOOLS = (
    ServedTool(
        name="launch", arguments=Launch, run=launch, changes=True,
        description="Queue a study on a budget in dollars, which it never passes. Call it first without "
        "confirm_cost_usd: it checks the spec, says what the study may cost, and spends nothing.",
    ),
    ServedTool(
        name="resume", arguments=Resume, run=resume, changes=True,
        description="Queue a study again that has ended, with a larger budget if you give one.",
    ),
    ServedTool(
        name="stop", arguments=OfStudy, run=stop, changes=True,
        description="Let a study drain: nothing that was trained is lost, and resume goes on.",
    ),
    ServedTool(
        name="confirm", arguments=Confirm, run=confirm, changes=True,
        description="Train models of a study that has ended again, with fresh seeds, to learn what they are worth on "
        "data that the search never saw. It has a budget of its own.",
    ),
)  # fmt: skip
