"""Peers that live in environments of their own: a process there answers one line of JSON with another.

An environment is made when it is first needed, in a cache folder, with nothing of ours in it.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What is installed beside the standard library.

    Attributes:
        name: Name of the environment's folder in the cache, with the version of its main library.
        installs: Arguments of `pip install`, one call each, in this order.
    """

    name: str
    installs: tuple[tuple[str, ...], ...]

    @property
    def folder(self) -> Path:
        """Where it is, or will be; each version of Python has its own."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "automl-benchmarks"
        return cache / f"{self.name}-py{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def is_complete(self) -> bool:
        """Whether everything was installed."""
        return self._done.exists()

    @property
    def _done(self) -> Path:
        return self.folder / "complete"

    def python(self) -> Path:
        """Its interpreter; made once, whoever comes first."""
        python = self.folder / "bin" / "python"
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.folder.with_name(f"{self.folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.is_complete:
                venv.create(self.folder, with_pip=True, clear=True)
                pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                for arguments in self.installs:
                    subprocess.run([*pip, *arguments], check=True, stdout=sys.stderr)
                self._done.touch()
        return python


class Bridge:
    """A process of another environment, which ends when ours does.

    Args:
        script: What it runs: answers each line of JSON on stdin with a line of JSON on stdout.
        environment: Where it runs.
    """

    def __init__(self, script: Path, environment: Environment) -> None:
        self._name = script.stem
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(environment.python()), str(script)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )
        atexit.register(self.close)

    def ask(self, question: Mapping[str, Any]) -> Any:
        """Its answer.

        Raises:
            RuntimeError: It has died; its traceback is on stderr.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that runs {self._name} has died")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@functools.cache
def bridge(script: Path, environment: Environment) -> Bridge:
    """One for each process of the benchmark."""
    return Bridge(script, environment)
