"""Controllers of one study that share their devices: real processes on 127.0.0.1, each with a slot of its own."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from tests.support.command_line import AUTOML, SLOW, Workplace

ADDRESS = "127.0.0.1"
START_SECONDS = 120.0


class SharingControllers:
    """A study with controllers that come and go.

    Args:
        folder: Folder of the study.
        sections: Sections of the spec that differ from those of the tests' slow study.
    """

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.place = Workplace(folder, None)
        given: dict[str, Any] = {
            "search": {"sampler": "random", "pruner": "none"}, "resources": {"slots": 1, "price_per_slot_hour": 1.0},
            "space": {"world_size": {"type": "categorical", "choices": [1]}}, "mlflow": "off",
            "checkpoints": {"every_seconds": 0.2}, "budget": {"trials": 8, "hours": None},
        }  # fmt: skip
        space = {**SLOW["space"], **given.pop("space"), **sections.pop("space", {})}
        self.spec = self.place.spec(SLOW, space=space, **{**given, **sections})
        self.database = folder / "automl.db"
        self.family: list[psutil.Process] = []
        self._processes: list[subprocess.Popen[str]] = []

    def begin(self) -> subprocess.Popen[str]:
        """Start a controller."""
        process = self.place.start("launch", self.spec, "--share-on", ADDRESS)
        self._processes.append(process)
        return process

    def begin_both(self) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
        """Start a leader, and once it shares its cluster a standby; returns when the standby's slot has trained."""
        leader = self.begin()
        self.until(lambda: bool(self.shared))
        standby = self.begin()
        self.until(lambda: self.has_trained_on(1))
        self.note_processes()
        return leader, standby

    def rows(self, query: str) -> list[Any]:
        """Rows of the store; none as long as it has no tables."""
        if not self.database.exists():
            return []
        try:
            with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)) as connection:
                return connection.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []

    @property
    def shared(self) -> list[Any]:
        """Address and token of the cluster that can be joined now."""
        return self.rows(
            "select cluster_address, cluster_token from automl_leases "
            "where released_at is null and cluster_address is not null"
        )

    @property
    def leader(self) -> int | None:
        """Process id of the controller that drives."""
        return next((pid for (pid,) in self.rows("select pid from automl_leases where released_at is null")), None)

    def has_trained_on(self, slot: int, lease: int = 1) -> bool:
        """Whether an epoch was measured in an attempt of a lease that holds the slot."""
        attempts = self.rows(
            "select a.slots from automl_attempts a join automl_epochs e on e.trial_id = a.trial_id "
            f"where a.lease_id = {lease} and e.measured_at > a.started_at"
        )
        return any(slot in json.loads(slots) for (slots,) in attempts)

    def until(self, holds: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait until something holds, as long as a controller runs."""
        deadline = time.monotonic() + seconds
        while not holds():
            alive = [one for one in self._processes if one.poll() is None]
            assert alive, [one.communicate() for one in self._processes]
            assert time.monotonic() < deadline, self.rows("select slots, outcome, lease_id from automl_attempts")
            time.sleep(0.1)

    def note_processes(self) -> None:
        """Remember all processes of the controllers, so that `left` can tell which ones stay."""
        for one in self._processes:
            try:
                process = psutil.Process(one.pid)
                self.family += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue

    def left(self, seconds: float = 20.0) -> list[str]:
        """Processes that were there before, and have not ended within that time."""
        _, alive = psutil.wait_procs(set(self.family), timeout=seconds)
        return [" ".join(one.cmdline())[:200] for one in alive if one.status() != psutil.STATUS_ZOMBIE]

    def audit(self) -> dict[str, Any]:
        """What `automl audit` finds."""
        done = subprocess.run(
            [AUTOML, "audit", "slow", "--json"], cwd=self.place.folder, capture_output=True, text=True, check=False
        )
        return {"exit_code": done.returncode, **json.loads(done.stdout or "{}")}

    def outcomes(self) -> list[str]:
        """How the attempts ended, in their order."""
        return [one for (one,) in self.rows("select outcome from automl_attempts order by id")]

    def repeated_epochs(self) -> list[Any]:
        """Epochs of trials that have more than one row."""
        return self.rows("select trial_id, epoch from automl_epochs group by 1, 2 having count(*) > 1")

    def nodes_of(self, address: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """What a client of Ray hears that asks for the nodes of a cluster."""
        code = (
            f"from studies.gangs.ray_cluster import connect; connect({address!r}); "
            "import ray; print('nodes', len(ray.nodes()))"
        )
        home = {"PATH": "/usr/bin:/bin", "HOME": str(self.place.folder), "RAY_USAGE_STATS_ENABLED": "0"}
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200,
            env={**home, **environment},
        )  # fmt: skip

    def end(self) -> None:
        """Kill what a test that failed has left behind."""
        self.note_processes()
        self.place.end_processes()
        for one in set(self.family):
            if one.is_running():
                one.kill()
