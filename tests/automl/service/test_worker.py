"""Workers with real processes: studies run to their ends, whatever happens to the workers, and no limit is passed."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError

from automl.launching.prepared_study import prepare
from automl.service.workers import job_process
from automl.service.workers.job_process import INTERRUPTED, MARGIN_SHARE
from automl.service.workers.queue_worker import AWAY_SECONDS, BEAT_SECONDS, Worker
from automl.stored.auditing import audit
from studies.gangs import available_slots
from studies.queueing.jobs import Run
from studies.queueing.turns import Start, Wait
from studies.queueing.worker_heartbeats import EXPIRY_SECONDS
from studies.records.records import NANO
from studies.spec.study_spec import parse_spec
from studies.storage.schema import tables as t
from tests.support import waiting
from tests.support.command_line import run_here
from tests.support.ray_pool import LentPool
from tests.support.service import TestedService, plain_submission, spec_of, with_policy
from tests.support.team_service import worker

pytestmark = pytest.mark.timeout(600)
AWAY = OperationalError("SELECT 1", None, sqlite3.OperationalError("the server closed the connection"))
wait_until = partial(waiting.wait_until, seconds=540.0)


def states(service: TestedService) -> dict[str, str]:
    return {job.study.partition(".")[2]: job.state for job in service.queue.jobs()}


def worker_of(service: TestedService, study: str) -> str | None:
    run = service.queue.require(study).run
    return None if run is None else run.worker


def epochs(service: TestedService) -> int:
    with service.store.snapshot() as connection:
        return len(connection.execute(t.epochs.select()).all())


def findings(service: TestedService) -> list[Any]:
    return [one for name in service.store.study_names() for one in audit(service.store, name)["findings"]]


def worker_here(service: TestedService, **more: Any) -> Worker:
    """A worker of one slot in this process, which takes turns by `step`."""
    logs = service.folder / "logs"
    logs.mkdir()
    one = Worker(
        queue=service.queue, name="w", device="cpu", slots=1, log_folder=logs, log=lambda *_, **__: None, **more
    )
    one._join()
    return one


def test_a_job_whose_process_cannot_start_fails_and_its_worker_goes_on(service: TestedService) -> None:
    job = service.queue.submit(plain_submission("team/vision.a", project="team/vision"))
    one = worker_here(service)
    one.step()
    ended = service.queue.require(job.study)
    assert ended.state == "failed"
    assert "worker w cannot start its process: [Errno 2]" in ended.reason
    one.step()
    assert [line.name for line in service.queue.workers()] == ["w"]


def outcomes(service: TestedService) -> list[str | None]:
    with service.store.snapshot() as connection:
        return list(connection.execute(sa.select(t.job_runs.c.outcome).order_by(t.job_runs.c.id)).scalars())


def started(service: TestedService, slots: int = 1, device: str = "cpu") -> Start:
    """The turn of a worker that is given a job."""
    turn = service.queue.take_turn(service.queue.register("w", device=device, slots=slots), slots)
    assert isinstance(turn, Start)
    return turn


def ended_process(one: Worker) -> None:
    """Wait until the only process of a worker has ended, and let the worker see it."""
    for running in one._running.values():
        running.process.wait(120.0)
    one._collect()


@pytest.mark.medium
def test_a_process_that_is_asked_to_drain_before_it_has_begun_has_not_crashed(service: TestedService) -> None:
    service.studies().submit(spec_of("a"))
    one = worker_here(service)
    one.step()
    (run_id,) = one._running
    one._drain(run_id)
    ended_process(one)
    assert (outcomes(service), states(service)) == (["preempted"], {"a": "queued"})


@pytest.mark.medium
def test_a_process_that_is_asked_when_its_study_has_ended_says_how_that_ended(service: TestedService) -> None:
    """A run that was late by a cent's part has passed its user's limit, so it is asked to leave while it cleans up."""
    service.studies("root", "ops", "admin").set_limit("user", "ann", 0.004)
    service.studies().submit(spec_of("a", budget={"usd": 1.0, "hours": None, "trials": 9}))
    one = worker_here(service)
    one.step()
    (run_id,) = one._running
    service.store.create_study("vision.a", {"study": "vision.a"}, base_folder="/", at=time.time())
    study = service.store.require("vision.a")
    with service.store.engine.begin() as connection:
        ended = {"state": "closed", "stop_reason": "budget_usd", "ended_at": time.time() + 1.0}
        connection.execute(sa.update(t.studies).where(t.studies.c.id == study.id).values(ended))
    one._drain(run_id)
    ended_process(one)
    assert (outcomes(service), states(service)) == (["capped"], {"a": "queued"})


@pytest.mark.medium
def test_a_process_ends_as_at_ctrl_c_while_it_waits_for_the_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none"
        command = [sys.executable, "-m", "automl.service.workers.job_process", "1"]
        process = subprocess.Popen(command, env={**os.environ, "AUTOML_STORE": url})
        silent.settimeout(120.0)
        connection, _ = silent.accept()  # it is past its imports
        with connection:
            process.terminate()
            assert process.wait(60.0) == INTERRUPTED


@pytest.mark.large
def test_a_process_that_the_store_does_not_answer_gives_its_job_back(service: TestedService) -> None:
    service.studies().submit(spec_of("a"))
    now = [0.0]
    one = worker_here(service, clock=lambda: now[0])

    def step() -> bool:
        """Take a turn with a store that answers this process alone; returns whether a job was started."""
        reachable, service.store.url = service.store.url, "postgresql://127.0.0.1:1/none"  # nobody listens there
        one.step()
        service.store.url = reachable
        return bool(one._running)

    assert step()
    ended_process(one)
    assert (outcomes(service), states(service)) == (["lost"], {"a": "queued"})
    assert "its process could not reach the store" in service.queue.require("vision.a").reason
    assert not step(), "it would be lost again at once"
    now[0] += AWAY_SECONDS
    assert step()
    for running in one._running.values():
        running.process.kill()
        running.process.wait(120.0)


def test_a_store_that_is_away_for_a_moment_hears_how_a_run_ended(service: TestedService) -> None:
    job = service.queue.submit(plain_submission("vision.a"))
    turn = started(service)
    assert turn.job.run is not None
    left = [1]

    def refuse(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE automl_job_runs") and left:
            left.pop()
            raise AWAY

    sa.event.listen(service.store.engine, "before_cursor_execute", refuse)
    assert job_process.run(service.store, turn.job.run.id) == "failed"
    assert service.queue.require(job.study).state == "failed"
    assert not left


def test_a_run_whose_start_nobody_heard_of_is_given_back(service: TestedService) -> None:
    service.studies().submit(spec_of("a"))
    one = worker_here(service)
    service.queue.take_turn(one._id, 1)  # and the answer was lost
    one._beat()
    assert (outcomes(service), states(service)) == (["lost"], {"a": "queued"})


@pytest.mark.medium
def test_a_worker_that_leaves_hands_that_on_and_ends_while_the_store_is_away(service, monkeypatch):
    service.studies().submit(spec_of("a"))
    now, signals = [0.0], []
    one = worker_here(service, clock=lambda: now[0])
    one.step()
    (running,) = one._running.values()

    def away(*_: Any) -> Any:
        raise AWAY

    for name in ("beat", "end_run", "leave"):
        monkeypatch.setattr(service.queue, name, away)
    with monkeypatch.context() as patch:
        patch.setattr(running.process, "send_signal", signals.append)
        one.leave("SIGTERM")
        for _ in range(3):
            now[0] += BEAT_SECONDS
            with pytest.raises(OperationalError):
                one.step()
    assert signals == [signal.SIGTERM]
    running.process.kill()
    running.process.wait(120.0)
    one._running.clear()
    one.run()


def test_what_the_store_does_not_answer_or_refuses_is_told_once(service, monkeypatch):
    now, told = [0.0], []
    one = worker_here(service, clock=lambda: now[0])
    one.log = lambda line, level="info", **_: told.append((level, line))
    refused = ProgrammingError("SELECT 1", None, sqlite3.ProgrammingError("no such column: nobody"))
    found = iter([AWAY, AWAY, refused, refused, None, AWAY])

    def beat(_worker_id: int) -> Any:
        if problem := next(found):
            raise problem
        return 0.0, {}

    monkeypatch.setattr(service.queue, "beat", beat)
    for _ in range(6):
        now[0] += BEAT_SECONDS
        one._step_or_tell()
    goes_on = "jobs keep running, the worker tries again"
    is_away = ("warning", f"the store does not answer (the server closed the connection); {goes_on}")
    is_wrong = ("error", f"the store refuses a query of the worker (no such column: nobody); {goes_on}")
    assert told == [is_away, is_wrong, is_away]


DRAINS_SLOWLY = "import signal, time; signal.signal(15, lambda *_: None); print(flush=True); time.sleep(600)"


class SlowlyDraining(Worker):
    """A worker whose jobs are real processes that do not end when they are asked to drain."""

    def _process(self, turn: Start, run: Run) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", DRAINS_SLOWLY], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"\n", "it listens to signals"
        return process

    def living(self) -> list[str]:
        return [one.job.study for one in self._running.values() if one.process.poll() is None]

    def kill_all(self) -> None:
        """End all its processes."""
        for running in self._running.values():
            running.process.kill()
            with running.process:
                running.process.wait(120.0)


class Team:
    """Workers that take turns by `step`, on a clock that the test moves."""

    def __init__(self, service: TestedService, names: str) -> None:
        self.service, self.now = service, 0.0
        self.workers = [self.join(name) for name in names]

    def join(self, name: str) -> SlowlyDraining:
        one = SlowlyDraining(
            queue=self.service.queue, name=name, device="cpu", slots=1, log_folder=self.service.folder,
            log=lambda *_, **__: None, clock=lambda: self.now,
        )  # fmt: skip
        one._join()
        return one

    def step(self, seconds: float = 0.0) -> None:
        """Let time pass, and all workers look."""
        self.now += seconds
        for one in self.workers:
            one.step()

    def pass_unseen(self, seconds: float, *names: str) -> None:
        """Let time pass for the store's clock, in which no worker, or none of these, reaches the store."""
        w = t.workers.c
        which = w.name.in_(names) if names else sa.true()
        with self.service.store.engine.begin() as connection:
            connection.execute(sa.update(t.workers).where(which).values(expires_at=w.expires_at - seconds))
        self.now += 0.0 if names else seconds

    def living(self) -> dict[str, list[str]]:
        return {one.name: one.living() for one in self.workers}


@pytest.fixture
def team(service: TestedService) -> Iterator[Callable[[str, str], Team]]:
    """Makes workers of one slot each, and jobs, by their letters."""
    made: list[Team] = []

    def make(names: str, jobs: str) -> Team:
        for job in jobs:
            service.queue.submit(plain_submission(job, user=job))
        made.append(Team(service, names))
        return made[-1]

    yield make
    for one in made:
        for member in one.workers:
            member.kill_all()


@pytest.mark.medium
def test_a_worker_that_was_given_up_starts_nothing_on_slots_where_its_old_jobs_still_drain(team):
    one = team("wo", "ab")
    frozen, other = one.workers
    other.leave("it only gives the first one up")
    one.step()
    assert one.living() == {"w": ["a"], "o": []}
    one.pass_unseen(20.0, "w")
    assert isinstance(one.service.queue.take_turn(other._id, 0), Wait)
    for _ in range(3):
        one.now += BEAT_SECONDS
        frozen.step()
        assert frozen.living() == ["a"], "one process for each slot"
    frozen.kill_all()
    frozen.step()
    assert len(frozen.living()) == 1, "its slot is free again"


@pytest.mark.medium
@pytest.mark.parametrize("seconds", [12.0, 600.0])
def test_no_run_is_lost_by_a_time_in_which_nobody_reaches_the_database(team, seconds):
    one = team("uvw", "abcd")
    one.step()
    before = one.living()
    assert before == {"u": ["a"], "v": ["b"], "w": ["c"]}
    one.pass_unseen(seconds)
    for _ in range(20):
        one.step(1.0)
    assert one.living() == before
    assert outcomes(one.service) == [None, None, None]


@pytest.mark.medium
def test_a_worker_that_stays_away_after_such_a_time_is_given_up(team: Callable[[str, str], Team]) -> None:
    """Also by one that has just come, as after the power of all workers has failed."""
    one = team("vw", "ab")
    one.step()
    gone = one.workers.pop()
    one.workers.append(one.join("x"))
    one.pass_unseen(600.0)
    one.step()
    assert outcomes(one.service) == [None, None]
    for _ in range(int(EXPIRY_SECONDS)):
        one.step(1.0)
    assert outcomes(one.service) == [None, "lost", None]
    assert one.living() == {"v": ["a"], "x": ["b"]}
    gone.kill_all()


@pytest.mark.medium
@pytest.mark.ray
def test_a_study_ends_within_its_users_money(service: TestedService, warm_pool: LentPool, monkeypatch) -> None:
    """Slots cost so much that the user's limit ends the study; what is late on a busy machine is no cent."""
    run_here(monkeypatch, warm_pool)
    with_policy(service, usd_per_slot_hour=2.0)
    service.studies("root", "ops", "admin").set_limit("user", "ann", 0.002)
    budget = {"usd": 1.0, "hours": None, "trials": 200}
    free = {"slots": 1, "price_per_slot_hour": 0.0}
    service.studies().submit(spec_of("a", resources=free, training={"epochs": 50}, budget=budget))
    worker_id = service.queue.register("w", device="cpu", slots=1)
    turn = service.queue.take_turn(worker_id, 1)
    assert job_process.run(service.store, turn.job.run.id) == "capped"
    assert isinstance(service.queue.take_turn(worker_id, 1), Wait)
    assert service.queue.require("vision.a").reason.startswith("waits for money")
    assert outcomes(service) == ["capped"], "it is not started again for what is left"
    account = service.queue.accounts()[0]
    assert 0.8 * 0.002 * NANO <= account.spent_nano_usd <= 0.002 * NANO + 0.001 * NANO
    assert findings(service) == []


@pytest.mark.medium
@pytest.mark.slow
def test_a_study_survives_its_workers(service: TestedService) -> None:
    """One worker is killed, the next one told to leave; the third ends the study, and nothing is lost or paid twice."""
    budget = {"usd": 1.0, "hours": None, "trials": 3}
    service.studies().submit(spec_of("a", training={"epochs": 200}, budget=budget))
    with worker(service.store, service.folder, "first") as first:
        wait_until(lambda: epochs(service) >= 3, "epochs of the first worker")
        first.kill()
        with worker(service.store, service.folder, "second") as second:
            wait_until(lambda: worker_of(service, "vision.a") == "second", "the second worker")
            before = epochs(service)
            wait_until(lambda: epochs(service) >= before + 10, "epochs of the second worker")
            second.terminate()
            second.wait(120.0)
            assert states(service) == {"a": "queued"}
            with worker(service.store, service.folder, "third"):
                wait_until(lambda: states(service) == {"a": "done"}, "the end")
    assert findings(service) == []


@pytest.mark.medium
@pytest.mark.slow
def test_a_frozen_worker_loses_its_job_and_comes_back(service: TestedService) -> None:
    budget = {"usd": 1.0, "hours": None, "trials": 4}
    service.studies().submit(spec_of("a", training={"epochs": 60}, budget=budget))
    with worker(service.store, service.folder, "frozen") as frozen:
        wait_until(lambda: epochs(service) >= 3, "epochs of the first worker")
        tree = [psutil.Process(frozen.pid), *psutil.Process(frozen.pid).children(recursive=True)]
        for process in tree:
            process.suspend()
        try:
            with worker(service.store, service.folder, "other"):
                wait_until(lambda: worker_of(service, "vision.a") == "other", "a move")
                wait_until(lambda: states(service) == {"a": "done"}, "the end")
        finally:
            for process in tree:
                if process.is_running():
                    process.resume()
        wait_until(lambda: [line.name for line in service.queue.workers()] == ["frozen"], "its return")
    assert findings(service) == []


@pytest.mark.medium
@pytest.mark.slow
def test_a_higher_priority_gets_its_slots_and_the_displaced_study_goes_on(service: TestedService) -> None:
    budget = {"usd": 1.0, "hours": None, "trials": 2}
    service.studies().submit(spec_of("low", training={"epochs": 400}, budget=budget))
    with worker(service.store, service.folder, "w"):
        wait_until(lambda: epochs(service) >= 3, "epochs of the first study")
        service.studies("root", "vision", "admin").submit(spec_of("high"), priority=10)
        wait_until(lambda: states(service) == {"low": "queued", "high": "running"}, "room")
        wait_until(lambda: states(service) == {"low": "done", "high": "done"}, "both ends")
    assert findings(service) == []


@pytest.mark.medium
@pytest.mark.slow
def test_a_broken_study_fails_with_its_reason_and_a_dying_process_is_tried_again(service, tmp_path):
    with_policy(service, data_folders=(tmp_path,))
    service.studies().submit(spec_of("a", training={"epochs": 2000}))
    absent = str(tmp_path / "absent.csv")
    service.studies().submit(spec_of("b", task="tabular", task_options={"train": absent, "target": "y"}))
    with worker(service.store, service.folder, "w", slots=2) as one:
        wait_until(lambda: states(service)["b"] == "failed", "the broken one")
        assert "absent.csv" in service.queue.require("vision.b").reason
        wait_until(lambda: epochs(service) >= 1, "an epoch of the other one")
        for child in psutil.Process(one.pid).children():
            child.kill()
        wait_until(lambda: epochs(service) >= 1 and states(service)["a"] == "running", "its next run")
        service.studies().stop("a")
        wait_until(lambda: states(service)["a"] == "stopped", "the stop")


@pytest.mark.parametrize("slots", ["auto", 2])
def test_a_job_has_the_slots_and_the_price_that_launch_would_give_it(service, monkeypatch, slots):
    monkeypatch.setattr(available_slots, "available_cpus", lambda: 8.0)
    resources = {"slots": slots, "cpus_per_rank": 4, "device": "cpu"}
    service.studies().submit(spec_of("a", resources=resources))
    turn = started(service, slots=8)
    launched = prepare(parse_spec(spec_of("a", resources=resources)), source="a", base_folder=service.folder)
    assert job_process._prepared(service.queue, turn.job).place == launched.place


def test_what_is_kept_of_a_cap_is_a_share_of_what_is_left_of_it(service: TestedService) -> None:
    """Confirmations of a study are in its ledger, and in its cap."""
    service.studies().submit(spec_of("a"))
    turn = started(service)
    assert turn.job.run is not None
    run = replace(turn.job.run, cap_nano_usd=NANO)
    job = replace(turn.job, run=run, limit_nano_usd=None, confirmed_nano_usd=NANO * 99 // 100)
    resources = {"slots": 1, "price_per_slot_hour": 36_000.0}  # ten dollars a second
    prepared = prepare(parse_spec(spec_of("a", resources=resources)), source="a", base_folder=service.folder)
    assert job_process._within(prepared, job).spec.budget.usd == pytest.approx(1.0 - 0.01 * MARGIN_SHARE)


@pytest.mark.parametrize(("devices", "seen"), [((), ""), (("4", "6"), "6")])
def test_a_job_sees_the_gpus_of_its_slots_and_none_of_a_worker_on_cpus(service, monkeypatch, devices, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    device = "cuda" if devices else "cpu"
    one = Worker(
        queue=service.queue, name="w", device=device, slots=2, log_folder=service.folder, log=lambda *_, **__: None,
        devices=devices,
    )  # fmt: skip
    service.studies().submit(spec_of("a"))
    turn = started(service, slots=2, device=device)
    assert one._environment(replace(turn, slot_numbers=(1,)))["CUDA_VISIBLE_DEVICES"] == seen
