"""Runs the `automl` command as a user does, in a folder of its own, on the cluster that the tests share.

A study is launched in this process on the warm pool that the tests share, unless the test says otherwise: a process of
its own loads torch four times and MLflow once before its first trial. `Workplace.start` is for tests in which a process
dies, gets a signal, or meets a second one.
"""

import contextlib
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from automl import cli
from automl.launching import prepared_study
from studies.records.records import StudyRecord, TrialRecord
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.schema.engine import exists
from studies.storage.study_store import Store
from studies.storage.views.mirror import catch_up, keep_report
from tests.support.databases import mlflow_database
from tests.support.ray_pool import LentPool

AUTOML = str(Path(sys.executable).parent / "automl")
TESTS = Path(__file__).parent

DIGITS: dict[str, Any] = {
    "study": "small",
    "task": "digits",
    "space": {
        "learning_rate": {"type": "float", "low": 0.01, "high": 1.0, "log": True},
        "batch_per_rank": {"type": "categorical", "choices": [32, 64]},
        "world_size": {"type": "categorical", "choices": [1, 2]},
        "architecture": {"type": "categorical", "choices": ["mlp"]},
        "width": {"type": "int", "low": 16, "high": 64, "when": {"architecture": "mlp"}},
    },
    "training": {"epochs": 6},
    "search": {"sampler": "tpe", "pruner": {"name": "mo_asha", "grace": 2, "eta": 2}, "seed": 3},
    "budget": {"usd": 1.0, "hours": 0.5, "trials": 14},
    "resources": {"slots": 2},
}

SLOW: dict[str, Any] = {
    "study": "slow",
    "task": "faulty_tasks:Faulty",
    "space": {
        "learning_rate": {"type": "float", "low": 0.01, "high": 0.5, "log": True},
        "batch_per_rank": {"type": "categorical", "choices": [8]},
        "world_size": {"type": "categorical", "choices": [2]},
        "fault": {"type": "categorical", "choices": ["slow"]},
        "at_epoch": {"type": "categorical", "choices": [99]},
    },
    "training": {"epochs": 5, "warmup_epochs": 0, "reference_batch": 64},
    "search": {"sampler": "tpe", "pruner": {"name": "mo_asha", "grace": 2, "eta": 2}, "seed": 0},
    "budget": {"usd": 1.0, "hours": 0.5, "trials": 8},
    "resources": {"slots": 2},
}


class Workplace:
    """A folder with specs, and commands run in it: in this process (`run`, `json`), or in their own (`start`)."""

    def __init__(self, folder: Path, pool: LentPool | None, *, has_mlflow: bool = True) -> None:
        self.folder, self.pool = folder, pool
        self._started: list[subprocess.Popen[str]] = []
        self._out = io.StringIO()
        (folder / "faulty_tasks.py").write_text((TESTS / "faulty_tasks.py").read_text())
        if has_mlflow:
            (folder / "mlflow.db").write_bytes(mlflow_database())

    def spec(self, mapping: dict[str, Any], **sections: Any) -> Path:
        """Write a spec; sections are merged into it."""
        merged = json.loads(json.dumps(mapping))
        for name, value in sections.items():
            if isinstance(value, dict) and isinstance(merged.get(name), dict):
                merged[name] |= value
            else:
                merged[name] = value
        shared = {} if self.pool is None else {"ray_address": self.pool.ray_address}
        merged["resources"] = {**shared, **merged.get("resources", {})}
        path = self.folder / f"{merged['study']}.yaml"
        path.write_text(yaml.safe_dump(merged, sort_keys=False))
        return path

    def start(self, *arguments: object, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command in a process of its own, on slots of its own; `environment` adds to this process's."""
        process = subprocess.Popen(
            [AUTOML, *map(str, arguments)], cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {}), "COLUMNS": "160"}, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def end_processes(self) -> None:
        """Kill what a test that failed has left behind."""
        for process in self._started:
            if process.returncode is None:
                process.kill()
                process.communicate()

    def run(
        self, *arguments: object, code: int | None = 0, meanwhile: Callable[[], object] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in this process."""
        with self._here() as (patch, out, err), _in_thread(meanwhile):
            returned = _exit_code_of(arguments, patch)
        done = subprocess.CompletedProcess(["automl", *map(str, arguments)], returned, out.getvalue(), err.getvalue())
        assert code is None or returned == code, (
            f"exit {returned}, wanted {code}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        )
        return done

    @contextlib.contextmanager
    def _here(self) -> Iterator[tuple[pytest.MonkeyPatch, io.StringIO, io.StringIO]]:
        """Let this process work in the folder and on the pool, with its output in two buffers."""
        out, err = io.StringIO(), io.StringIO()
        self._out = out
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.chdir(self.folder)
            patch.setenv("COLUMNS", "160")
            run_here(patch, self.pool)
            patch.setattr("automl.launching.prepared_study.ask", _ask_once)
            yield patch, out, err

    def script(self, source: str) -> str:
        """Run a program of Python in this process, as its `__main__`; returns what went to stdout."""
        path = self.folder / "script.py"
        path.write_text(source)
        with self._here() as (patch, out, _):
            patch.syspath_prepend(self.folder)
            runpy.run_path(str(path), run_name="__main__")
        return out.getvalue()

    def record(self, study: str) -> StudyRecord:
        """The study as it is stored now."""
        with closing(Store(f"sqlite:///{self.folder}/automl.db")) as store:
            return load_study(store, study)

    def order_stop(self, study: str) -> None:
        """Order what `automl stop` does, which takes seconds to start where another command runs in this process."""
        with closing(Store(f"sqlite:///{self.folder}/automl.db")) as store:
            assert leases.request_stop(store, store.require(study).id)

    def kill_rank(self, slot: int) -> None:
        """Kill a process of the pool."""
        assert self.pool is not None
        os.kill(self.pool.pool._slots[slot].pid, signal.SIGKILL)

    def json(self, *arguments: object, code: int | None = 0) -> Any:
        """What a command answers with `--json`."""
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def audit(self, study: str, seconds: float = 60) -> None:
        """Audit a study, and find nothing; processes of commands that were killed may take a while to notice it."""
        deadline = time.monotonic() + seconds
        while True:
            findings = self.json("audit", study, code=None)["findings"]
            if {one["check"] for one in findings} != {"processes"} or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        assert findings == []

    def wait_until_said(self, words: str, seconds: float = 30) -> None:
        """Wait until a command that runs in this process has written something on its stdout."""
        deadline = time.monotonic() + seconds
        while words not in self._out.getvalue():
            assert time.monotonic() < deadline, f"{words!r} was not said in {seconds} s: {self._out.getvalue()!r}"
            time.sleep(0.05)

    def wait_for(
        self, holds: Callable[[tuple[TrialRecord, ...]], bool], study: str, seconds: float = 200
    ) -> tuple[TrialRecord, ...]:
        """Poll the store until something holds of the started trials, of which there is at least one."""
        url, deadline = f"sqlite:///{self.folder}/automl.db", time.monotonic() + seconds
        while not exists(url):
            assert time.monotonic() < deadline, f"no store was made in {seconds} s"
            time.sleep(0.1)
        with closing(Store(url)) as store:  # opened once: checking its tables takes more than reading them
            while time.monotonic() < deadline:
                started = load_study(store, study).started if study in store.study_names() else ()
                if started and holds(started):
                    return started
                time.sleep(0.1)
        raise AssertionError(f"it did not come about in {seconds} s")


def run_here(patch: pytest.MonkeyPatch, pool: LentPool | None) -> None:
    """Let studies that this process drives train on a pool of the tests, and be mirrored in this process."""
    patch.setattr("automl.launching.study_run.RayPool", lambda **_options: pool)
    for module in ("automl.launching.study_run", "automl.stored.reporting"):
        patch.setattr(f"{module}.ViewsProcess", ViewsInThisProcess)


class ViewsInThisProcess:
    """Stands in for the process that keeps the views: mirrors the study here, once somebody waits for it."""

    def __init__(self, store_url: str, study: str) -> None:
        self._store_url, self._study = store_url, study

    def start(self) -> None:
        """Nothing runs beside the study."""

    def hurry(self) -> None:
        """Nobody waits yet."""

    def wait_until_caught_up(self, _seconds: float) -> bool:
        """Mirror what was committed."""
        with closing(Store(self._store_url)) as store:
            return not any(catch_up(store, self._study).values())

    def keep_report(self, report: Path, _seconds: float) -> bool:
        """Keep the report."""
        with closing(Store(self._store_url)) as store:
            keep_report(store, self._study, report)
        return True

    def stop(self) -> None:
        """Nothing runs."""


_answers: dict[str, dict[str, Any]] = {}


def _ask_once(
    question: Mapping[str, Any], source: str, *, ask: Callable[..., dict[str, Any]] = prepared_study.ask
) -> dict[str, Any]:
    """What a task of one's own takes and gives; equal questions are asked once, since each loads torch anew."""
    (folder,) = question["python_path"]
    task = Path(folder) / f"{question['task'].partition(':')[0].replace('.', '/')}.py"
    key = json.dumps([task.read_text(), {**question, "python_path": None}])
    if key not in _answers:
        _answers[key] = ask(question, source)
    return _answers[key]


def _exit_code_of(arguments: tuple[object, ...], patch: pytest.MonkeyPatch) -> Any:
    """Run a command in this process."""
    patch.setattr(sys, "argv", ["automl", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as ended:
        return ended.code or 0
    return 0


@contextlib.contextmanager
def _in_thread(action: Callable[[], object] | None) -> Iterator[None]:
    """Call something in a thread until the end of the block, where what it raised is raised."""
    raised: list[BaseException] = []

    def act() -> None:
        try:
            if action is not None:
                action()
        except BaseException as error:  # noqa: BLE001 - it is raised in the test's own thread
            raised.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if raised:
        raise raised[0]


def finish(process: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str, str]:
    with process:
        out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def interrupt(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGINT)


def message_of(stderr: str) -> str:
    """The error of a command on one line, as JSON has it; on stderr its cure is on a second line."""
    problem, *cure = stderr.splitlines()
    assert problem.startswith("automl: "), stderr
    assert len(cure) <= 1, stderr
    return ". ".join([problem, *cure])


class InProcess:
    """A folder in which commands run inside this process, which is faster than in their own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch
        monkeypatch.chdir(folder)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, and what went to stdout and stderr."""
        code = _exit_code_of(arguments, self._monkeypatch)
        out, err = self._capsys.readouterr()
        return code, out, err

    def refused(self, *arguments: str) -> str:
        """Return the error of a command that must be refused; what the folder holds must stay as it is."""
        before = self._contents()
        code, out, err = self.run(*arguments)
        assert (code, out) == (2, ""), err
        assert self._contents() == before
        return message_of(err)

    def _contents(self) -> dict[str, bytes | None]:
        everything = {path for path in self.folder.rglob("*") if "__pycache__" not in path.parts}
        return {str(path): path.read_bytes() if path.is_file() else None for path in everything}
