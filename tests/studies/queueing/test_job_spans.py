"""What a job waited for and how it ended, in both kinds of stores: each run is told, below whoever asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from studies.queueing import job_spans
from studies.queueing.job_queue import JobQueue, Submission
from studies.queueing.jobs import Job, Run, RunOutcome
from studies.queueing.turns import Start
from studies.records import NANO
from studies.storage import tables as t
from studies.storage.store import Store
from studies.tracing.span import Span
from studies.tracing.trace_context import TraceContext, parse

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"


@pytest.fixture
def queue(either_url: str) -> Iterator[JobQueue]:
    store = Store(either_url)
    yield JobQueue(store)
    store.close()


def submit(queue: JobQueue, trace_parent: str | None = None) -> None:
    queue.submit(Submission(
        study="p.s", project="p", user="ann", spec={"task": "digits"}, base_folder=".", slots=1, limit_nano_usd=NANO,
        trace_parent=trace_parent,
    ))  # fmt: skip


def started(queue: JobQueue) -> tuple[Job, Run]:
    turn = queue.take_turn(queue.register("w", device="cpu", slots=1), 1)
    assert isinstance(turn, Start)
    assert turn.job.run is not None
    return turn.job, turn.job.run


def spans_of(
    queue: JobQueue, job: Job, run: Run, outcome: RunOutcome, reason: str = ""
) -> tuple[Span, Span, Span, TraceContext]:
    """Wait, start and run, and the context that the process got."""
    context = job_spans.context_of(job, run, lambda _trace, _name: True)
    there_at = queue.now()
    wait, start = job_spans.start_spans(queue.store, job, run, context, process_started_at=there_at)
    queue.end_run(run.id, outcome, reason)
    return wait, start, job_spans.run_span(queue.store, job, run, context), context


def shift(queue: JobQueue, **columns: Any) -> None:
    with queue.store.engine.begin() as connection:
        connection.execute(sa.update(t.jobs).values(**columns))


def test_a_run_without_a_caller_is_a_trace(queue: JobQueue) -> None:
    submit(queue)
    shift(queue, queued_at=t.jobs.c.queued_at - 5.0, submitted_at=t.jobs.c.submitted_at - 5.0)
    job, run = started(queue)
    wait, start, whole, context = spans_of(queue, job, run, "done", "the dollars of its budget are used up")
    assert (whole.context, whole.parent) == (context, None)
    assert wait.parent == start.parent == context
    assert len({wait.context.span_id, start.context.span_id, context.span_id}) == 3
    assert (wait.started_at, wait.ended_at, start.started_at) == (job.queued_at, run.started_at, run.started_at)
    assert wait.ended_at - wait.started_at >= 5.0
    assert whole.started_at == wait.started_at <= start.ended_at <= whole.ended_at
    assert whole.attributes["automl.outcome"] == "done"
    assert whole.attributes["automl.user"] == "ann"
    assert whole.attributes["automl.slots"] == (0,)
    assert whole.error == ""


def test_a_job_that_comes_back_waits_from_the_end_of_its_run(queue: JobQueue) -> None:
    submit(queue)
    job, run = started(queue)
    *_, first, context = spans_of(queue, job, run, "preempted")
    assert first.error == "", "making room is no failure"
    again, later = started(queue)
    wait, _, second, other = spans_of(queue, again, later, "done")
    assert wait.started_at == second.started_at == first.ended_at
    assert other.trace_id != context.trace_id
    assert other.span_id != context.span_id


@pytest.mark.parametrize(("outcome", "told"), [("failed", "data: not there"), ("died", "ended by signal 9")])
def test_a_run_that_went_wrong_says_how(queue: JobQueue, outcome: RunOutcome, told: str) -> None:
    submit(queue)
    job, run = started(queue)
    *_, whole, _ = spans_of(queue, job, run, outcome, told)
    assert whole.error == told
    assert whole.attributes["automl.outcome"] == outcome


def test_a_run_stands_below_the_request_that_asked_for_it(queue: JobQueue) -> None:
    submit(queue, CALLER)
    caller, other = parse(CALLER), parse(OTHER)
    job, run = started(queue)
    assert job.trace_parent == CALLER
    wait, start, whole, context = spans_of(queue, job, run, "done")
    assert whole.parent == caller
    assert {one.context.trace_id for one in (wait, start, whole)} == {caller.trace_id, context.trace_id}
    queue.queue_again(queue.require("p.s"), limit_nano_usd=NANO, trace_parent=OTHER)
    late = job_spans.run_span(queue.store, job, run, context)
    assert (late.parent, late.started_at) == (caller, whole.started_at), "told late, it is told the same"
    again, later = started(queue)
    *_, resumed, _ = spans_of(queue, again, later, "done")
    assert (resumed.parent, resumed.context.trace_id) == (other, other.trace_id)
    assert resumed.started_at >= whole.ended_at
    queue.queue_again(queue.require("p.s"), limit_nano_usd=NANO)
    assert queue.require("p.s").trace_parent is None
    assert job_spans.context_of(again, later, lambda *_: False).is_sampled, "the caller has decided"
