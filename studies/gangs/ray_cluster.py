"""Joining a Ray cluster, or starting one here, and what it has room for."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Any, Literal

from studies.gangs import ray_start
from studies.gangs.node_watch import slots_of_nodes
from studies.gangs.own_cluster import end_vital_processes
from studies.gangs.protocol import PoolError

log = logging.getLogger(__name__)

CONNECT_DEADLINE_SECONDS = 10.0
STARTS = 3
"""Number of times that a local cluster is tried to be started."""
_TOO_SLOW = "timed out during startup"
OBJECT_STORE_BYTES = 128 * 1024**2
SETTINGS: Mapping[str, str] = {
    # Usage statistics of a study are private.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Without a cluster Ray would start one by itself, from whatever thread asks it for something.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # Ray gives its workers niceness 15, so a single busy process of anybody leaves a rank 3 % of its core, while the
    # study pays for the whole time.
    "RAY_worker_niceness": "0",
}
"""What Ray reads from the environment before its first start."""
_LOOK_SECONDS = 0.5


def join_or_start(
    address: str | None,
    *,
    slots: int,
    device: Literal["cpu", "cuda"],
    cpus_per_rank: int,
    temp_folder: str | None,
    must_fit: bool = True,
) -> bool:
    """Join a cluster, or start one here with so many slots.

    Args:
        address: Address of an existing cluster, or None to start one.
        slots: Number of slots in the pool.
        device: Kind of device that a slot is.
        cpus_per_rank: Number of CPUs of a slot.
        temp_folder: Folder for the files of a new cluster.
        must_fit: Whether the cluster has to have room for all slots now.

    Returns:
        Whether a new cluster was started, which then is this process's to end.

    Raises:
        PoolError: The cluster cannot be reached or started, or is too small; the message has the numbers.
    """
    ray = import_ray()
    starts = address is None and not ray.is_initialized()
    options: dict[str, Any] = {
        "num_cpus": slots * cpus_per_rank,
        "num_gpus": slots if device == "cuda" else 0,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": temp_folder,
    }
    connect(address, **(options if starts else {}))
    if must_fit:
        _check_room(slots, device, cpus_per_rank)
    return starts


def connect(address: str | None, **options: Any) -> None:
    """Join a cluster, or start a local one with the options.

    Raises:
        PoolError: One line that says why not.
    """
    ray = import_ray()
    if ray.is_initialized():
        return
    # Token authentication is what this program wants: only a warning that it is off is worth a line.
    said_by = logging.getLogger("ray._private.authentication.authentication_token_setup")
    said_by.addFilter(lambda record: not record.getMessage().startswith("Token authentication is enabled"))
    if address == "auto":  # as Ray reads it; what it names may be on the loopback interface, or be gone
        address = os.environ.get("RAY_ADDRESS") or address
    if address is not None:
        check_reachable(address)
    try:
        _init_patiently(address, options)
    except Exception as error:  # Ray raises bare ones too, for instance when a node is slow to start
        where = f"resources.ray_address: cannot use {address}" if address else "Ray: cannot start a local cluster"
        raise PoolError(f"{where}: {' '.join(str(error).split())[:300]}") from error


def _init_patiently(address: str | None, options: Mapping[str, Any]) -> None:
    """Join or start a cluster; a start that is too slow for Ray, which waits 30 s for a node, is tried again.

    On a machine with company a node may take longer, and a study would end before it has begun.
    """
    for left in reversed(range(STARTS)):
        try:
            ray_start.init(address, **options)
        except Exception as error:
            if address is not None or not left or _TOO_SLOW not in str(error):
                raise
            log.warning("this machine is too busy for Ray's node to start in time; it is tried again")
            end_vital_processes()
        else:
            return


def wait_for_nodes(address: str, nodes: int, seconds: float) -> None:
    """Wait until a cluster that is being started has so many nodes; stays connected.

    Args:
        address: Host and port of the cluster's head, which this machine is a node of.
        nodes: Number of nodes.
        seconds: Longest time to wait.

    Raises:
        PoolError: They have not come in time; the message has the numbers.
    """
    deadline, found, problem = time.monotonic() + seconds, 0, ""
    while time.monotonic() < deadline:
        try:
            connect(address)
            found = sum(node["Alive"] for node in import_ray().nodes())
        except PoolError as error:  # its head is not there yet
            problem = f" ({error})"
        if found >= nodes:
            return
        time.sleep(_LOOK_SECONDS)
    raise PoolError(f"Ray: {nodes} nodes are wanted at {address}, found {found} within {seconds:g} s{problem}")


def import_ray() -> Any:
    """Import Ray with the settings that it reads from the environment."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


def check_reachable(address: str) -> None:
    """Ask whether a process listens there: Ray itself tries for minutes, and then ends the process.

    Raises:
        PoolError: No process does.
    """
    host, sign, port = address.removeprefix("ray://").rpartition(":")
    if address in {"auto", "local"}:
        return
    try:
        if not sign or not port.isdigit():
            raise ValueError("it is not of the form HOST:PORT, ray://HOST:PORT or auto")
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_DEADLINE_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise PoolError(f"resources.ray_address: found {address!r}, which does not answer ({error})") from None


def _check_room(slots: int, device: Literal["cpu", "cuda"], cpus_per_rank: int) -> None:
    import ray

    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    kind, each = ("GPU", 1.0) if device == "cuda" else ("CPU", float(cpus_per_rank))
    there = slots_of_nodes(ray.nodes(), 0 if device == "cuda" else cpus_per_rank)  # type: ignore[no-untyped-call]
    if there < slots:
        need = f"{slots} slots x {each:g} {kind} = {slots * each:g} {kind}"
        room = f"room for {there} slots, each on one node"
        raise PoolError(f"Ray: {need} are wanted, the cluster has {resources.get(kind, 0):g}: {room}")


def cluster_room(address: str, cpus_per_rank: int) -> tuple[int, tuple[str, ...]]:
    """Number of CPU slots for which the nodes of a cluster have room, and the names of its GPUs; stays connected.

    Args:
        address: Address of the cluster.
        cpus_per_rank: Number of CPUs of a CPU slot, all of them on one node.

    Raises:
        PoolError: The cluster cannot be reached.
    """
    import ray

    connect(address)
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    names = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
    gpus = int(resources.get("GPU", 0))
    cpu_slots = slots_of_nodes(ray.nodes(), cpus_per_rank)  # type: ignore[no-untyped-call]
    return cpu_slots, ((names or ["GPU"])[0],) * gpus
