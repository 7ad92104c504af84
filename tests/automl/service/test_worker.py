"""Workers with real processes: studies run to their ends, whatever happens to the workers, and no limit is passed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from automl.stored.auditing import audit
from studies.records import NANO
from studies.storage import tables as t
from tests.support.service import TestedService, spec_of, with_policy

PATIENCE_SECONDS = 240.0


@contextmanager
def worker(service: TestedService, name: str, slots: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, which has ended with all it has started when the block ends."""
    command = [sys.executable, "-m", "automl", "worker", "--slots", str(slots), "--name", name, "--device", "cpu"]
    environment = {**os.environ, "AUTOML_STORE": service.store.url}
    with (service.folder / f"{name}.log").open("wb") as log:
        one = subprocess.Popen(command, cwd=service.folder, env=environment, stderr=log)
        try:
            yield one
        finally:
            children = psutil.Process(one.pid).children(recursive=True) if one.poll() is None else []
            one.send_signal(signal.SIGTERM)
            try:
                one.wait(60.0)
            except subprocess.TimeoutExpired:
                one.kill()
            for child in psutil.wait_procs(children, timeout=30.0)[1]:
                child.kill()


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited too long: {what}"
        time.sleep(0.2)


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


@pytest.mark.ray
def test_a_study_runs_to_its_end_within_its_users_money(service: TestedService) -> None:
    """Slots cost so much that the user's limit ends the study; what is late on a busy machine is no cent."""
    with_policy(service, usd_per_slot_hour=2.0)
    service.studies("root", "ops", "admin").set_limit("user", "ann", 0.004)
    budget = {"usd": 1.0, "hours": None, "trials": 200}
    free = {"slots": 1, "price_per_slot_hour": 0.0}
    service.studies().submit(spec_of("a", resources=free, training={"epochs": 50}, budget=budget))
    with worker(service, "w"):
        wait_until(lambda: service.queue.require("vision.a").reason.startswith("waits for money"), "the limit")
    account = service.queue.accounts()[0]
    assert 0.8 * 0.004 * NANO <= account.spent_nano_usd <= 0.004 * NANO + 0.001 * NANO
    assert findings(service) == []


@pytest.mark.slow
def test_a_study_survives_its_workers(service: TestedService) -> None:
    """One worker is killed, the next one told to leave; the third ends the study, and nothing is lost or paid twice."""
    budget = {"usd": 1.0, "hours": None, "trials": 3}
    service.studies().submit(spec_of("a", training={"epochs": 200}, budget=budget))
    with worker(service, "first") as first:
        wait_until(lambda: epochs(service) >= 3, "epochs of the first worker")
        first.kill()
        with worker(service, "second") as second:
            wait_until(lambda: worker_of(service, "vision.a") == "second", "the second worker")
            before = epochs(service)
            wait_until(lambda: epochs(service) >= before + 10, "epochs of the second worker")
            second.terminate()
            second.wait(120.0)
            assert states(service) == {"a": "queued"}
            with worker(service, "third"):
                wait_until(lambda: states(service) == {"a": "done"}, "the end")
    assert findings(service) == []


@pytest.mark.slow
def test_a_frozen_worker_loses_its_job_and_comes_back(service: TestedService) -> None:
    budget = {"usd": 1.0, "hours": None, "trials": 4}
    service.studies().submit(spec_of("a", training={"epochs": 60}, budget=budget))
    with worker(service, "frozen") as frozen:
        wait_until(lambda: epochs(service) >= 3, "epochs of the first worker")
        tree = [psutil.Process(frozen.pid), *psutil.Process(frozen.pid).children(recursive=True)]
        for process in tree:
            process.suspend()
        try:
            with worker(service, "other"):
                wait_until(lambda: worker_of(service, "vision.a") == "other", "a move")
                wait_until(lambda: states(service) == {"a": "done"}, "the end")
        finally:
            for process in tree:
                if process.is_running():
                    process.resume()
        wait_until(lambda: [line.name for line in service.queue.workers()] == ["frozen"], "its return")
    assert findings(service) == []


@pytest.mark.slow
def test_a_higher_priority_gets_its_slots_and_the_displaced_study_goes_on(service: TestedService) -> None:
    budget = {"usd": 1.0, "hours": None, "trials": 2}
    service.studies().submit(spec_of("low", training={"epochs": 60}, budget=budget))
    with worker(service, "w"):
        wait_until(lambda: epochs(service) >= 3, "epochs of the first study")
        service.studies("root", "vision", "admin").submit(spec_of("high"), priority=10)
        wait_until(lambda: states(service) == {"low": "queued", "high": "running"}, "room")
        wait_until(lambda: states(service) == {"low": "done", "high": "done"}, "both ends")
    assert findings(service) == []


@pytest.mark.slow
def test_a_broken_study_fails_with_its_reason_and_a_dying_process_is_tried_again(
    service: TestedService, tmp_path: Path
) -> None:
    with_policy(service, data_folders=(tmp_path,))
    service.studies().submit(spec_of("a", training={"epochs": 2000}))
    absent = str(tmp_path / "absent.csv")
    service.studies().submit(spec_of("b", task="tabular", task_options={"train": absent, "target": "y"}))
    with worker(service, "w", slots=2) as one:
        wait_until(lambda: states(service)["b"] == "failed", "the broken one")
        assert "absent.csv" in service.queue.require("vision.b").reason
        wait_until(lambda: epochs(service) >= 1, "an epoch of the other one")
        for child in psutil.Process(one.pid).children():
            child.kill()
        wait_until(lambda: epochs(service) >= 1 and states(service)["a"] == "running", "its next run")
        service.studies().stop("a")
        wait_until(lambda: states(service)["a"] == "stopped", "the stop")
