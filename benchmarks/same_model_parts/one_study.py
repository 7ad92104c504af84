"""One study of same_model.py: launched, killed at a random moment if that is asked for, resumed, and checked."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

FEWEST_EPOCHS = 16
"""Epochs that each study records at least: every one of its trials trains one."""
_POLL_SECONDS = 0.05
_LATEST_SECONDS = 1.0
_STUDY_SECONDS = 1800.0
"""Time limit of each command, for hangs only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A study in a folder of its own, with a store and a database of MLflow of its own.

    Attributes:
        name: Name of the study.
        folder: The folder, which holds `spec.yaml`.
        environment: Environment of its processes.
    """

    name: str
    folder: Path
    environment: dict[str, str]

    @property
    def store(self) -> str:
        """URL of the store."""
        return f"sqlite:///{self.folder}/automl.db"

    def launch(self, kill: random.Random | None) -> dict[str, Any]:
        """Launch it and see it to its end.

        Args:
            kill: Draws the moment at which the controller is killed by signal 9; None lets it live.

        Returns:
            `killed_at_epochs`, the number of recorded epochs at the kill, where there was one.

        Raises:
            SystemExit: It failed, or ended before it was killed.
        """
        controller = self._start("launch", "spec.yaml", "--json")
        if kill is None:
            self._wait(controller)
            return {}
        wanted, later = kill.randrange(1, FEWEST_EPOCHS), kill.uniform(0.0, _LATEST_SECONDS)
        killed_at = self._kill(controller, wanted, later)
        self._wait(self._start("resume", self.name, "--json"))
        return {"killed_at_epochs": killed_at}

    def check(self, program: Path) -> dict[str, Any]:
        """Let a program compare what the command line, Optuna, MLflow and the store tell, and return what it says.

        The program is called with the store's URL, the study's name, the URL of MLflow, the path of `automl` and the
        least number of trials; its exit code is 0 if all tell the same.
        """
        automl = str(Path(sys.executable).with_name("automl"))
        mlflow = f"sqlite:///{self.folder}/mlflow.db"
        words = [sys.executable, str(program), self.store, self.name, mlflow, automl, str(FEWEST_EPOCHS)]
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()
        return {"check_passed": done.returncode == 0, "check": said[-1] if said else ""}

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "automl", *words]
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    def _wait(self, controller: subprocess.Popen[bytes]) -> None:
        code = controller.wait(_STUDY_SECONDS)
        if code:
            self._fail(f"exit code {code}")

    def _kill(self, controller: subprocess.Popen[bytes], epochs: int, later: float) -> int:
        """Kill the controller so many seconds after so many epochs were recorded."""
        while self._recorded_epochs() < epochs:
            if controller.poll() is not None:
                self._fail(f"ended with exit code {controller.returncode} before it was killed")
            time.sleep(_POLL_SECONDS)
        time.sleep(later)  # so that the moment does not depend on a commit
        if controller.poll() is not None:
            self._fail(f"ended with exit code {controller.returncode} before it was killed")
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
        return self._recorded_epochs()

    def _recorded_epochs(self) -> int:
        file = self.folder / "automl.db"
        if not file.exists():
            return 0
        try:
            with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
                return int(connection.execute("select count(*) from automl_epochs").fetchone()[0])
        except sqlite3.OperationalError:  # no table yet
            return 0

    def _fail(self, how: str) -> NoReturn:
        said = (self.folder / "log.txt").read_text(errors="replace")[-3000:]
        raise SystemExit(f"{self.name}: {how}\n{said}")
