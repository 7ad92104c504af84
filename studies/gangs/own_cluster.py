"""The processes of a local cluster that this process has started, and what of a cluster is still there."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from studies.storage.leases.processes import started_at

_VITAL = ("raylet", "gcs_server")
"""Processes of Ray without which a local cluster is dead. Ray itself needs minutes to notice, or never does."""


class OwnCluster:
    """A local cluster that this process has started, and whose processes are its children."""

    def __init__(self) -> None:
        self._started: dict[tuple[str, int], float] = {}
        for pid in _children():
            start = started_at(pid)
            if start is not None and (name := _name(pid)) in _VITAL:
                self._started[name, pid] = start

    def what_died(self) -> str:
        """The process of the cluster that is gone, for people; empty as long as all run."""
        for (name, pid), start in self._started.items():
            if started_at(pid) != start:
                return f"{name} (process {pid})"
        return ""


def end_vital_processes() -> None:
    """End the processes of a cluster that this process has half started; Ray's others end with them."""
    for pid in _children():
        if _name(pid) in _VITAL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    """Ids of this process's children; none where the system does not tell them."""
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
    """Ray's id of the node that this process is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())
