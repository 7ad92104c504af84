"""Starts, watches and replaces the processes of a pool's slots on Ray, in one thread.

An endless Ray call to each process fails when the process dies, so that the pool notices it.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.untrusted_text import last_line
from studies.gangs.node_watch import NodeWatch
from studies.gangs.pool_protocol import DrainRequested, Event, SlotsLeaving, SlotsLost, SlotsReady
from studies.gangs.ray_actors import kill
from studies.gangs.ray_cluster import OwnCluster, own_node
from studies.storage.leases.processes import started_at

WEIGH_DEADLINE_SECONDS = 10.0


@dataclass(kw_only=True, slots=True)
class Slot:
    """A slot with its current process."""

    actor: Any  # actor of the process; None between two attempts to start one
    hello: Any = None  # call whose answer shows that the process is ready; None before the call
    death: Any = None  # call that ends with the process; None before the process is ready
    since: float = 0.0  # moment at which the actor was made, or will be made again, on the monotonic clock in seconds
    failures: int = 0  # number of failed starts in a row
    node: str = ""
    host: str = ""
    pid: int = 0
    started_at: float | None = None  # in seconds since the boot; None if unknown on this machine
    ready: bool = False
    is_dead: bool = False
    is_lost: bool = False
    is_released: bool = False  # never gets a process again
    is_leaving: bool = False  # the pool has reported that the slot's node will be taken away
    trials: int = 0
    rss_bytes_when_new: int = 0  # memory of the process before its first trial
    rss_bytes: int = 0  # memory of the process after its latest trial

    def is_gone(self) -> bool:
        """Return whether the slot's process is dead or not ready."""
        cannot_be_seen = self.started_at is None
        return self.is_dead or not self.ready or not (cannot_be_seen or started_at(self.pid) == self.started_at)

    def is_worn(self, trials: int, growth_bytes: int) -> bool:
        """Return whether the slot's process trained `trials` trials or grew by `growth_bytes`."""
        return self.trials >= trials or self.rss_bytes - self.rss_bytes_when_new >= growth_bytes


def kill_processes(slots: Iterable[Slot]) -> None:
    """Kill this machine's processes of a dead cluster by process id."""
    for slot in slots:
        if slot.started_at is not None and started_at(slot.pid) == slot.started_at:
            with contextlib.suppress(OSError):
                os.kill(slot.pid, signal.SIGKILL)


def weigh(slots: Sequence[Slot], actors: Sequence[Any], ends: Sequence[Any], is_closing: Callable[[], bool]) -> None:
    """Measure the memory of slots' processes after they dropped a trial."""
    import ray

    ray.wait(list(ends), num_returns=len(ends), timeout=WEIGH_DEADLINE_SECONDS)
    for slot, actor in zip(slots, actors, strict=True):
        if slot.actor is actor and not is_closing():
            with contextlib.suppress(Exception):  # the process may die at any time; its next trial will notice
                slot.rss_bytes = ray.get(actor.rss_bytes.remote(), timeout=WEIGH_DEADLINE_SECONDS)


log = logging.getLogger(__name__)

WARM_UP_DEADLINE_SECONDS = 180.0
MOST_FAILURES = 3  # number of consecutive failed starts of a slot's process after which the study ends
RETRY_SECONDS = 1.0
MOST_DOUBLINGS = 6  # number of consecutive failures after which the retry interval stops growing
LOOK_SECONDS = 0.5
LOST_AFTER_SECONDS = 3.0
"""Seconds without an answer after which the pool checks whether the cluster still has the slot's device."""
AWAITED_AFTER_SECONDS = 30.0
"""Seconds without an answer after which a slot waits for the autoscaler, unpaid: another study may use its device."""


class RaySlots:
    """Keeps a running process in each slot of a pool.

    `find_store` replaces a dead store of the process groups. While a slot `is_used`, its trial reports the death of the
    process. With `cpus_per_slot` 0, each slot is a GPU. With `autoscale`, waiting processes get new devices.
    """

    def __init__(
        self,
        *,
        new_rank: Callable[[int], Any],
        find_store: Callable[[], None],
        is_used: Callable[[int], bool],
        post: Callable[[Event], None],
        nodes: NodeWatch,
        cpus_per_slot: int,
        grows: bool = False,
        autoscale: bool = False,
    ) -> None:
        self._new_rank, self._find_store, self._is_used, self._post = new_rank, find_store, is_used, post
        self._nodes, self._cpus_per_slot, self._grows, self._autoscale = nodes, cpus_per_slot, grows, autoscale
        self._one_came_up = False
        self._changing = threading.RLock()
        self._here = ""
        self._looked_for_room_at = 0.0
        self.by_number: dict[int, Slot] = {}
        self.closing = threading.Event()

    def open(self, slots: int) -> None:
        """Start the processes of all slots without waiting."""
        self._here = own_node()
        new = Slot(actor=None, is_lost=self._autoscale)
        self.by_number = {number: self._made(number, new) for number in range(slots)}

    def run(self, cluster: OwnCluster | None, on_cluster_death: Callable[[str], None]) -> None:
        """Watch the slots until the pool closes or its cluster dies."""
        while not self.closing.is_set():
            if cluster is not None and (died := cluster.what_died()):
                on_cluster_death(died)
                return
            try:
                self.look()
            except Exception as error:  # in a thread, so the controller must be informed
                if not self.closing.is_set():
                    log.exception("the thread that supervises the slots failed")
                    self._post(DrainRequested(reason="error", message=f"the supervision of the slots failed: {error}"))
                return

    def look(self) -> None:
        """Wait briefly for processes that start or die, and handle them."""
        import ray

        self._bring_up()
        hellos = {slot.hello: number for number, slot in self.by_number.items() if slot.hello is not None}
        deaths = {slot.death: number for number, slot in self.by_number.items() if slot.death is not None}
        if not hellos and not deaths:
            self.closing.wait(LOOK_SECONDS)
            return
        ready, _ = ray.wait([*hellos, *deaths], num_returns=1, timeout=LOOK_SECONDS)
        for ref in ready:
            if ref in hellos:
                self._answered(hellos[ref], ref)
            else:
                self._died(deaths[ref], ref)
        self._look_for_the_late()

    def _bring_up(self) -> None:
        """Start due processes, and ask started processes whether they are ready."""
        with self._changing:
            # A process for a slot without a device waits for a device, and would take another slot's.
            is_room = all(slot.ready or slot.is_lost for slot in self.by_number.values())
            for number, slot in self.by_number.items():
                may_be_made = slot.actor is None and not slot.is_released and (is_room or not slot.is_lost)
                if may_be_made and time.monotonic() >= slot.since and not self.closing.is_set():
                    self.by_number[number] = self._made(number, slot)
            fresh = [
                (number, slot)
                for number, slot in self.by_number.items()
                if slot.actor and slot.hello is None and not slot.ready
            ]
        if not fresh or self.closing.is_set():
            return
        try:
            self._find_store()
        except Exception as error:  # noqa: BLE001 - without the store, no process can form a group
            for number, slot in fresh:
                self._failed(number, slot, error)
            return
        with self._changing:
            for number, slot in fresh:
                if self.by_number[number] is slot:  # its node may have died by now
                    slot.hello = slot.actor.hello.remote()

    def _made(self, number: int, old: Slot) -> Slot:
        return Slot(
            actor=self._new_rank(number),
            since=time.monotonic(),
            failures=old.failures,
            node=old.node,
            is_lost=old.is_lost,
        )

    def _answered(self, number: int, hello: Any) -> None:
        import ray

        slot = self.by_number[number]
        if slot.hello is not hello:
            return
        try:
            told = ray.get(hello)
        except Exception as error:  # noqa: BLE001 - after any error, the next process may start
            self._failed(number, slot, error)
            return
        with self._changing:
            if self.by_number[number] is not slot:  # the slot was given up with its node by now
                return
            slot.hello, slot.death = None, slot.actor.stay.remote()
            slot.node, slot.host, slot.pid = told["node"], told["host"], told["pid"]
            slot.started_at = started_at(slot.pid) if slot.node == self._here else None
            slot.rss_bytes_when_new = slot.rss_bytes = told["rss_bytes"]
            slot.failures, slot.is_lost, slot.ready = 0, False, True
            self._one_came_up = True
            self._post(SlotsReady(slots=(number,)))
        if self._nodes.is_leaving(slot.node):
            self.look_at_nodes()

    def _failed(self, number: int, slot: Slot, error: Exception) -> None:
        """Schedule another start of the slot's process; after too many failures, end the study."""
        if self.closing.is_set():  # the pool itself has ended the process
            return
        cause = last_line(str(error), type(error).__name__).strip()[:500]
        log.warning("slot %s did not start: %s", number, cause)
        # A node that joins may be unfit for the study. If no node was ever fit, none will be.
        may_be_the_nodes = slot.is_lost and (self._one_came_up or not self._autoscale)
        if slot.failures + 1 >= MOST_FAILURES and not may_be_the_nodes:
            message = f"slot {number} did not start in {MOST_FAILURES} attempts: {cause}"
            log.error("%s", message)
            self._post(DrainRequested(reason="error", message=message))
        with self._changing:
            if self.by_number[number] is slot:
                kill(slot.actor)
                later = time.monotonic() + RETRY_SECONDS * 2 ** min(slot.failures, MOST_DOUBLINGS)
                self.by_number[number] = Slot(
                    actor=None, since=later, failures=slot.failures + 1, node=slot.node, is_lost=slot.is_lost
                )

    def _died(self, number: int, death: Any) -> None:
        """Replace a process that died without a trial; a running trial reports the death itself."""
        with self._changing:
            slot = self.by_number[number]
            if slot.death is not death:
                return
            slot.death, slot.is_dead = None, True
            if self._is_used(number) or self.closing.is_set():
                return
            log.warning("slot %s: the idle process %s on %s died", number, slot.pid, slot.host)
            self.replace([number])
        self._post(SlotsLost(slots=(number,)))

    def replace(self, numbers: Iterable[int]) -> None:
        """Replace processes of slots. `SlotsReady` follows, or `SlotsLost` on dead or leaving nodes."""
        numbers = tuple(numbers)
        self.replace_there(numbers)
        self.give_back_leaving(numbers)

    def replace_there(self, numbers: Iterable[int]) -> None:
        """Replace processes of slots, except on dead or leaving nodes."""
        with self._changing:
            if self.closing.is_set():
                return
            stay = [number for number in numbers if not self._nodes.is_leaving(self.by_number[number].node)]
            for number, slot in list(self.by_number.items()) if stay else ():
                if slot.is_lost and slot.actor is not None:  # its process would take the device of a replaced process
                    kill(slot.actor)
                    self.by_number[number] = Slot(actor=None, since=time.monotonic() + RETRY_SECONDS, is_lost=True)
            for number in stay:
                kill(self.by_number[number].actor)
                self.by_number[number] = self._made(number, self.by_number[number])

    def release(self, numbers: Iterable[int]) -> None:
        """End the processes of unused slots forever."""
        with self._changing:
            if self.closing.is_set():
                return
            for number in numbers:
                log.info("slot %s is released: no trial will need it any more", number)
                kill(self.by_number[number].actor)
                self.by_number[number] = Slot(actor=None, is_lost=True, is_released=True)

    def replace_idle(self, unfit: Callable[[], Iterable[int]]) -> None:
        """Replace the processes of unused slots in `unfit()`."""
        with self._changing:
            numbers = tuple(n for n in unfit() if self.by_number[n].ready and not self._is_used(n))
            self.replace(numbers)
        if numbers and not self.closing.is_set():
            self._post(SlotsLost(slots=numbers))

    def look_at_nodes(self) -> None:
        """Give up unused slots on dead or leaving nodes, and report used slots there."""
        with self._changing:
            there = {number: slot for number, slot in self.by_number.items() if slot.node and not slot.is_lost}
            gone = [number for number, slot in there.items() if self._nodes.is_leaving(slot.node)]
            held = tuple(number for number in gone if self._is_used(number))
            leaving = tuple(number for number in held if not there[number].is_leaving)
            for number in leaving:
                there[number].is_leaving = True
            self._lose(number for number in gone if number not in held)
            if leaving:  # reported before gangs return these slots, which makes them lost
                log.warning("slots %s: their node will soon be removed from the cluster", list(leaving))
                self._post(SlotsLeaving(slots=leaving))

    def give_back_leaving(self, numbers: Iterable[int]) -> None:
        """Give up slots on dead or leaving nodes, after their trial has ended."""
        with self._changing:
            if self.closing.is_set():
                return
            self._lose(number for number in numbers if self._nodes.is_leaving(self.by_number[number].node))

    def _lose(self, numbers: Iterable[int]) -> None:
        """Give up slots until the cluster has devices for them again."""
        lost = tuple(number for number in numbers if not self.by_number[number].is_lost)
        for number in lost:
            slot = self.by_number[number]
            log.warning("slot %s is lost: the cluster has no device for it now, so the slot waits for a device", number)
            kill(slot.actor)
            self.by_number[number] = Slot(actor=None, since=time.monotonic() + RETRY_SECONDS, is_lost=True)
        if lost and not self.closing.is_set():
            self._post(SlotsLost(slots=lost, with_device=True))

    def actors(self) -> list[Any]:
        """Return the actors of all slots. If the pool is closing, no actor is started after this call."""
        with self._changing:
            return [slot.actor for slot in self.by_number.values()]

    def name_of(self, number: int) -> str:
        """Return a slot's name for messages, with its process."""
        slot = self.by_number[number]
        return f"slot {number}, process {slot.pid} on {slot.host}"

    def replace_dead(self, numbers: Iterable[int]) -> None:
        """Replace processes that died while a trial, which has ended, was running there."""
        with self._changing:
            dead = tuple(number for number in numbers if self.by_number[number].is_dead)
            self.replace(dead)
        if dead and not self.closing.is_set():
            self._post(SlotsLost(slots=dead))

    def _look_for_the_late(self) -> None:
        """Add slots for new devices, give up slots without a device, and restart processes that do not answer."""
        now = time.monotonic()
        late = {
            number: slot
            for number, slot in self.by_number.items()
            if slot.hello is not None and not slot.is_lost and slot.since < now - LOST_AFTER_SECONDS
        }
        if not (late or self._grows) or now - self._looked_for_room_at < 2 * LOOK_SECONDS:
            return
        self._looked_for_room_at = now
        room = self._nodes.room(self._cpus_per_slot)
        if self._grows and room > len(self.by_number):
            with self._changing:
                new = {number: Slot(actor=None, is_lost=True) for number in range(len(self.by_number), room)}
                log.warning("slots %s are new: the cluster has more devices now", list(new))
                self.by_number = {**self.by_number, **new}  # a copy, since other threads may be reading the old one
        missing = len(self.by_number) - room
        lost = sum(slot.is_lost or self._nodes.is_leaving(slot.node) for slot in self.by_number.values())
        for number, slot in late.items():
            if lost < missing or (self._autoscale and now - slot.since > AWAITED_AFTER_SECONDS):
                lost += 1
                with self._changing:
                    if self.by_number[number] is slot:
                        self._lose([number])
            elif now - slot.since > WARM_UP_DEADLINE_SECONDS:
                self._failed(number, slot, TimeoutError(f"no answer within {WARM_UP_DEADLINE_SECONDS:.0f} s"))
