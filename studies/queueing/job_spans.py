"""Spans of a job, made of its rows: one for each stay on a worker, the wait before it, and the start of its process.

    run job ─┬─ wait in queue
             ├─ start process
             └─ run study          the controller's, which gets the context of `run job` in TRACEPARENT

All of them stand below the request that submitted or resumed the job, if that had a context; else each run is a trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from studies.queueing.jobs import Job, Run
from studies.storage import tables as t
from studies.storage.store import Store
from studies.tracing.span import AttributeValue, Span
from studies.tracing.trace_context import TraceContext, parse, span_id_of, trace_id_of

JOB, WAIT, START = "run job", "wait in queue", "start process"
_WRONG = frozenset({"failed", "lost", "died"})
"""Outcomes of runs that something went wrong in."""


def context_of(job: Job, run: Run, samples: Callable[[int, str], bool]) -> TraceContext:
    """Ids of the span of a run.

    Args:
        job: The job.
        run: One of its runs.
        samples: Function that says whether a trace with this id, which begins with a span of this name, is recorded.
    """
    what = (job.study, job.id, job.submitted_at, run.id)
    parent = parse(job.trace_parent)
    if parent is not None:
        return TraceContext(trace_id=parent.trace_id, span_id=span_id_of(*what), is_sampled=parent.is_sampled)
    trace_id = trace_id_of(*what)
    return TraceContext(trace_id=trace_id, span_id=span_id_of(*what), is_sampled=samples(trace_id, JOB))


def start_spans(store: Store, job: Job, run: Run, context: TraceContext, *, process_started_at: float) -> list[Span]:
    """The wait before a run, and the start of its process.

    Args:
        store: Store that holds the job.
        job: The job.
        run: Its run.
        context: Ids of the span of the run.
        process_started_at: Moment at which the process was there, in seconds since 1970 by the database's clock.
    """
    waits_since = _waits_since(store, job, run)
    return [
        _below(context, WAIT, job, run, (waits_since, run.started_at)),
        _below(context, START, job, run, (run.started_at, max(process_started_at, run.started_at))),
    ]


def run_span(store: Store, job: Job, run: Run, context: TraceContext) -> Span:
    """The span of a run that has ended, from the begin of the wait for it.

    Args:
        store: Store that holds the job.
        job: The job as it was when the run began; it may wait for another one by now.
        run: The run.
        context: Its ids.
    """
    row = _row(store, run)
    outcome, reason = str(row.outcome or ""), str(row.reason)
    wrong = (reason or outcome) if outcome in _WRONG else ""
    return Span(
        name=JOB,
        context=context,
        parent=parse(job.trace_parent),
        started_at=_waits_since(store, job, run),
        ended_at=run.started_at if row.ended_at is None else row.ended_at,
        attributes={
            **_of_job(job, run),
            "automl.user": job.user,
            "automl.project": job.project,
            "automl.priority": job.priority,
            "automl.outcome": outcome,
            "automl.reason": reason,
        },
        error=wrong,
    )


def _below(context: TraceContext, name: str, job: Job, run: Run, interval: tuple[float, float]) -> Span:
    own = TraceContext(
        trace_id=context.trace_id,
        span_id=span_id_of(name, job.study, job.id, job.submitted_at, run.id),
        is_sampled=context.is_sampled,
    )
    return Span(
        name=name,
        context=own,
        parent=context,
        started_at=interval[0],
        ended_at=interval[1],
        attributes=_of_job(job, run),
    )


def _of_job(job: Job, run: Run) -> dict[str, AttributeValue]:
    return {
        "automl.study": job.study,
        "automl.job.kind": job.kind,
        "automl.job.run": run.id,
        "automl.worker": run.worker,
        "automl.slots": run.slot_numbers,
    }


def _waits_since(store: Store, job: Job, run: Run) -> float:
    """Begin of the wait before a run: the submission, or the end of an earlier run after which the job went back."""
    r = t.job_runs.c
    earlier = sa.select(sa.func.max(r.ended_at)).where(r.job_id == job.id, r.id < run.id)
    with store.snapshot() as connection:
        ended_at = connection.execute(earlier).scalar()
    begin = job.queued_at if ended_at is None else max(job.queued_at, ended_at)
    return min(begin, run.started_at)


def _row(store: Store, run: Run) -> Any:
    """When and how a run ended, and the reason that its job has."""
    r = t.job_runs.c
    query = sa.select(r.ended_at, r.outcome, t.jobs.c.reason).join(t.jobs, t.jobs.c.id == r.job_id)
    with store.snapshot() as connection:
        return connection.execute(query.where(r.id == run.id)).one()
