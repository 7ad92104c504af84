"""Studies through a real SLURM of two nodes: time limits, another run after each, an end from outside."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from studies.records.records import StudyRecord
from studies.storage.reading.reader import load_study
from studies.storage.schema import tables as t
from studies.storage.schema.engine import exists
from studies.storage.study_store import Store
from tests.support.command_line import AUTOML, SLOW, Workplace
from tests.support.slurm import Slurm, slurm

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(3600)]
WAIT_SECONDS = 900.0
LONG, WARNING_SECONDS = "00:20:00", 180
STUDY: dict[str, Any] = {
    "search": {"sampler": "random", "pruner": {"name": "none"}, "seed": 0}, "training": {"epochs": 12},
    "budget": {"usd": None, "hours": 0.5, "trials": 8}, "mlflow": "off",
    "space": {**SLOW["space"], "fault": {"type": "categorical", "choices": ["very slow"]}},
}  # fmt: skip
ALONE: dict[str, Any] = {
    "resources": {"slots": 1},
    "space": {**STUDY["space"], "world_size": {"type": "categorical", "choices": [1]}},
    "budget": {"usd": None, "hours": 0.5, "trials": 2},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm() as running:
        yield running


class Submitted:
    """A study that `automl submit --slurm --follow` has submitted, and follows."""

    def __init__(self, place: Workplace, cluster: Slurm, spec: Path, *options: object) -> None:
        self.cluster, self.folder = cluster, place.folder
        arguments = [
            "submit", spec, "--slurm", "--follow", "--time", LONG, "--warning-seconds", WARNING_SECONDS, *options,
        ]  # fmt: skip
        self.process = place.start(*arguments, environment=cluster.environment)
        self._store: Store | None = None
        self.name = spec.stem
        self.job = ""
        self.until(self._is_known)

    def _is_known(self) -> bool:
        asked = ("squeue", "--noheader", "--name", f"automl-{self.name}", "--format", "%A")
        self.job = self.cluster.ask(*asked).strip()
        return bool(self.job)

    @property
    def record(self) -> StudyRecord | None:
        url = f"sqlite:///{self.folder}/automl.db"
        if self._store is None and exists(url):
            self._store = Store(url)
        is_there = self._store is not None and self.name in self._store.study_names()
        return load_study(self._store, self.name) if is_there else None

    @property
    def epochs(self) -> int:
        return sum(len(trial.epochs) for trial in self.record.trials) if self.record else 0

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert self.process.poll() is None, (self.process.communicate(), self.log)
            assert time.monotonic() < deadline, self.log
            time.sleep(0.5)

    def reaches_its_time_limit(self) -> None:
        """Let the limit of the present run be near: SLURM signals, the study drains, and the job queues again."""
        state = self.cluster.job(self.job)
        minutes = 1 + sum(int(part) * scale for part, scale in zip(state["RunTime"].split(":"), (60, 1), strict=False))
        self.cluster.ask("scontrol", "update", f"JobId={self.job}", f"TimeLimit={minutes}")
        restarts = int(state["Restarts"]) + 1
        self.until(lambda: int(self.cluster.job(self.job)["Restarts"]) == restarts)
        self.cluster.ask("scontrol", "update", f"JobId={self.job}", f"TimeLimit={LONG}")

    @property
    def log(self) -> str:
        return "".join(file.read_text() for file in sorted(self.folder.glob("automl-*.log")))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    place = Workplace(tmp_path, None, has_mlflow=False)
    yield place
    place.end_processes()


def audited(place: Workplace, study: str) -> None:
    done = subprocess.run(
        [AUTOML, "audit", study, "--json"], cwd=place.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["findings"] == []


@pytest.mark.medium
def test_a_study_over_two_nodes_survives_two_time_limits(cluster: Slurm, place: Workplace) -> None:
    study = Submitted(place, cluster, place.spec(SLOW, **STUDY, study="limits"), "--nodes", 2, "--cpus-per-task", 1)
    again = place.start("submit", place.folder / "limits.yaml", "--slurm", environment=cluster.environment)
    assert f"SLURM job {study.job} already runs limits. End the job first: `scancel" in again.communicate()[1]
    assert again.returncode == 2
    for _ in range(2):
        before = study.epochs
        study.until(lambda before=before: study.epochs >= before + 5)
        study.reaches_its_time_limit()
    told, problems = study.process.communicate(timeout=WAIT_SECONDS)
    assert study.process.returncode == 0, (told, problems, study.log)
    assert cluster.job(study.job)["Restarts"] == "2"
    for line in ("pending", "running on one,two", "completed", "of 8 ("):
        assert line in told
    record = study.record
    assert record.state == "closed"
    assert [trial.state for trial in record.trials] == ["complete"] * 8
    assert all(len(trial.epochs) == 12 for trial in record.trials), "each epoch once"
    assert not [one for one in record.charges if one.kind == "lost"], "the drains lost nothing"
    with study._store.snapshot() as connection:
        leases = connection.execute(t.leases.select()).all()
    assert len(leases) == 3
    assert study.log.count("the job queues again") == 2
    audited(place, "limits")


@pytest.mark.medium
def test_a_job_that_is_cancelled_does_not_queue_again_and_another_goes_on(cluster: Slurm, place: Workplace) -> None:
    spec = place.spec(SLOW, **{**STUDY, **ALONE}, study="cancelled")
    study = Submitted(place, cluster, spec, "--cpus-per-task", 1)
    study.until(lambda: study.epochs >= 3)
    cluster.ask("scancel", study.job)
    told, problems = study.process.communicate(timeout=WAIT_SECONDS)
    assert study.process.returncode in {1, 130}, told
    assert "cancelled" in told + problems
    assert cluster.job(study.job)["Restarts"] == "0"
    study = Submitted(place, cluster, spec, "--cpus-per-task", 1)
    told, problems = study.process.communicate(timeout=WAIT_SECONDS)
    assert study.process.returncode == 0, (told, problems, study.log)
    assert study.record.state == "closed"
    audited(place, "cancelled")
