"""Which slots a gang gets."""

from __future__ import annotations

import itertools
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
