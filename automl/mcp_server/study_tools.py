"""Tools that read, start and stop studies. Without consent to spend, they return the expected cost."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import anyio
import anyio.to_thread
from pydantic import Field

from automl.mcp_server.tool import Acting, Consent, StudyName, ToolProblem, Usd, is_agreed, lacks_consent
from automl.service.limits import SPEC_CHARS, spec_within
from studies.queueing.jobs import ENDED, OVER
from studies.spec.spec_errors import SpecError

LOOK_SECONDS = 1.0
_PLAN = ("study", "slots", "price", "rungs", "first_params", "expected_cost")
_NEXT_BY_STATE: Mapping[str, str] = {
    "queued": "call watch until a worker takes it; `reason` says why it waits",
    "running": "call watch until it ends, or stop to let it drain",
    "done": "call recommendation",
    "stopped": "call resume to continue, or recommendation",
    "failed": "read the reason; remove the cause, then call resume, or launch another spec",
    "cancelled": "call recommendation for its results",
    "deleted": "nothing; if the deletion was interrupted, a person has to delete the study again",
}
_SHORT = ("state", "stop_reason", "error", "trials", "running", "cost_usd", "budget", "hypervolume")
_TrialNumber = Annotated[int, Field(ge=0, le=10**9)]
_Point = Annotated[str, Field(min_length=1, max_length=40)]


def launch(
    backend: Acting,
    *,
    spec: Annotated[
        dict[str, Any] | Annotated[str, Field(max_length=SPEC_CHARS)],
        Field(description="The spec of the study, as a mapping or as YAML: task, objectives, space, training, budget."),
    ],
    budget_usd: Annotated[
        Usd | None, Field(description="Most dollars for the study; by default budget.usd of the spec.")
    ] = None,
    confirm_cost_usd: Consent = None,
    code: Annotated[
        str | None, Field(max_length=100, description="Name of the operator's code folder with the task.")
    ] = None,
    priority: Annotated[int, Field(ge=-100, le=100, description="Jobs of higher priority start first.")] = 0,
) -> Mapping[str, Any]:
    """Queue a study on a budget in dollars, which it never exceeds.

    First call this tool without confirm_cost_usd: it checks the spec, returns the expected cost, and spends nothing.
    """
    mapping, budget = _with_budget(spec_within(spec, "spec"), budget_usd)
    plan = backend.check(mapping, code)
    expected = {name: plan[name] for name in _PLAN} | {"accounts": backend.accounts()}
    if not is_agreed(budget, confirm_cost_usd):
        return lacks_consent("launch", budget, confirm_cost_usd, expected)
    job = backend.submit(mapping, code, priority)
    return {"started": True, "job": _short_job(job), "expected_cost": plan["expected_cost"], "next": "call watch"}


def resume(
    backend: Acting,
    *,
    study: StudyName,
    budget_usd: Annotated[
        Usd | None, Field(description="Most dollars for the study in all; null leaves its budget.")
    ] = None,
    trials: Annotated[
        Annotated[int, Field(ge=1, le=10**6)] | None, Field(description="Most trials in all; null leaves the limit.")
    ] = None,
    confirm_cost_usd: Consent = None,
) -> Mapping[str, Any]:
    """Queue an ended study again, optionally with a larger budget."""
    job = backend.status(study)["job"]
    limit = job["limit_usd"] if budget_usd is None else budget_usd
    if limit is None:
        raise ToolProblem(f"{job['study']} has no budget in dollars", "call resume with budget_usd")
    left = max(limit - job["spent_usd"], 0.0)
    overrides = [] if budget_usd is None else [f"budget.usd={budget_usd!r}"]
    overrides += [] if trials is None else [f"budget.trials={trials}"]
    if left == 0:
        spent = f"{job['study']} has spent {job['spent_usd']:g} of its {limit:g} dollars"
        raise ToolProblem(spent, "call resume with a larger budget_usd, which includes the dollars spent so far")
    if not is_agreed(left, confirm_cost_usd):
        expected = {"study": job["study"], "expected_cost": f"at most ${left:.4g}, the rest of its budget"}
        return lacks_consent("resume", left, confirm_cost_usd, expected)
    return {"started": True, "job": _short_job(backend.resume(study, overrides)), "next": "call watch"}


def stop(backend: Acting, study: StudyName) -> Mapping[str, Any]:
    """Stop a study with checkpoints. Nothing is lost, and `resume` continues it."""
    return {"job": _short_job(backend.stop(study)), "next": "call watch until it has ended; resume continues it"}


def confirm(
    backend: Acting,
    *,
    study: StudyName,
    budget_usd: Annotated[Usd, Field(description="Most dollars for the trainings, on top of the study's own budget.")],
    points: Annotated[
        Sequence[_Point],
        Field(
            max_length=20,
            description="2@6, 2, best, cheapest or knee; empty: the recommended model and its neighbours.",
        ),
    ] = (),
    seeds: Annotated[int, Field(ge=1, le=20, description="Trainings of each model.")] = 3,
    confirm_cost_usd: Consent = None,
) -> Mapping[str, Any]:
    """Train models of an ended study again, with new seeds, on a budget of their own.

    This measures the models on data that the search never used.
    """
    plan = backend.check_confirm(study, points, seeds)
    if not is_agreed(budget_usd, confirm_cost_usd):
        return lacks_consent("confirm", budget_usd, confirm_cost_usd, plan | {"accounts": backend.accounts()})
    job = backend.confirm(study, points, seeds, budget_usd)
    step = f"call watch with study={job['study']!r} until it has ended, then recommendation of {plan['study']}"
    return {"started": True, "job": _short_job(job), "expected_usd": plan["expected_usd"], "next": step}


def enqueue(
    backend: Acting,
    *,
    study: StudyName,
    params: Annotated[
        dict[str, Any], Field(description="Parameters by name; those that you leave out are drawn at random.")
    ],
) -> Mapping[str, Any]:
    """Train a trial with these parameters next, within the study's budget."""
    queued = backend.enqueue(study, params)
    return {**queued, "next": queued["waits"] or "call watch: the next free slot takes it"}


def list_studies(backend: Acting) -> Mapping[str, Any]:
    """List studies and other jobs, newest first, and the spending limits that apply to you."""
    return {"studies": [_short_job(job) for job in reversed(backend.jobs())], "accounts": backend.accounts()}


def status(backend: Acting, study: StudyName) -> Mapping[str, Any]:
    """Return a study's state, money, best models and recommended model."""
    found = backend.status(study)
    return {**found, "next": _NEXT_BY_STATE[found["job"]["state"]]}


async def watch(
    backend: Acting,
    *,
    study: StudyName,
    seconds: Annotated[float, Field(ge=0, le=120, description="Longest time to wait for a change.")] = 30.0,
    seen: Annotated[
        str | None, Field(max_length=100, description="`seen` of the last answer, to wait for changes since then.")
    ] = None,
) -> Mapping[str, Any]:
    """Wait up to `seconds` for a change of a study or confirm job, and return its state.

    Call this tool again with `seen` of its last answer until `ended` is true.
    """
    until, before = time.monotonic() + seconds, seen
    while True:
        found = await anyio.to_thread.run_sync(backend.status, study)
        now = _version(found)
        before = now if before is None else before
        has_ended = found["job"]["state"] in OVER
        if now != before or has_ended or time.monotonic() >= until:
            short = {name: found["study"].get(name) for name in _SHORT} if found["study"] else None
            return {
                "changed": now != before, "ended": has_ended, "seen": now, "job": _short_job(found["job"]),
                "study": short, "next": _NEXT_BY_STATE[found["job"]["state"]],
            }  # fmt: skip
        await anyio.sleep(min(LOOK_SECONDS, max(until - time.monotonic(), 0.0)))


def explain_trial(
    backend: Acting,
    *,
    study: StudyName,
    trial: Annotated[int, Field(ge=0, le=10**9, description="Number of the trial.")],
) -> Mapping[str, Any]:
    """Explain why a trial continued, was paused, stopped or failed, with the numbers that decided."""
    return backend.explain(study, trial)


def compare_trials(
    backend: Acting,
    *,
    study: StudyName,
    trials: Annotated[
        Sequence[_TrialNumber], Field(max_length=40, description="Numbers of trials; empty: the first 40.")
    ] = (),
) -> Mapping[str, Any]:
    """Return trials side by side, with the parameters in which they differ."""
    rows = backend.trials(study)
    known = {row["trial"]: row for row in rows}
    missing = [number for number in trials if number not in known]
    if missing:
        raise ToolProblem(f"trials: found {missing[0]}, allowed: 0 to {len(known) - 1}", "call compare_trials again")
    chosen = [known[number] for number in trials] or rows[:40]
    names = sorted({name for row in chosen for name in row["params"]})
    differing = [name for name in names if len({repr(row["params"].get(name)) for row in chosen}) > 1]
    return {"study": study, "of": len(rows), "differing_parameters": differing, "trials": chosen}


def compare_studies(
    backend: Acting,
    *,
    studies: Annotated[list[StudyName], Field(min_length=2, max_length=10, description="Names of the studies.")],
) -> Mapping[str, Any]:
    """Return studies side by side, with results and costs."""
    names = ("state", "trials", "cost_usd", "hypervolume", "reference_point", "recommendation")
    rows = []
    for name in studies:
        found = backend.status(name)
        study = found["study"] or {}
        rows.append({"study": found["job"]["study"]} | {one: study.get(one) for one in names})
    return {"studies": rows, "next": "compare hypervolumes only if objectives and reference point are equal"}


def recommendation(backend: Acting, study: StudyName) -> Mapping[str, Any]:
    """Return a study's recommended model, whether it was confirmed, and the next step."""
    found = backend.status(study)
    name, state, summary = found["job"]["study"], found["job"]["state"], found["study"] or {}
    chosen = summary.get("recommendation")
    if chosen is None:
        raise ToolProblem(f"the study {name} has no saved model yet", _NEXT_BY_STATE[state])
    point, is_confirmed = f"{chosen['trial']}@{chosen['epoch']}", bool(chosen.get("confirmed"))
    take = f"`automl export {name} {point} --out model.pt` writes it"
    measure = "call confirm: it measures the models to choose from with fresh seeds"
    return {
        "study": name, "point": point, "is_confirmed": is_confirmed, "recommendation": chosen,
        "cost_usd": summary.get("cost_usd"), "baselines": summary.get("baselines"),
        "next": take if is_confirmed else measure if state in ENDED else "call watch",
    }  # fmt: skip


def _with_budget(spec: dict[str, Any], budget_usd: float | None) -> tuple[dict[str, Any], float]:
    budget = spec.get("budget")
    if budget is not None and not isinstance(budget, dict):
        raise SpecError("spec", ("budget",), "the budget is not a mapping. Write limits, for example {usd: 5}")
    named = None if budget is None else budget.get("usd")
    usd = named if budget_usd is None else budget_usd
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not usd > 0:
        raise ToolProblem(
            "budget: the study needs a limit in dollars", "call launch with budget_usd, or with budget.usd in the spec"
        )
    if budget_usd is not None and named is not None and named != budget_usd:
        raise ToolProblem(f"budget: budget_usd is {budget_usd:g}, but the spec has budget.usd {named}", "pass only one")
    return spec | {"budget": {**(budget or {}), "usd": usd}}, float(usd)


def _short_job(job: Mapping[str, Any]) -> dict[str, Any]:
    names = ("study", "kind", "project", "user", "state", "reason", "worker", "limit_usd", "spent_usd")
    return {name: job[name] for name in names}


def _version(found: Mapping[str, Any]) -> str:
    job, study = found["job"], found["study"] or {}
    trials = study.get("trials") or {}
    counts = "-".join(str(trials.get(state, 0)) for state in sorted(trials))
    epochs = sum(one.get("epochs", 0) for one in study.get("running") or ())
    return f"{job['state']}.{job['request']}.{study.get('state')}.{counts}.{epochs}"


CHANGING = (launch, resume, stop, confirm, enqueue)
READING = (list_studies, status, watch, explain_trial, compare_trials, compare_studies, recommendation)
