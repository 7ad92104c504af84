"""Lending devices: a controller that stands by is a node of the cluster of the one that drives the study."""

from __future__ import annotations

import time
from collections.abc import Callable

from studies.gangs.lent_node import Devices, LentNode
from studies.gangs.shared_cluster import SharedCluster, problem_of_folder

RETRY_SECONDS = 5.0
"""Time between the end of a node and the start of the next one for the same cluster."""
QUIET_ENDS = 1
"""Number of ends in a row that nobody is told of: the leader's cluster ends shortly before its lease."""
SETTLED_SECONDS = 60.0
"""Life of a node after which its end is not one in a row of failures."""


class Lender:
    """Lends devices to whichever cluster is told of, one at a time.

    Args:
        devices: Devices to lend.
        folder: Path or URL of the folder of the study's checkpoints, which has to be the leader's.
        say: Function that is called with a line when devices are lent.
        warn: Function that is called with a line when they cannot be.
    """

    def __init__(
        self, devices: Devices, folder: str, *, say: Callable[[str], None], warn: Callable[[str], None]
    ) -> None:
        self._devices, self._folder = devices, folder
        self._say, self._warn = say, warn
        self._cluster: SharedCluster | None = None
        self._node: LentNode | None = None
        self._warned = ""
        self._ends, self._not_before = 0, 0.0

    def look(self, cluster: SharedCluster | None, leader: str) -> None:
        """Join a cluster, leave the one before, or join again after the node has died.

        Args:
            cluster: Cluster of the controller that drives the study; None if it shares none.
            leader: Name of that controller, for people.
        """
        if cluster != self._cluster:
            self.end(drains=False)
            self._cluster, self._warned, self._ends, self._not_before = cluster, "", 0, 0.0
        if cluster is None:
            return
        if self._node is not None and (cause := self._node.why_ended()):
            self._forget_dead_node(cause)
        if self._node is None and time.monotonic() >= self._not_before:
            self._join(cluster, leader)

    def end(self, *, drains: bool) -> None:
        """Take the devices back.

        Args:
            drains: Whether gangs there get the time to end their epochs.
        """
        node, self._node = self._node, None
        if node is not None:
            node.end(drains=drains)

    def _join(self, cluster: SharedCluster, leader: str) -> None:
        problem = problem_of_folder(self._folder, cluster)
        if problem:
            self._warn_once(f"devices are not lent: {problem}; it has to be one folder at the same path everywhere")
            return
        try:
            self._node = LentNode(cluster, self._devices)
        except OSError as error:
            self._not_before = time.monotonic() + RETRY_SECONDS
            self._warn_once(f"devices are not lent: no process can be started ({error.strerror}); it is tried again")
            return
        slots = self._devices.slots
        if not self._ends:
            self._say(f"lends {slots} slot{'' if slots == 1 else 's'} to {leader}")

    def _forget_dead_node(self, cause: str) -> None:
        node, self._node = self._node, None
        if node is None:
            return
        self._ends = 1 if time.monotonic() - node.since > SETTLED_SECONDS else self._ends + 1
        self._not_before = time.monotonic() + RETRY_SECONDS
        node.end(drains=False)
        if self._ends > QUIET_ENDS:
            self._warn_once(f"the node that lends devices has ended ({cause}); it is started again")

    def _warn_once(self, line: str) -> None:
        """Warn of a problem, once for each cluster."""
        if line != self._warned:
            self._warned = line
            self._warn(line)
