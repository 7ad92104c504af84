"""Process groups that outlive their trial, since forming a group takes time.

A process is in one group at a time. All members of a group train the same trial or are idle. Before a member joins
another group, all members leave their group together: an NCCL communicator is destroyed only when every member asks,
and a single member waits forever (pytorch #141510, #180611, nccl #863). If a member's process has died, the others must
be replaced. With Gloo, each member leaves alone: a trial of one rank dissolves no group, and dead members do no harm.
"""

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass


def best_fit(node_of: Mapping[int, str], world_size: int) -> tuple[int, ...]:
    """Return free slots of the fullest node with enough of them, else of the emptiest nodes."""
    nodes: dict[str, list[int]] = {}
    for slot, node in sorted(node_of.items()):
        nodes.setdefault(node, []).append(slot)
    fitting = [slots for slots in nodes.values() if len(slots) >= world_size]
    if fitting:
        return tuple(min(fitting, key=lambda slots: (len(slots), slots))[:world_size])
    by_room = sorted(nodes.values(), key=lambda slots: (-len(slots), slots))
    return tuple(itertools.chain.from_iterable(by_room))[:world_size]


def least_shared(node_of: Mapping[int, str], free: Collection[int], count: int) -> tuple[int, ...]:
    """Return at most `count` free slots to release, small unused nodes first, so that most nodes become empty."""
    used = {node for slot, node in node_of.items() if slot not in free}
    nodes: dict[str, list[int]] = {}
    for slot in sorted(free):
        nodes.setdefault(node_of[slot], []).append(slot)
    in_order = sorted(nodes.items(), key=lambda one: (one[0] in used, len(one[1]), one[1]))
    return tuple(itertools.chain.from_iterable(slots for _, slots in in_order))[:count]


log = logging.getLogger(__name__)

LEAVE_SECONDS = 60.0  # seconds within which the idle members of a group must leave it


@dataclass(frozen=True, slots=True)
class StandingGroup:
    """A process group that stays for later trials."""

    id: str
    slots: tuple[int, ...]


Leave = Callable[[StandingGroup, Callable[[], bool]], Sequence[int]]


class StuckGroupError(Exception):
    """Processes did not leave their process group in time."""

    def __init__(self, slots: Sequence[int]) -> None:
        super().__init__(f"slots {list(slots)}: their processes did not leave their process group")
        self.slots = tuple(slots)


class StandingGroups:
    """All process groups that stay for later trials; thread-safe.

    `leaves_together`: members can leave a group only together, as with NCCL. `leave` makes them leave, waits until the
    function passed to it returns True, and returns the slots whose processes have not left.
    """

    def __init__(
        self, prefix: str, *, leaves_together: bool = False, leave: Leave = lambda _group, _is_hopeless: ()
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
        """Return slots for a trial: of an unused process group, else the best fit."""
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
        """Return the id of these slots' process group, which may be new; empty for a single slot.

        Waits until other groups that share a slot are dissolved. StuckGroupError names slots whose processes must be
        replaced, or got replaced during the call.
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
        """Dissolve the process groups of slots. Raises StuckGroupError if a process cannot leave."""
        with self._changing:
            fallen = self._taken_out(slots)
        self._dissolve(fallen)

    def _hopeless(self, group: StandingGroup) -> Callable[[], bool]:
        """Return a function that is True after a timeout or the death of a member's process."""
        deadline = time.monotonic() + LEAVE_SECONDS
        return lambda: time.monotonic() > deadline or self._members.get(group) != self._processes_of(group.slots)

    def forget(self, slot: int) -> None:
        """Record that the slot's process is dead, so that other members can never leave its group."""
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
        """Return the slots whose processes cannot leave their group, and must be replaced."""
        with self._changing:
            return frozenset(self._stuck)

    def _processes_of(self, slots: Sequence[int]) -> list[int]:
        """Return the number of replaced processes of each slot; a new process is in no group."""
        return [self._replaced[slot] for slot in slots]

    def _taken_out(self, slots: Sequence[int]) -> list[StandingGroup]:
        groups = list(dict.fromkeys(self._by_slot[slot] for slot in slots if slot in self._by_slot))
        self._by_slot = {slot: group for slot, group in self._by_slot.items() if group not in groups}
        if self._leaves_together:
            self._leaving |= {slot for group in groups for slot in group.slots}
        return groups

    def _dissolve(self, groups: Sequence[StandingGroup]) -> None:
        """Make the members of groups leave, and wake threads waiting for their slots."""
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
