"""Runs the `automl` command as a user does, in a folder of its own, on the cluster that the tests share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from automl import cli
from studies.records import TrialRecord
from studies.storage.engine import exists
from studies.storage.reader import load_study
from studies.storage.store import Store

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
    """A folder with specs, and the command run in it."""

    def __init__(self, folder: Path, ray_address: str | None) -> None:
        self.folder = folder
        self.ray_address = ray_address
        (folder / "faulty_tasks.py").write_text((TESTS / "faulty_tasks.py").read_text())

    def spec(self, mapping: dict[str, Any], **sections: Any) -> Path:
        """Write a spec; sections are merged into it."""
        merged = json.loads(json.dumps(mapping))
        for name, value in sections.items():
            if isinstance(value, dict) and isinstance(merged.get(name), dict):
                merged[name] |= value
            else:
                merged[name] = value
        merged["resources"] = {"ray_address": self.ray_address, **merged.get("resources", {})}
        path = self.folder / f"{merged['study']}.yaml"
        path.write_text(yaml.safe_dump(merged, sort_keys=False))
        return path

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [AUTOML, *map(str, arguments)], cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "COLUMNS": "160"}, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: object, code: int | None = 0, seconds: float = 150) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        assert code is None or done.returncode == code, (
            f"exit {done.returncode}, wanted {code}\n{out[-2000:]}\n{err[-3000:]}"
        )
        return done

    def json(self, *arguments: object, code: int | None = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def wait_for(
        self, holds: Callable[[tuple[TrialRecord, ...]], bool], study: str, seconds: float = 90
    ) -> tuple[TrialRecord, ...]:
        """Poll the store until something holds of the started trials, of which there is at least one."""
        url, deadline = f"sqlite:///{self.folder}/automl.db", time.monotonic() + seconds
        while time.monotonic() < deadline:
            if exists(url):
                with closing(Store(url)) as store:
                    started = load_study(store, study).started if study in store.study_names() else ()
                if started and holds(started):
                    return started
            time.sleep(0.05)
        raise AssertionError(f"it did not come about in {seconds} s")


def finish(process: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str, str]:
    with process:
        out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def interrupt(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGINT)


class InProcess:
    """A folder in which commands run inside this process, which is faster than in their own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch
        monkeypatch.chdir(folder)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, and what went to stdout and stderr."""
        self._monkeypatch.setattr(sys, "argv", ["automl", *arguments])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        out, err = self._capsys.readouterr()
        return code, out, err

    def refused(self, *arguments: str) -> str:
        """Run a command that must be refused with one line; what the folder holds must stay as it is."""
        before = self._contents()
        code, out, err = self.run(*arguments)
        assert (code, out) == (2, ""), err
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        assert self._contents() == before
        return err

    def _contents(self) -> dict[str, bytes | None]:
        everything = {path for path in self.folder.rglob("*") if "__pycache__" not in path.parts}
        return {str(path): path.read_bytes() if path.is_file() else None for path in everything}
