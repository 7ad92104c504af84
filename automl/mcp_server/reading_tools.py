"""Tools that read: studies, trials, and what to take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import anyio
import anyio.to_thread
from pydantic import Field

from automl.mcp_server.answers import ToolProblem
from automl.mcp_server.backend import Backend
from automl.mcp_server.tool import Arguments, ServedTool
from studies.queueing.jobs import ENDED, OVER

StudyName = Annotated[str, Field(min_length=1, max_length=200, description="Name of the study.")]
LOOK_SECONDS = 1.0
_NEXT_BY_STATE: Mapping[str, str] = {
    "queued": "call watch: a worker has to take it; a reason, if there is one, says what it waits for",
    "running": "call watch until it ends, or stop to let it drain",
    "done": "call recommendation",
    "stopped": "call resume to go on, or recommendation",
    "failed": "read the reason; mend the cause, then call resume, or launch another spec",
    "cancelled": "call recommendation for what it has found",
    "deleted": "nothing; where its deletion broke off, somebody has to delete it again",
}
_SHORT = ("state", "stop_reason", "error", "trials", "running", "cost_usd", "budget", "hypervolume")


class Nothing(Arguments):
    """No arguments."""


class OfStudy(Arguments):
    """A study."""

    study: StudyName


class Watching(OfStudy):
    """How long to wait."""

    seconds: float = Field(30.0, ge=0, le=120, description="Longest time to wait for a change.")
    seen: str | None = Field(None, max_length=100, description="`seen` of the last answer: what has changed since.")


class OfTrial(OfStudy):
    """A trial."""

    trial: int = Field(ge=0, le=10**9, description="Number of the trial.")


class OfTrials(OfStudy):
    """Trials of a study."""

    trials: list[Annotated[int, Field(ge=0, le=10**9)]] = Field(
        default_factory=list, max_length=40, description="Numbers of trials; none takes the first 40."
    )


class OfStudies(Arguments):
    """Several studies."""

    studies: list[StudyName] = Field(min_length=2, max_length=10, description="Names of the studies.")


async def in_thread(work: Callable[[], Any]) -> Any:
    """Do work that waits for a database or a network in a thread."""
    return await anyio.to_thread.run_sync(work)


async def list_studies(backend: Backend, _: Nothing) -> Mapping[str, Any]:
    """List jobs, newest first, and accounts."""
    jobs = await in_thread(backend.jobs)
    return {"studies": [short_job(job) for job in reversed(jobs)], "accounts": await in_thread(backend.accounts)}


async def status(backend: Backend, given: OfStudy) -> Mapping[str, Any]:
    """Return all that the summary of a study has."""
    found = await in_thread(lambda: backend.status(given.study))
    return {**found, "next": _NEXT_BY_STATE[found["job"]["state"]]}


async def watch(backend: Backend, given: Watching) -> Mapping[str, Any]:
    """Wait for a change of a study, and say how it is then."""
    until, before = time.monotonic() + given.seconds, given.seen
    while True:
        found = await in_thread(lambda: backend.status(given.study))
        seen = _version(found)
        before = seen if before is None else before
        has_ended = found["job"]["state"] in OVER
        if seen != before or has_ended or time.monotonic() >= until:
            short = {name: found["study"].get(name) for name in _SHORT} if found["study"] else None
            return {
                "changed": seen != before, "ended": has_ended, "seen": seen, "job": short_job(found["job"]),
                "study": short, "next": _NEXT_BY_STATE[found["job"]["state"]],
            }  # fmt: skip
        await anyio.sleep(min(LOOK_SECONDS, max(until - time.monotonic(), 0.0)))


async def explain_trial(backend: Backend, given: OfTrial) -> Mapping[str, Any]:
    """Say why a trial is in its state."""
    return dict(await in_thread(lambda: backend.explain(given.study, given.trial)))


async def compare_trials(backend: Backend, given: OfTrials) -> Mapping[str, Any]:
    """Return trials side by side."""
    rows = await in_thread(lambda: backend.trials(given.study))
    known = {row["trial"]: row for row in rows}
    missing = [number for number in given.trials if number not in known]
    if missing:
        raise ToolProblem(f"trials: found {missing[0]}, allowed: 0 to {len(known) - 1}", "call compare_trials again")
    chosen = [known[number] for number in given.trials] or rows[:40]
    differing = sorted(name for name in {name for row in chosen for name in row["params"]} if _differs(chosen, name))
    return {"study": given.study, "of": len(rows), "differing_parameters": differing, "trials": chosen}


async def compare_studies(backend: Backend, given: OfStudies) -> Mapping[str, Any]:
    """Return studies side by side."""
    names = ("state", "trials", "cost_usd", "hypervolume", "reference_point", "recommendation")
    rows = []
    for name in given.studies:
        found = await in_thread(partial(backend.status, name))
        study = found["study"] or {}
        rows.append({"study": found["job"]["study"]} | {one: study.get(one) for one in names})
    return {"studies": rows, "next": "hypervolumes compare only where objectives and reference point are equal"}


async def recommendation(backend: Backend, given: OfStudy) -> Mapping[str, Any]:
    """Say which model to take, and whether that was confirmed."""
    found = await in_thread(lambda: backend.status(given.study))
    study = found["study"]
    chosen = None if study is None else study.get("recommendation")
    if chosen is None:
        raise ToolProblem(f"{found['job']['study']} has no model to take yet", _NEXT_BY_STATE[found["job"]["state"]])
    point = f"{chosen['trial']}@{chosen['epoch']}"
    name, is_confirmed = found["job"]["study"], bool(chosen.get("confirmed"))
    ended = found["job"]["state"] in ENDED
    take = f"`automl export {name} {point} --out model.pt` writes it"
    confirm = "call confirm: it measures the models to choose from with fresh seeds" if ended else "call watch"
    return {
        "study": name, "point": point, "is_confirmed": is_confirmed, "recommendation": chosen,
        "cost_usd": study.get("cost_usd"), "baselines": study.get("baselines"),
        "next": take if is_confirmed else confirm,
    }  # fmt: skip


def short_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what matters of a job."""
    names = ("study", "kind", "project", "user", "state", "reason", "worker", "limit_usd", "spent_usd")
    return {name: job[name] for name in names}


def _version(found: Mapping[str, Any]) -> str:
    """A short text that changes whenever something does that matters."""
    job, study = found["job"], found["study"] or {}
    trials = study.get("trials") or {}
    counts = "-".join(str(trials.get(state, 0)) for state in sorted(trials))
    epochs = sum(one.get("epochs", 0) for one in study.get("running") or ())
    return f"{job['state']}.{job['request']}.{study.get('state')}.{counts}.{epochs}"


def _differs(rows: list[dict[str, Any]], name: str) -> bool:
    return len({repr(row["params"].get(name)) for row in rows}) > 1


TOOLS = (
    ServedTool(
        name="list_studies", arguments=Nothing, run=list_studies,
        description="List studies and other jobs, newest first, and the limits on spending that concern you.",
    ),
    ServedTool(
        name="status", arguments=OfStudy, run=status,
        description="Return state, money, archive and recommendation of a study.",
    ),
    ServedTool(
        name="watch", arguments=Watching, run=watch,
        description="Wait up to `seconds` for a change of a study or a confirm job, and return how it is. "
        "Call it again with `seen` of its answer until `ended` is true.",
    ),
    ServedTool(
        name="explain_trial", arguments=OfTrial, run=explain_trial,
        description="Say why a trial went on, was paused, stopped or failed, with the numbers that were compared.",
    ),
    ServedTool(
        name="compare_trials", arguments=OfTrials, run=compare_trials,
        description="Return trials of a study side by side, with the parameters in which they differ.",
    ),
    ServedTool(
        name="compare_studies", arguments=OfStudies, run=compare_studies,
        description="Return studies side by side: what each found, and for how much.",
    ),
    ServedTool(
        name="recommendation", arguments=OfStudy, run=recommendation,
        description="Say which model of a study to take, whether that was confirmed with fresh seeds, and what to do.",
    ),
)  # fmt: skip
