"""A node that this process lends to another controller's cluster: a child process with Ray's processes below it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Literal

from search_spaces.outside_text import last_line
from studies.gangs.shared_cluster import SharedCluster, interface_of, token_environment
from studies.storage.processes import of_session
from trainers.protocol import GROUP_INTERFACE

DRAIN_SECONDS = 20.0
"""Time that gangs have to leave a node whose lender was told to end."""
GONE_SECONDS = 3.0
"""Time that the kernel has to take away processes that were killed."""
_LOOK_SECONDS = 0.05
_LONGEST_CAUSE = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Devices:
    """What a controller lends: as many slots as it would use itself.

    Attributes:
        address: Address of this machine on which the others reach it.
        device: Kind of slot.
        slots: Number of slots.
        cpus_per_rank: Number of CPUs of a CPU slot.
    """

    address: str
    device: Literal["cpu", "cuda"]
    slots: int
    cpus_per_rank: int


class LentNode:
    """A node of somebody else's cluster, from its start to `end`.

    Start it in a thread that lives as long as the node: the kernel ends it with that thread.

    Args:
        cluster: Cluster that the node joins.
        devices: Devices that it brings.
    """

    def __init__(self, cluster: SharedCluster, devices: Devices) -> None:
        order = {
            "lender": os.getpid(),
            "cluster": cluster.address,
            "address": devices.address,
            "cpus": devices.slots * devices.cpus_per_rank,
            "gpus": devices.slots if devices.device == "cuda" else 0,
        }
        environment = {
            **os.environ,
            **token_environment(cluster.token),
            GROUP_INTERFACE: interface_of(devices.address),
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": f"{DRAIN_SECONDS:g}",
        }
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        # A session of its own: signals of a terminal reach the lender, which ends the node in order.
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-P", "-m", "studies.gangs.lent_node_program", json.dumps(order)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
        )
        self.since = time.monotonic()

    @property
    def pid(self) -> int:
        """Id of the program, and of the session of the whole node."""
        return self._process.pid

    def why_ended(self) -> str:
        """What ended the node, in one line; empty as long as it lives."""
        # The program is not waited for before `end`: its id names the session that is killed there.
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return ""
        self._said.seek(0)
        text = self._said.read().decode(errors="replace")
        return last_line(text, f"exit code {ended.si_status}").strip()[:_LONGEST_CAUSE]

    def end(self, *, drains: bool) -> None:
        """End all processes of the node.

        Args:
            drains: Whether gangs get the time to end their epochs, at most `DRAIN_SECONDS`.
        """
        if drains and not self.why_ended():
            self._process.terminate()
            deadline = time.monotonic() + DRAIN_SECONDS
            while not self.why_ended() and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
        self._kill_all()
        self._process.wait()
        self._said.close()

    def _kill_all(self) -> None:
        """Kill the session of the node, and wait for its end: a rank could write what the next leader would delete.

        Ray gives each worker a process group of its own; it leaves the session as it is.
        """
        deadline = time.monotonic() + GONE_SECONDS
        while (alive := of_session(self.pid)) and time.monotonic() < deadline:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_SECONDS)
