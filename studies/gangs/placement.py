"""Which slots a gang gets, and which are let go."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping


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


def least_shared(node_of: Mapping[int, str], free: Collection[int], count: int) -> tuple[int, ...]:
    """Free slots to let go, so that as many nodes as possible become empty: small nodes that nobody uses first.

    Args:
        node_of: The node of each slot that there is.
        free: Those of the slots of which some are let go.
        count: Number of slots to let go, at most as many as are free.
    """
    used = {node for slot, node in node_of.items() if slot not in free}
    nodes: dict[str, list[int]] = {}
    for slot in sorted(free):
        nodes.setdefault(node_of[slot], []).append(slot)
    in_order = sorted(nodes.items(), key=lambda one: (one[0] in used, len(one[1]), one[1]))
    return tuple(itertools.chain.from_iterable(slots for _, slots in in_order))[:count]
