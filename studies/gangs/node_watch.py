"""Finds dead and preempted nodes of a joined cluster, and counts the devices that are left.

Ray notices a silent node only after 10 to 40 seconds, which the study pays. This module therefore connects to the port
of each node's Ray process (raylet). If the process died, its host refuses; if the host died, nothing answers.
"""

import errno
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 1.0
MOST_SILENT_LOOKS = 4  # number of consecutive looks without an answer after which a node counts as dead

Address = tuple[str, int]


class NodeWatch:
    """Checks every second whether the nodes of a cluster are alive.

    A node counts as dead only if it has answered before, since a firewall may block this process. `on_change` is called
    after each change; if it raises, again after the next check. Nodes in `draining` will soon be removed.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.dead: frozenset[str] = frozenset()
        self.draining: frozenset[str] = frozenset()
        self._on_change = on_change
        self._silent_looks: dict[str, int] = {}
        self._looking = threading.Lock()
        self._changes = self._answered_changes = 0

    def run(self, closing: threading.Event) -> None:
        """Check the nodes until the pool closes."""
        while not closing.wait(LOOK_SECONDS):
            self.try_to_look()

    def try_to_look(self) -> None:
        """Check the nodes once, and ignore errors."""
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - Ray raises many types while a node dies or the pool closes
            log.debug("cannot check the nodes of the cluster: %s", error)

    def look(self) -> None:
        """Check all nodes once."""
        with self._looking:
            nodes = _nodes()
            dead = self._dead_of(nodes)
            draining = _draining() - dead
            self._changes += (dead, draining) != (self.dead, self.draining)
            self.dead, self.draining = dead, draining
            changes = self._changes
        if changes > self._answered_changes:
            self._on_change()
            self._answered_changes = max(changes, self._answered_changes)

    def is_leaving(self, node: str) -> bool:
        """Return whether a node is dead or will soon be removed."""
        return node in self.dead or node in self.draining

    def room(self, cpus_per_slot: int) -> int:
        """Return the number of slots on the remaining nodes; see `slots_of_nodes`."""
        return slots_of_nodes([node for node in _nodes() if not self.is_leaving(node["NodeID"])], cpus_per_slot)

    def _dead_of(self, nodes: Sequence[Mapping[str, Any]]) -> frozenset[str]:
        of_ray = {node["NodeID"] for node in nodes if not node["Alive"]}
        asked = {node["NodeID"]: _address(node) for node in nodes if node["Alive"]}
        answers = connect_to_all(set(asked.values()), ANSWER_SECONDS)
        for node, address in asked.items():
            answer = answers.get(address)
            if answer is True:
                self._silent_looks[node] = 0
            elif node in self._silent_looks:
                self._silent_looks[node] += MOST_SILENT_LOOKS if answer is False else 1
        self._silent_looks = {node: looks for node, looks in self._silent_looks.items() if node in asked}
        return frozenset(of_ray | {node for node, looks in self._silent_looks.items() if looks >= MOST_SILENT_LOOKS})


def slots_of_nodes(nodes: Sequence[Mapping[str, object]], cpus_per_slot: int) -> int:
    """Return the number of slots on living nodes; with `cpus_per_slot` 0, each GPU is a slot."""
    kind, each = ("CPU", cpus_per_slot) if cpus_per_slot else ("GPU", 1)
    living = [node["Resources"] for node in nodes if node["Alive"]]
    return sum(int(resources.get(kind, 0) // each) for resources in living if isinstance(resources, Mapping))


def connect_to_all(addresses: set[Address], seconds: float) -> dict[Address, bool | None]:
    """Connect to all addresses at once. Returns True (accepted), False (refused) or None (no answer) for each."""
    answers: dict[Address, bool | None] = dict.fromkeys(addresses)
    waiting: dict[int, tuple[socket.socket, Address]] = {}
    poll, deadline = select.poll(), time.monotonic() + seconds
    for address in addresses:
        try:
            trying = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
            trying.setblocking(False)
            begun = trying.connect_ex(address)
        except OSError:
            continue
        if begun not in (0, errno.EINPROGRESS):  # for example, no route to the host
            answers[address] = _ANSWERS.get(begun)
            trying.close()
            continue
        waiting[trying.fileno()] = (trying, address)
        poll.register(trying, select.POLLOUT)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for number, _ in poll.poll(left * 1000):
            trying, address = waiting.pop(number)
            poll.unregister(number)
            with trying:
                answers[address] = _ANSWERS.get(trying.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    for trying, _ in waiting.values():
        trying.close()
    return answers


_ANSWERS = {0: True, errno.ECONNREFUSED: False}
"""Result of a connection by socket error; other errors do not show whether the process is alive."""


def _nodes() -> list[dict[str, Any]]:
    import ray

    return ray.nodes()  # type: ignore[no-untyped-call,no-any-return]


def _address(node: Mapping[str, Any]) -> Address:
    return str(node["NodeManagerAddress"]), int(node["NodeManagerPort"])


def _draining() -> frozenset[str]:
    """Return the nodes that Ray will remove; empty through `ray://`, where Ray lacks this list."""
    client = gcs_client()
    return frozenset() if client is None else frozenset(client.get_draining_nodes(timeout=ANSWER_SECONDS))


def gcs_client() -> Any:
    """Return Ray's client of the cluster's control process; None through `ray://`."""
    import ray

    return getattr(ray._private.worker.global_worker, "gcs_client", None)  # noqa: SLF001
