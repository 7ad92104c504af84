"""The processes of a local cluster that this process has started, and what of a cluster is still there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from studies.storage.processes import started_at

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


def slots_of_nodes(nodes: list[Mapping[str, object]], cpus_per_slot: int) -> int:
    """Number of slots for which living nodes have devices, whoever uses them.

    Args:
        nodes: Nodes of the cluster as `ray.nodes` returns them.
        cpus_per_slot: Number of CPUs of a slot; 0 if a slot is a GPU.
    """
    kind, each = ("CPU", cpus_per_slot) if cpus_per_slot else ("GPU", 1)
    living = [node["Resources"] for node in nodes if node["Alive"]]
    return sum(int(resources.get(kind, 0) // each) for resources in living if isinstance(resources, Mapping))


def room_for(cpus_per_slot: int) -> int:
    """Number of slots for which the cluster has devices now, see `slots_of_nodes`."""
    import ray

    return slots_of_nodes(ray.nodes(), cpus_per_slot)  # type: ignore[no-untyped-call]
