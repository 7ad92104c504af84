"""Batches rows of several requests: while one thread runs the model, arriving rows form the next batch.

After a batch of several requests, more are likely to follow. Then an idle thread waits for the same number of rows, or
until a deadline after the first row's arrival.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..batches import Encoded
from .errors import BrokenDeviceError, RequestError
from .served import Served

log = logging.getLogger(__name__)
Answer = dict[str, Any]
Result = list[Answer] | Exception


class Watcher(Protocol):
    """Receives the size and seconds of each batch."""

    def ran(self, version: str, rows: int, seconds: float) -> None:
        """Record that the model has predicted a batch."""

    def waiting(self, rows: int) -> None:
        """Record the number of waiting rows."""


class _Job:
    __slots__ = ("answered", "arrived", "rows", "served")

    def __init__(self, served: Served, rows: Sequence[Encoded], answered: asyncio.Future[list[Answer]]) -> None:
        self.served, self.rows, self.answered = served, rows, answered
        self.arrived = time.monotonic()


class Batcher:
    """Queue of rows, and the thread that runs the model. Calls `on_broken` if the device fails."""

    def __init__(
        self,
        *,
        batch_rows: int,
        wait_seconds: float,
        queue_rows: int,
        watcher: Watcher,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._batch_rows, self._wait, self._queue_rows = batch_rows, wait_seconds, queue_rows
        self._watcher, self._on_broken, self._loop = watcher, on_broken, asyncio.get_running_loop()
        self._jobs: deque[_Job] = deque()
        self._rows = 0
        self._overlap = False
        self._enough = 1
        self._free_since = 0.0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    async def answers(self, served: Served, rows: Sequence[Encoded]) -> list[Answer]:
        """Return each row's prediction. Raises RequestError if the queue is full or the rows do not fit."""
        jobs = self._queued(served, rows)
        try:
            parts = await asyncio.gather(*[job.answered for job in jobs])
        finally:
            for job in jobs:
                job.answered.cancel()
        return [answer for part in parts for answer in part]

    def close(self) -> None:
        """Answer the waiting rows, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _queued(self, served: Served, rows: Sequence[Encoded]) -> list[_Job]:
        size = self._batch_rows
        with self._changed:
            if self._rows + len(rows) > self._queue_rows:
                raise RequestError(429, f"{self._rows} rows wait already, and at most {self._queue_rows} may wait", 1)
            starts = range(0, len(rows), size)
            jobs = [_Job(served, rows[start : start + size], self._loop.create_future()) for start in starts]
            before = self._rows
            self._jobs.extend(jobs)
            self._rows += len(rows)
            self._watcher.waiting(self._rows)
            if not before or before < self._enough <= self._rows:
                self._changed.notify()
        return jobs

    def _work(self) -> None:
        while batch := self._next_batch():
            results = self._run(batch)
            under_way = sum(len(job.rows) for job in batch) + self._rows
            self._enough = min(self._batch_rows, under_way)
            self._free_since = time.monotonic()
            self._loop.call_soon_threadsafe(_deliver, batch, results)

    def _next_batch(self) -> list[_Job]:
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
        """Wait until as many rows wait as the last batch had, or until the deadline."""
        deadline = max(self._jobs[0].arrived, self._free_since) + self._wait
        while self._rows < self._enough and not self._closed:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._changed.wait(left)

    def _taken(self) -> list[_Job]:
        batch: list[_Job] = []
        others: list[_Job] = []
        rows = 0
        while self._jobs:
            job = self._jobs[0]
            if job.answered.done():  # its request was cancelled
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

    def _run(self, batch: list[_Job]) -> list[Result]:
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
            if isinstance(refusal, BrokenDeviceError):
                self._loop.call_soon_threadsafe(self._on_broken)
            return [refusal]
        self._watcher.ran(served.version, len(rows), time.perf_counter() - started)
        ends = iter(answers)
        return [[next(ends) for _ in job.rows] for job in batch]


def _deliver(batch: list[_Job], results: list[Result]) -> None:
    for job, result in zip(batch, results, strict=True):
        if job.answered.done():
            continue
        if isinstance(result, Exception):
            job.answered.set_exception(result)
        else:
            job.answered.set_result(result)
