"""What a worker tells a collector of its jobs, and the context that it hands to their processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from studies.queueing import job_spans
from studies.queueing.job_queue import JobQueue
from studies.queueing.jobs import Job, Run
from studies.tracing import settings
from studies.tracing.span import Span
from studies.tracing.trace_context import VARIABLE, TraceContext

if TYPE_CHECKING:
    from studies.tracing.background import BackgroundSender


class JobTraces(Protocol):
    """Hears of the runs of a worker's jobs."""

    def environment(self, job: Job, run: Run) -> Mapping[str, str]:
        """Return the environment variables by which the process of a run goes on with the trace."""

    def started(self, job: Job, run: Run) -> None:
        """The process of a run is there."""

    def ended(self, job: Job, run: Run) -> None:
        """A run has ended, and its row says how."""

    def close(self) -> None:
        """Send what waits, for some seconds at most."""


class NoTraces:
    """Tells nobody, and hands on what the job was submitted with."""

    def environment(self, job: Job, run: Run) -> Mapping[str, str]:
        """Return the context of the request that submitted the job, if it had one."""
        del run
        return {} if job.trace_parent is None else {VARIABLE: job.trace_parent}

    def started(self, job: Job, run: Run) -> None:
        """Tell nobody."""

    def ended(self, job: Job, run: Run) -> None:
        """Tell nobody."""

    def close(self) -> None:
        """Send nothing."""


class SentTraces:
    """Has spans made and sent by a thread.

    Args:
        queue: Queue of the store.
        sender: What sends them.
        samples: Function that says whether a trace with this id, which begins with a span of this name, is recorded.
    """

    def __init__(self, queue: JobQueue, sender: BackgroundSender, samples: Callable[[int, str], bool]) -> None:
        self._queue, self._sender, self._samples = queue, sender, samples

    def environment(self, job: Job, run: Run) -> Mapping[str, str]:
        """Return the context of the span of a run."""
        return {VARIABLE: self._context(job, run).header()}

    def started(self, job: Job, run: Run) -> None:
        """Send the wait and the start."""

        def spans() -> list[Span]:
            context = self._context(job, run)
            return job_spans.start_spans(self._queue.store, job, run, context, process_started_at=self._queue.now())

        self._sender.put(spans)

    def ended(self, job: Job, run: Run) -> None:
        """Send the run."""

        def spans() -> list[Span]:
            return [job_spans.run_span(self._queue.store, job, run, self._context(job, run))]

        self._sender.put(spans)

    def close(self) -> None:
        """Send what waits, for some seconds at most."""
        self._sender.close()

    def _context(self, job: Job, run: Run) -> TraceContext:
        return job_spans.context_of(job, run, self._samples)


def job_traces(queue: JobQueue, log: Callable[..., None]) -> JobTraces:
    """Return what hears of the runs of a worker's jobs: a collector, if the environment names one.

    Args:
        queue: Queue of the store.
        log: Function that takes a line of the log.
    """

    def warn(line: str) -> None:
        log(line, level="warning")

    if problem := settings.problem():
        warn(problem)
    if not settings.are_wanted():
        return NoTraces()
    from studies.tracing.background import BackgroundSender
    from studies.tracing.collector import Collector

    try:
        collector = Collector()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the SDK's settings, jobs run
        warn(f"no traces are sent ({type(error).__name__}: {' '.join(str(error).split())})")
        return NoTraces()
    return SentTraces(queue, BackgroundSender(collector, warn), collector.samples)
