"""Rows of several requests go through the model together.

One thread runs the model. While it does, rows of other requests gather, and make the next batch. A row that comes when
the thread is idle goes at once; only if the batch before answered several requests, so that others are likely to
follow, the thread waits for them, up to a deadline that starts when the first row came.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..batches import Encoded
from .errors import RequestError
from .served import Served

log = logging.getLogger(__name__)
_TOO_MANY = 429
Answer = dict[str, Any]


class Watcher(Protocol):
    """What is told of each batch."""

    def ran(self, version: str, rows: int, seconds: float) -> None:
        """Note a run of the model."""

    def waiting(self, rows: int) -> None:
        """Note how many rows wait."""


@dataclass(eq=False, slots=True)
class _Job:
    """Rows of one request that go through the model together.

    Attributes:
        served: The model.
        rows: At most as many as a batch may have.
        done: Gets their answers.
        arrived: When they came, in seconds of the monotonic clock.
    """

    served: Served
    rows: Sequence[Encoded]
    done: asyncio.Future[list[Answer]]
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """The queue in front of the model, and the thread that runs it. Made and called in an event loop.

    Args:
        batch_rows: Number of rows that go through the model at once.
        wait_seconds: How long a row may wait for others.
        queue_rows: Number of rows that may wait.
        watcher: Told of each batch.
    """

    def __init__(self, *, batch_rows: int, wait_seconds: float, queue_rows: int, watcher: Watcher) -> None:
        self._batch_rows, self._wait, self._queue_rows = batch_rows, wait_seconds, queue_rows
        self._watcher, self._loop = watcher, asyncio.get_running_loop()
        self._jobs: deque[_Job] = deque()
        self._rows = 0
        self._overlap = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    async def answers(self, served: Served, rows: Sequence[Encoded]) -> list[Answer]:
        """Return the answer to each row.

        Raises:
            RequestError: Too many rows wait, or the model cannot take these.
        """
        jobs = self._submit(served, rows)
        try:
            if len(jobs) == 1:
                return await jobs[0].done
            parts = await asyncio.gather(*(job.done for job in jobs))
        finally:
            for job in jobs:  # of a request that was given up nothing is run any more
                job.done.cancel()
        return [answer for part in parts for answer in part]

    def close(self) -> None:
        """End the thread, once it has answered what waits."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _submit(self, served: Served, rows: Sequence[Encoded]) -> list[_Job]:
        size = self._batch_rows
        with self._changed:
            if self._rows + len(rows) > self._queue_rows:
                raise RequestError(_TOO_MANY, f"{self._rows} rows wait already, allowed: {self._queue_rows}", 1)
            jobs = [
                _Job(served, rows[start : start + size], self._loop.create_future())
                for start in range(0, len(rows), size)
            ]
            was_empty = not self._jobs
            self._jobs.extend(jobs)
            self._rows += len(rows)
            self._watcher.waiting(self._rows)
            if was_empty or self._rows >= size:
                self._changed.notify()
        return jobs

    def _work(self) -> None:
        while batch := self._next_batch():
            results = self._run(batch)
            self._loop.call_soon_threadsafe(_deliver, batch, results)

    def _next_batch(self) -> list[_Job]:
        """Return jobs of one model, no more rows than go together; nothing at the end."""
        with self._changed:
            while True:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if self._overlap and self._jobs:
                    self._wait_for_others()
                batch = self._taken()
                if batch or self._closed:
                    self._overlap = len(batch) > 1 or bool(self._jobs)
                    self._watcher.waiting(self._rows)
                    return batch

    def _wait_for_others(self) -> None:
        deadline = self._jobs[0].arrived + self._wait
        while self._rows < self._batch_rows and not self._closed:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._changed.wait(left)

    def _taken(self) -> list[_Job]:
        """Take jobs from the queue; those of another model stay in it, in their order."""
        batch: list[_Job] = []
        others: list[_Job] = []
        rows = 0
        while self._jobs:
            job = self._jobs[0]
            if job.done.cancelled():
                self._rows -= len(self._jobs.popleft().rows)
                continue
            is_other = bool(batch) and job.served is not batch[0].served
            if not is_other and batch and rows + len(job.rows) > self._batch_rows:
                break
            self._jobs.popleft()
            if is_other:
                others.append(job)
                continue
            batch.append(job)
            rows += len(job.rows)
        self._jobs.extendleft(reversed(others))
        self._rows -= rows
        return batch

    def _run(self, batch: list[_Job]) -> list[list[Answer] | Exception]:
        """Return the answers to each job; if they fail together, each is tried alone."""
        served = batch[0].served
        started = time.perf_counter()
        rows = [row for job in batch for row in job.rows]
        try:
            answers = served.answers(rows)
        except Exception as error:
            if len(batch) > 1:
                return [self._run([job])[0] for job in batch]
            refusal = served.refusal(error)
            if refusal.status >= 500:
                log.exception("%s failed on %d rows", served.version, len(rows))
            return [refusal]
        self._watcher.ran(served.version, len(rows), time.perf_counter() - started)
        ends = iter(answers)
        return [[next(ends) for _ in job.rows] for job in batch]


def _deliver(batch: list[_Job], results: list[list[Answer] | Exception]) -> None:
    for job, result in zip(batch, results, strict=True):
        if job.done.done():
            continue
        if isinstance(result, Exception):
            job.done.set_exception(result)
        else:
            job.done.set_result(result)
