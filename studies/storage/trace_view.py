"""The view of traces: what has ended is told to an OpenTelemetry collector, once it is committed.

A collector forgets nothing and answers no question, so the cursor alone says what it has. It moves on when the
collector has taken the spans; those of a pass that was cut off are sent again, with the same ids.
"""

from __future__ import annotations

from collections.abc import Callable

from studies.storage import trace_rows
from studies.storage.store import Store
from studies.storage.study_spans import attempt_span, confirmation_span, context_of, run_span
from studies.storage.view_cursors import ViewName
from studies.storage.view_rows import MirroredStudy, Pending
from studies.tracing.collector import BATCH, Collector
from studies.tracing.span import Span


class TraceView:
    """Sends the spans of a study.

    Args:
        collector: Function that opens the collector.
    """

    name: ViewName = "traces"

    def __init__(self, collector: Callable[[], Collector] = Collector) -> None:
        self._make = collector
        self._collector: Collector | None = None

    def load(self, study: MirroredStudy) -> None:
        """Make ready to send."""
        del study
        self._opened()

    def mirror(self, store: Store, pending: Pending, renew: Callable[[], None]) -> None:
        """Send what has ended since.

        Raises:
            CollectorError: The collector did not take it.
        """
        collector = self._opened()
        spans = self._spans(store, pending, collector)
        for start in range(0, len(spans), BATCH):
            collector.send(spans[start : start + BATCH])
            renew()

    def clear(self, study: MirroredStudy) -> None:
        """Leave what was sent: nobody can take it back, and what is sent again has the same ids."""

    def link(self, study: MirroredStudy) -> str:
        """Return no address: whoever runs the collector knows where its spans go."""
        del study
        return ""

    def forget(self) -> None:
        """Forget nothing, since nothing is kept."""

    def close(self) -> None:
        """Give the connection back."""
        if self._collector is not None:
            self._collector.close()
        self._collector = None

    def _opened(self) -> Collector:
        if self._collector is None:
            self._collector = self._make()
        return self._collector

    @staticmethod
    def _spans(store: Store, pending: Pending, collector: Collector) -> list[Span]:
        """Attempts first: a run has ended when all of them have."""
        study, since, until = pending.study, pending.since, pending.study.revision
        with store.snapshot() as connection:
            runs = {run.lease_id: run for run in trace_rows.runs(connection, study.id)}
            contexts = {number: context_of(study, run, collector.samples) for number, run in runs.items()}
            spans = [
                attempt_span(study, runs[one.lease_id], contexts[one.lease_id], one)
                for one in trace_rows.ended_attempts(connection, study.id, since, until)
                if one.lease_id in runs
            ]
            error = trace_rows.study_error(connection, study.id)
            for number, run in runs.items():
                if run.ended_at is None or not since < run.revision <= until:
                    continue
                spans += [
                    confirmation_span(study, run, contexts[number], one)
                    for one in trace_rows.confirmed_in(connection, run, study.id)
                ]
                spans.append(run_span(study, run, contexts[number], trace_rows.money_of_run(connection, number), error))
        return spans
