"""Syne Tune's MOASHA as shipped, in an environment of its own: its scheduler decides, our virtual time drives it.

Its order at a rung is an argsort read as ranks, so that a newest trial that nothing dominates may be stopped; that is
part of what is measured. Random search, rungs 3, 9, 27, stopping variant. The environment is made when it is first
needed, in a cache folder.
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
from pathlib import Path
from typing import Any

from studies.search.policy import Decision, History
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner
from studies.simulation import Setting

VERSION = "0.16.0"
NEEDS = ("numpy", "pandas", "typing_extensions", "sortedcontainers", "dill", "psutil", "tqdm", "scikit-learn")
BRIDGE = Path(__file__).with_name("syne_bridge.py")


class SyneMoasha(NoPruner):
    """Asks the other process at each rung.

    Args:
        setting: Of the simulation.
    """

    def __init__(self, setting: Setting) -> None:
        self._asha = MoAsha()
        self._bridge = _bridge()
        order = {"seed": setting.seed, "max_t": setting.epochs, "grace": self._asha.grace, "eta": self._asha.eta}
        self._bridge.ask({"new": order | {"metrics": [objective.metric for objective in setting.objectives]}})

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """3, 9, 27, ..."""
        return self._asha.rungs(epochs)

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """What its scheduler says."""
        values = list(history.at_rung[rung][number])
        said = self._bridge.ask({"result": {"trial": number, "epoch": rung, "values": values}})
        return Decision(action="stop" if said == "STOP" else "continue", reason=f"the scheduler says {said}")


class Bridge:
    """A process of the other environment that answers one line of JSON with another."""

    def __init__(self, python: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [str(python), str(BRIDGE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        atexit.register(self._process.kill)

    def ask(self, question: dict[str, Any]) -> Any:
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
            raise RuntimeError("the process that runs Syne Tune's MOASHA has died")
        return json.loads(line)


@functools.cache
def _bridge() -> Bridge:
    """One for each process of the benchmark."""
    return Bridge(environment())


def environment() -> Path:
    """The interpreter of an environment with Syne Tune in it; made once, whoever comes first."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "automl-benchmarks"
    folder = cache / f"syne-tune-{VERSION}-py{sys.version_info.major}.{sys.version_info.minor}"
    cache.mkdir(parents=True, exist_ok=True)
    python, done = folder / "bin" / "python", folder / "complete"
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *NEEDS], check=True, stdout=sys.stderr)
            # Its optional parts want much more than its scheduler does.
            subprocess.run([*pip, "--no-deps", f"syne-tune=={VERSION}"], check=True, stdout=sys.stderr)
            done.touch()
    return python
