"""The sbatch script: what it asks for, what is refused, and what it does at each end of the study and at each signal.

Here programs stand in for Python and `scontrol`; tests/automl/clusters/test_slurm_studies.py runs it in SLURM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from automl.clusters import next_run
from automl.clusters.slurm_script import Allocation, script_of, seconds_of
from automl.clusters.slurm_submission import JobState, follow, state_of
from automl.terminal.progress import Lines
from search_spaces.messages import RunError, UserError
from studies.spec.study_spec import StudySpec, parse_spec
from studies.storage.leases import lease
from studies.storage.study_store import Store
from tests.support.command_line import DIGITS, Workplace
from tests.support.waiting import wait_until

WAIT_SECONDS = 120.0
PYTHON = """#!/usr/bin/env bash
echo "$*" > called
case "$BEHAVIOUR" in
    ends) exit "$CODE" ;;
    drains) trap 'echo drained > drained; exit 130' TERM ;;
    hangs) trap '' TERM ;;
esac
echo started > started
while :; do sleep 0.05; done
"""
SCONTROL = """#!/usr/bin/env bash
echo "$*" >> requeued
"""


def allocation(**changed: Any) -> Allocation:
    given = {"nodes": 1, "gpus_per_node": 0, "cpus_per_task": 4, "time": "04:00:00", "warning_seconds": 300}
    return Allocation(**{**given, **changed})


def spec_of(**sections: Any) -> StudySpec:
    return parse_spec({**DIGITS, **sections}, "test")


def script(folder: Path, made: Allocation | None = None, **sections: Any) -> str:
    return script_of(spec_of(**sections), folder / "small.yaml", made or allocation(), folder=folder)


class Run:
    """A run of the script on this machine, its Python and SLURM's command replaced."""

    def __init__(self, folder: Path, behaviour: str, code: int = 0, *, warning_seconds: int = 300) -> None:
        self.folder = folder
        programs = folder / "programs"
        programs.mkdir()
        for name, text in (("python", PYTHON), ("scontrol", SCONTROL)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        file = folder / "job"
        file.write_text(script(folder, allocation(warning_seconds=warning_seconds)))
        self.process = subprocess.Popen(
            ["bash", file], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "AUTOML_PYTHON": str(programs / "python"),
                 "SLURM_JOB_ID": "7", "BEHAVIOUR": behaviour, "CODE": str(code)},
        )  # fmt: skip

    def until(self, name: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, name
            time.sleep(0.02)

    def ended(self) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, said

    @property
    def requeued(self) -> str:
        file = self.folder / "requeued"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(*arguments: Any, **options: Any) -> Run:
        runs.append(Run(tmp_path, *arguments, **options))
        return runs[-1]

    yield start
    for one in runs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.communicate()


@pytest.mark.medium
@pytest.mark.parametrize(("code", "wanted"), [(0, 0), (3, 0), (1, 1), (2, 2), (130, 130)])
def test_a_study_that_ends_by_itself_does_not_queue_again(code: int, wanted: int, run: Any) -> None:
    """130 without a warning is `automl stop`: whoever stopped it does not want it to go on."""
    one = run("ends", code)
    assert one.ended()[0] == wanted
    assert one.requeued == ""
    assert (one.folder / "called").read_text().split()[-3:] == [str(one.folder / "small.yaml"), "small", "null"]


@pytest.mark.medium
def test_a_study_that_drains_at_the_warning_queues_again(run: Any) -> None:
    one = run("drains")
    one.until("started")
    one.process.send_signal(signal.SIGUSR1)
    one.process.send_signal(signal.SIGUSR1)
    code, said = one.ended()
    assert (code, one.requeued) == (0, "requeue 7\n"), said
    assert (one.folder / "drained").exists()
    assert "job 7, run 1: the time limit is near; the study drains" in said


@pytest.mark.medium
def test_a_drain_that_takes_too_long_queues_again_before_the_limit(run: Any) -> None:
    one = run("hangs", warning_seconds=10)
    one.until("started")
    one.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: one.requeued)  # the file is there before its text
    assert one.requeued == "requeue 7\n"


@pytest.mark.medium
def test_an_end_from_outside_drains_and_does_not_queue_again(run: Any) -> None:
    one = run("drains")
    one.until("started")
    os.killpg(one.process.pid, signal.SIGTERM)  # SLURM signals all processes of a job
    code, said = one.ended()
    assert (code, one.requeued) == (130, ""), said


@pytest.mark.medium
def test_a_job_asks_for_what_was_said(tmp_path: Path) -> None:
    text = script(tmp_path, allocation(nodes=3, gpus_per_node=2, partition="gpu", account="team"))
    for line in (
        "--nodes=3", "--gpus-per-node=2", "--cpus-per-task=4", "--time=04:00:00", "--partition=gpu", "--account=team",
        "--signal=B:USR1@300", "--requeue", "--open-mode=append", "--job-name=automl-small",
    ):  # fmt: skip
        assert f"\n#SBATCH {line}\n" in text
    assert "--nodes=2 --ntasks=2 --exclude" in text, "workers on all nodes but the head's"
    alone = script(tmp_path, allocation())
    assert "ray.scripts" not in alone, "a study on one node has a cluster of its own, on the loopback interface"
    for written in (text, alone):
        assert subprocess.run(["bash", "-n"], input=written, text=True, check=False).returncode == 0


@pytest.mark.medium
def test_names_with_blanks_and_quotes_are_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "my 'own' $(touch harm) folder"
    folder.mkdir()
    text = script(folder)
    line = next(line for line in text.splitlines() if line.startswith("cd "))
    done = subprocess.run(["bash", "-c", f"{line}; pwd"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == str(folder)
    assert not list(tmp_path.rglob("harm"))


def test_a_password_is_not_written_down(tmp_path: Path) -> None:
    text = script(tmp_path, store="postgresql://me:secret-word@db.example/automl")
    assert "secret-word" not in text
    assert "AUTOML_STORE:?" in text
    assert "sqlite:///" in script(tmp_path)


@pytest.mark.parametrize(
    ("changed", "sections", "problem"),
    [
        ({"time": "soon"}, {}, r"--time: found 'soon', allowed: at least a minute"),
        ({"time": "00:00:30"}, {}, r"--time: found '00:00:30'"),
        ({"time": "00:05:00"}, {}, r"--warning-seconds: found 300, allowed: 10 to 150 .half of --time 00:05:00"),
        ({"warning_seconds": 5}, {}, r"--warning-seconds: found 5"),
        ({"partition": "a b"}, {}, r"--partition: found 'a b'"),
        ({"account": "$(id)"}, {}, r"--account: found"),
        ({}, {"resources": {"device": "cuda"}}, r"--gpus-per-node is 0, .* at least 1 GPU per node"),
        ({}, {"resources": {"slots": 5}}, r"resources.slots is 5, but 1 nodes with 4 CPUs, .* have room for 4"),
        ({"nodes": 2}, {"resources": {"cpus_per_rank": 8}}, r"resources.slots is auto, .* have room for 0"),
    ],
)
def test_what_slurm_would_not_take_is_refused(changed: Any, sections: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem):
        script(tmp_path, allocation(**changed), **sections)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("01:30", 90), ("02:00:05", 7205), ("1-00", 86400), ("1-01:30", 91800), ("2-00:00:30", 172830)],
)
def test_time_limits_are_read_as_slurm_reads_them(time: str, seconds: int) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.medium
def test_files_of_others_stay(tmp_path: Path) -> None:
    place = Workplace(tmp_path, None, has_mlflow=False)
    spec = place.spec(DIGITS)
    before = spec.read_text()
    done = place.run("export-cluster", "slurm", spec, "--out", spec, code=2)
    assert "`automl export-cluster` did not write it" in done.stderr
    assert spec.read_text() == before
    for _ in range(2):  # its own it writes again
        done = place.run("export-cluster", "slurm", spec)
    assert (tmp_path / "small.sbatch").stat().st_mode & 0o100
    assert "the store is SQLite" in done.stderr


@pytest.mark.medium
def test_without_slurm_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Workplace(tmp_path, None, has_mlflow=False)
    spec = place.spec(DIGITS)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "this machine has no sbatch" in place.run("submit", spec, "--slurm", code=2).stderr
    assert "--follow and --out need --slurm" in place.run("submit", spec, "--follow", code=2).stderr
    assert not (tmp_path / "small.sbatch").exists()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("echo 'PENDING|BeginTime|'", JobState(state="PENDING", reason="BeginTime")),
        ("echo 'RUNNING|None|one,two'", JobState(state="RUNNING", reason="None", nodes="one,two")),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", JobState(state="GONE")),
    ],
)
def test_the_state_of_a_job(answer: str, state: JobState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert state_of("7") == state


class Silence:
    """SLURM's controller, whose looks at a job find these states, or nothing while it is silent, and a clock."""

    def __init__(self, states: Iterable[str | None]) -> None:
        self.now, self.told, self._states = 1000.0, list[str](), iter(states)

    def followed(self) -> str:
        """Follow the job to its end; returns its state then."""
        lines = Lines(Console(file=sys.stderr))
        job, record = follow(
            self._look, lambda: None, self.told.append, lines, sleep=self._pass, clock=lambda: self.now
        )
        assert record is None
        return job.state

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def _look(self) -> JobState:
        state = next(self._states)
        if state is None:
            raise RunError("SLURM: squeue: slurm_load_jobs error: Unable to contact slurm controller")
        return JobState(state=state)


def test_a_job_is_followed_through_its_runs() -> None:
    slurm = Silence(["PENDING", "RUNNING", "RUNNING", "PENDING", "RUNNING", "COMPLETED"])
    assert slurm.followed() == "COMPLETED"
    assert slurm.told == ["pending", "running", "pending", "running", "completed"]
    assert slurm.now == 1000.0 + 5 * 5.0


def test_slurm_may_be_silent_for_ten_minutes_at_a_time() -> None:
    silent = [None] * 100
    slurm = Silence([*silent, "PENDING", "RUNNING", *silent, "RUNNING", None, "COMPLETED"])
    assert slurm.followed() == "COMPLETED"
    unknown = slurm.told[0]
    assert "unknown state now (SLURM: squeue: slurm_load_jobs error: Unable to contact slurm controller)" in unknown
    assert slurm.told[1:] == ["pending", "running", unknown, "running", unknown, "completed"]


def test_who_follows_gives_up_after_ten_minutes_without_slurm() -> None:
    slurm = Silence(["RUNNING", *[None] * 200])
    with pytest.raises(RunError, match="Unable to contact slurm controller"):
        slurm.followed()
    assert slurm.now == 1000.0 + 5.0 + 600.0


@pytest.mark.medium
@pytest.mark.parametrize(("is_there", "words"), [(False, ["launch", "a.yaml"]), (True, ["resume", "small"])])
def test_the_first_run_launches_and_others_go_on(is_there, words, tmp_path, monkeypatch):
    """A run waits for the lease of the run before, whose controller was killed on another host."""
    called: list[list[str]] = []
    url = f"sqlite:///{tmp_path}/store.db"
    if is_there:
        store = Store(url)
        number = store.create_study("small", {}, ".", 1.0)
        held = lease.acquire(store, number)
        monkeypatch.setattr("automl.clusters.next_run.time.sleep", lambda _: lease.release(store, held))
    monkeypatch.setenv("AUTOML_STORE", url)
    monkeypatch.setattr(sys, "argv", ["next_run", "a.yaml", "small", '"10.0.0.5:6379"'])
    monkeypatch.setattr(os, "execv", lambda _, arguments: called.append(arguments[3:]))
    next_run.main()
    assert called == [[*words, "--set", 'resources.ray_address="10.0.0.5:6379"']]
    if is_there:
        assert lease.current_holder(store, number) is None
