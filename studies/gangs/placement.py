"""Which slots a gang gets, and which process groups are still formed from an earlier trial."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping


def best_fit(node_of: Mapping[int, str], world_size: int) -> tuple[int, ...]:
    """Slots of one node if one has enough of them: the node with the fewest to spare. Else of the emptiest nodes.

    Args:
        node_of: The node of each free slot.
        world_size: Number of slots wanted, at most as many as are free.
    """
    nodes: dict[str, list[int]] = {}
    for slot, node in sorted(node_of.items()):
        nodes.setdefault(node, []).append(slot)
    fitting = [slots for slots in nodes.values() if len(slots) >= world_size]
    if fitting:
        return tuple(min(fitting, key=lambda slots: (len(slots), slots))[:world_size])
    by_room = sorted(nodes.values(), key=lambda slots: (-len(slots), slots))
    return tuple(itertools.chain.from_iterable(by_room))[:world_size]


class StandingGroups:
    """Process groups that outlive their trial: forming one costs 20 ms, using it again nothing.

    A process is in one group at a time. Trials of one rank need no group and leave that of their process formed.

    Args:
        prefix: Beginning of the names of this pool's groups in the store.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._counter = itertools.count()
        self._ids: dict[tuple[int, ...], str] = {}
        self._changing = threading.RLock()

    def free_one(self, free: tuple[int, ...], world_size: int) -> tuple[int, ...] | None:
        """A standing group of this size whose slots are all free."""
        return next((g for g in sorted(self._ids) if len(g) == world_size and set(g) <= set(free)), None)

    def seat(self, slots: tuple[int, ...]) -> str:
        """Name of the group that these ranks form or have formed; other groups that share a slot are dissolved."""
        if len(slots) == 1:
            return ""
        with self._changing:
            if slots not in self._ids:
                for slot in slots:
                    self.forget(slot)
                self._ids[slots] = f"{self._prefix}-{next(self._counter)}"
            return self._ids[slots]

    def forget(self, slot: int) -> None:
        """The slot's process is gone, or about to join another group."""
        with self._changing:
            self._ids = {slots: name for slots, name in self._ids.items() if slot not in slots}
