"""A worker: polls the queue, and runs each job in a process on some of its slots."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError

from automl.service.workers.job_process import INTERRUPTED, STORE_AWAY, WORKER_PID, outcome_of_closed
from reports.phrases import plural
from search_spaces.messages import RunError
from studies.queueing.job_queue import JobQueue
from studies.queueing.job_rows import left_studies
from studies.queueing.jobs import Job, Run
from studies.queueing.turns import Start
from studies.queueing.worker_heartbeats import EXPIRY_SECONDS, WorkerGoneError
from studies.storage.leases.dead_pools import settle_left
from studies.storage.study_store import Store, StoreError
from studies.storage.writing.retrying import is_away

POLL_SECONDS = 1.0
BEAT_SECONDS = 2.0
LONGEST_GAP_SECONDS = 0.5 * EXPIRY_SECONDS
"""Heartbeat gap in seconds after which other workers' heartbeats may have expired, too."""
AWAY_SECONDS = 30.0
"""Seconds to pause after a process could not reach the store: the next start would probably fail, too."""


def settle_left_pools(store: Store, log: Callable[..., None]) -> None:
    """Charge the last costs of jobs whose process is gone, after living controllers had time to renew leases."""
    with store.snapshot() as connection:
        left = left_studies(connection)
    for study_id in left:
        try:
            # Waiting here would delay the worker's own heartbeats.
            settle_left(store, study_id, at_once=True)
        except (StoreError, RunError) as error:  # deleted or taken over since, or its rows are damaged
            log(f"the last seconds of a dead controller are not charged: {error}", level="warning", study_id=study_id)


@dataclass(kw_only=True, slots=True)
class _Running:
    job: Job
    run: Run
    process: subprocess.Popen[bytes]
    is_asked: bool = False
    is_given_up: bool = False


@dataclass(kw_only=True)
class Worker:
    """Runs jobs of a store until `leave`. `devices` has a GPU id per slot, or is empty on CPUs."""

    queue: JobQueue
    name: str
    device: str
    slots: int
    log_folder: Path
    log: Callable[..., None]
    devices: tuple[str, ...] = ()
    clock: Callable[[], float] = time.monotonic
    _running: dict[int, _Running] = field(default_factory=dict, init=False)
    _leaves: bool = field(default=False, init=False)
    _id: int = field(default=-1, init=False)
    _beaten_at: float = field(default=float("-inf"), init=False)
    _steady_since: float = field(default=float("-inf"), init=False)
    _rests_until: float = field(default=float("-inf"), init=False)
    _problem: str = field(default="", init=False)

    def leave(self, reason: str) -> None:
        """Take no more jobs, stop running jobs with checkpoints, and end. Safe in signal handlers."""
        del reason
        self._leaves = True

    def run(self) -> None:
        """Run jobs until `leave` was called and all jobs have stopped."""
        self.log_folder.mkdir(parents=True, exist_ok=True)
        self._join()
        while not (self._leaves and not self._running):
            self._step_or_tell()
            time.sleep(POLL_SECONDS)
        with suppress(DBAPIError):  # other workers see the missing heartbeat
            self.queue.leave(self._id)

    def _step_or_tell(self) -> None:
        """Run `step`. Logs a database error once until a step succeeds; jobs continue."""
        try:
            self.step()
        except DBAPIError as error:
            problem = "does not answer" if is_away(error) else "refuses a query of the worker"
            line = f"the store {problem} ({str(error.orig).splitlines()[0]}); jobs keep running, the worker tries again"
            if line != self._problem:
                self.log(line, level="warning" if is_away(error) else "error", worker=self.name)
            self._problem = line
        else:
            self._problem = ""

    def step(self) -> None:
        """Renew the heartbeat, forward requests to jobs, collect ended jobs, start the next jobs."""
        if self._leaves:
            self._drain_all()  # before any step that needs the store, which may be unreachable
        self._collect()
        try:
            if self.clock() - self._beaten_at >= BEAT_SECONDS:
                self._beat()
            if not self._rests():
                while isinstance(
                    turn := self.queue.take_turn(self._id, self.slots, gives_up_silent=self._is_steady), Start
                ):
                    self._start(turn)
        except WorkerGoneError as error:  # this process was frozen, or only this worker could not reach the database
            self.log(str(error), level="warning", worker=self.name)
            for running in self._running.values():
                running.is_given_up = True
            self._drain_all()
            self._join()

    def _rests(self) -> bool:
        """Return whether to take no jobs now. The store does not count the slots of abandoned runs."""
        is_given_up = any(running.is_given_up for running in self._running.values())
        return self._leaves or is_given_up or self.clock() < self._rests_until

    @property
    def _is_steady(self) -> bool:
        """Return whether all workers have had time for a heartbeat since the last outage of the store."""
        return self.clock() - self._steady_since >= EXPIRY_SECONDS

    def _join(self) -> None:
        self._id = self.queue.register(self.name, device=self.device, slots=self.slots)
        self._beaten_at = self._steady_since = self.clock()
        self.log(f"worker {self.name} has {plural(self.slots, 'slot')}", worker=self.name)

    def _beat(self) -> None:
        gap_seconds, asked = self.queue.beat(self._id)
        self._beaten_at = self.clock()
        if gap_seconds >= LONGEST_GAP_SECONDS:  # others could not reach it either: wait for their heartbeats
            self._steady_since = self._beaten_at
        for run_id in asked.keys() - self._running.keys():  # the database's answer to its start or end was lost
            self.queue.end_run(run_id, "lost", "its worker has no process of the job; the job continues later")
        for run_id in self._running:
            if asked.get(run_id) is not None:
                self._drain(run_id)
        if self._is_steady:
            settle_left_pools(self.queue.store, self.log)

    def _drain_all(self) -> None:
        for run_id in self._running:
            self._drain(run_id)

    def _drain(self, run_id: int) -> None:
        running = self._running[run_id]
        if not running.is_asked and running.process.poll() is None:
            running.is_asked = True
            running.process.send_signal(signal.SIGTERM)

    def _start(self, turn: Start) -> None:
        run = turn.job.run
        if run is None:
            raise AssertionError("a job that starts must have a run")
        self.log("the job starts", study=turn.job.study, worker=self.name, slots=list(turn.slot_numbers))
        try:
            process = self._process(turn, run)
        except OSError as error:
            reason = f"worker {self.name} cannot start its process: {error}"
            self.log(reason, level="error", study=turn.job.study, worker=self.name)
            self.queue.end_run(run.id, "failed", reason)
            return
        self._running[run.id] = _Running(job=turn.job, run=run, process=process)

    def _process(self, turn: Start, run: Run) -> subprocess.Popen[bytes]:
        path = self.log_folder / f"{turn.job.study}.log"
        with path.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - a program of this project
                [sys.executable, "-m", "automl.service.workers.job_process", str(run.id)],
                env=self._environment(turn),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that Ctrl-C reaches only the worker, which forwards it
            )

    def _environment(self, turn: Start) -> Mapping[str, str]:
        own = {"AUTOML_STORE": self.queue.store.url, WORKER_PID: str(os.getpid())}
        gpus = [self.devices[number] for number in turn.slot_numbers] if self.devices else []
        own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)  # with device "auto" a job takes all visible GPUs
        return {**os.environ, **own}

    def _collect(self) -> None:
        """Record the end of jobs whose process has ended. An outcome stored by the process itself stays."""
        for run_id, running in list(self._running.items()):
            code = running.process.poll()
            if code is None:
                continue
            self.queue.end_run(run_id, *self._how_it_ended(running, code))
            self.log("the job's process has ended", study=running.job.study, exit_code=code, worker=self.name)
            if code == STORE_AWAY:
                self._rests_until = self.clock() + AWAY_SECONDS
            del self._running[run_id]

    def _how_it_ended(self, running: _Running, code: int) -> tuple[Any, str]:
        if running.is_asked and code in (-signal.SIGTERM, INTERRUPTED):
            study, run = self.queue.store.study_row(running.job.study), running.run
            if study is not None and study.state == "closed" and (study.ended_at or 0.0) >= run.started_at:
                return outcome_of_closed(running.job, study.stop_reason), ""  # the request came after its end
            return "preempted", ""  # before its controller could drain
        if code == STORE_AWAY:
            return "lost", "its process could not reach the store; the job continues later"
        if code < 0:
            return "died", f"its process was ended by signal {-code}"
        return "failed", f"its process ended with exit code {code}; the worker's log has more"
