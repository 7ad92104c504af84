"""Processes of a local cluster that this process has started."""

import contextlib
import os
import signal
from pathlib import Path

from studies.storage.leases.processes import started_at

_VITAL = ("raylet", "gcs_server")
"""Processes without which a local cluster is dead, which Ray itself notices only after minutes, or never."""


class OwnCluster:
    """A local cluster whose processes are children of this process."""

    def __init__(self) -> None:
        self._started: dict[tuple[str, int], float] = {}
        for pid in _children():
            start = started_at(pid)
            if start is not None and (name := _name(pid)) in _VITAL:
                self._started[name, pid] = start

    def what_died(self) -> str:
        """Return the name of a vital process that has died; empty while all run."""
        for (name, pid), start in self._started.items():
            if started_at(pid) != start:
                return f"{name} (process {pid})"
        return ""


def end_vital_processes() -> None:
    """Kill the vital processes of a half-started cluster; Ray's other processes end with them."""
    for pid in _children():
        if _name(pid) in _VITAL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    try:
        lists = [path.read_text(encoding="ascii") for path in Path("/proc/self/task").glob("*/children")]
    except OSError:
        return []
    return [int(pid) for text in lists for pid in text.split()]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def own_node() -> str:
    """Return Ray's id of this process's node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())
