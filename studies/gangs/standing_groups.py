"""Which process groups stand: they outlive their trial, since forming one costs time and using it again does not.

A process is in one group at a time. The members of a group are all at work in one gang, or all idle; whatever would
change that dissolves the group first, by all its members together. With NCCL it cannot be otherwise: a communicator is
destroyed once every member asks for it, and a member that asks alone waits for ever (pytorch #141510, #180611, nccl
#863). Where a member's process is gone, the others cannot leave any more: their processes have to be replaced. With
gloo each member leaves by itself, so there gangs of one rank leave a group standing, and dead members harm nobody.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass


def best_fit(node_of: Mapping[int, str], world_size: int) -> tuple[int, ...]:
    """Slots of one node if one has enough of them: the node with the fewest to spare. Else of the emptiest nodes.

    Args:
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
        count: Number of slots to let go, at most as many as are free.
    """
    used = {node for slot, node in node_of.items() if slot not in free}
    nodes: dict[str, list[int]] = {}
    for slot in sorted(free):
        nodes.setdefault(node_of[slot], []).append(slot)
    in_order = sorted(nodes.items(), key=lambda one: (one[0] in used, len(one[1]), one[1]))
    return tuple(itertools.chain.from_iterable(slots for _, slots in in_order))[:count]


log = logging.getLogger(__name__)

LEAVE_SECONDS = 60.0
"""Time in which the members of a group, which are idle, have to have left it."""


@dataclass(frozen=True, slots=True)
class StandingGroup:
    """A process group that stands."""

    id: str
    slots: tuple[int, ...]


Leave = Callable[[StandingGroup, Callable[[], bool]], Sequence[int]]


class StuckGroupError(Exception):
    """A group could not be dissolved."""

    def __init__(self, slots: Sequence[int]) -> None:
        super().__init__(f"slots {list(slots)}: their processes did not leave their process group")
        self.slots = tuple(slots)


class StandingGroups:
    """The one owner of which groups stand; threads of several gangs may ask it at once.

    Args:
        prefix: Beginning of the names of this pool's groups in the store.
        leaves_together: Whether a group can be left by all its members only, as with NCCL.
        leave: Function that orders the members of a group to leave it, and waits until they have, but no longer once
            the function that it is given returns True; it returns the slots whose processes have not left.
    """

    def __init__(
        self,
        prefix: str,
        *,
        leaves_together: bool = False,
        leave: Leave = lambda _group, _is_hopeless: (),
    ) -> None:
        self._prefix, self._leaves_together, self._leave = prefix, leaves_together, leave
        self._counter = itertools.count()
        self._by_slot: dict[int, StandingGroup] = {}
        self._members: dict[StandingGroup, list[int]] = {}
        self._stuck: set[int] = set()
        self._replaced: Counter[int] = Counter()
        self._leaving: set[int] = set()
        self._changing = threading.Condition()

    def pick(self, node_of: Mapping[int, str], world_size: int) -> tuple[int, ...]:
        """Slots for a gang: a standing group of this size if all of it is free, else the best fit.

        Args:
            world_size: Number of slots wanted, at most as many as are free.
        """
        with self._changing:
            standing = {group.slots for group in self._by_slot.values()}
            unbound = {slot: node for slot, node in node_of.items() if slot not in self._by_slot}
        for slots in sorted(standing):
            if len(slots) == world_size and set(slots) <= node_of.keys():
                return slots
        if self._leaves_together and len(unbound) >= world_size:
            return best_fit(unbound, world_size)
        return best_fit(node_of, world_size)

    def seat(self, slots: tuple[int, ...]) -> str:
        """Identity of the group that these ranks form or have formed; empty for one rank, which needs none.

        Other groups that share a slot are dissolved before. This may take as long as the slowest member needs.

        Raises:
            StuckGroupError: A group that shares a slot cannot be dissolved, and the processes of the error's slots
                have to be replaced before these can form a group; or some of these were replaced meanwhile.
        """
        with self._changing:
            self._changing.wait_for(lambda: not self._leaving & set(slots))
            if stuck := self._stuck & set(slots):
                raise StuckGroupError(sorted(stuck))
            if len(slots) == 1 and not self._leaves_together:
                return ""
            standing = self._by_slot.get(slots[0])
            if standing is not None and standing.slots == slots:
                return standing.id
            fallen, processes = self._taken_out(slots), self._processes_of(slots)
        self._dissolve(fallen)
        with self._changing:
            if self._processes_of(slots) != processes:
                raise StuckGroupError(slots)
            if len(slots) == 1:
                return ""
            group = StandingGroup(f"{self._prefix}-{next(self._counter)}", slots)
            self._by_slot |= dict.fromkeys(slots, group)
            self._members[group] = processes
            return group.id

    def dissolve(self, slots: Sequence[int]) -> None:
        """Let all members of the groups of these slots leave, for instance before some of the processes are ended.

        Raises:
            StuckGroupError: Not all have left.
        """
        with self._changing:
            fallen = self._taken_out(slots)
        self._dissolve(fallen)

    def _hopeless(self, group: StandingGroup) -> Callable[[], bool]:
        """Whether the members cannot leave any more: time is over, or the process of one of them is gone."""
        deadline = time.monotonic() + LEAVE_SECONDS
        return lambda: time.monotonic() > deadline or self._members.get(group) != self._processes_of(group.slots)

    def forget(self, slot: int) -> None:
        """The slot's process is gone, and what it had formed with it; nobody can leave its group any more."""
        with self._changing:
            self._stuck.discard(slot)
            self._replaced[slot] += 1
            group = self._by_slot.get(slot)
            if group is not None:
                self._by_slot = {other: one for other, one in self._by_slot.items() if one != group}
                self._members.pop(group, None)
                if self._leaves_together:
                    self._stuck |= set(group.slots) - {slot}

    def stuck(self) -> frozenset[int]:
        """Slots whose processes are in a group that they cannot leave: they have to be replaced."""
        with self._changing:
            return frozenset(self._stuck)

    def _processes_of(self, slots: Sequence[int]) -> list[int]:
        """How often the process of each slot was replaced: others than before are no members of what was formed."""
        return [self._replaced[slot] for slot in slots]

    def _taken_out(self, slots: Sequence[int]) -> list[StandingGroup]:
        """Take the groups of these slots out of those that stand; where members leave together, they begin to."""
        groups = list(dict.fromkeys(self._by_slot[slot] for slot in slots if slot in self._by_slot))
        self._by_slot = {slot: group for slot, group in self._by_slot.items() if group not in groups}
        if self._leaves_together:
            self._leaving |= {slot for group in groups for slot in group.slots}
        return groups

    def _dissolve(self, groups: Sequence[StandingGroup]) -> None:
        """Let the members of groups that were taken out leave, and the gangs that wait for that begin."""
        if not self._leaves_together:  # each member leaves when it joins another group
            for group in groups:
                self._members.pop(group)
            return
        holding: set[int] = set()
        try:
            for group in groups:
                holding |= set(self._leave(group, self._hopeless(group)))
        finally:
            with self._changing:
                for group in groups:
                    now = zip(group.slots, self._members.pop(group), self._processes_of(group.slots), strict=True)
                    self._stuck |= holding & {slot for slot, then, replaced in now if then == replaced}
                self._leaving -= {slot for group in groups for slot in group.slots}
                self._changing.notify_all()
        if holding:
            raise StuckGroupError(sorted(holding))
