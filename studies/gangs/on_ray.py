"""A pool of devices on Ray: one process ready to train for each slot, and a process group for each trial.

    controller ── start, grant, drain, end, kill ──► RayPool ──► actors (trainers.ranks.rank_process.RankProcess)
         ▲                                             │
         └───────────── queue of events ◄── one thread per trial, which reads rank 0's stream

Ray places the processes, keeps them alive and reports their deaths. Only these processes import torch.
"""

import contextlib
import itertools
import logging
import math
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import psutil

from search_spaces.untrusted_text import last_line
from studies import steady_clock
from studies.gangs.available_slots import own_cpus
from studies.gangs.node_watch import NodeWatch
from studies.gangs.pool_protocol import DrainRequested, Event, GangFailed, SlotsReady
from studies.gangs.rank_deaths_and_reports import (
    ASK_SECONDS,
    TOGETHER,
    Gang,
    GangReports,
    ProgressWatch,
    as_failure,
    most_telling,
)
from studies.gangs.ray_actors import GroupStore, RankMaker, all_leave, kill
from studies.gangs.ray_cluster import LOOPBACK, OwnCluster, join_or_start
from studies.gangs.ray_slots import WARM_UP_DEADLINE_SECONDS, RaySlots, Slot, kill_processes, weigh
from studies.gangs.standing_groups import StandingGroup, StandingGroups, StuckGroupError, least_shared
from trainers.protocol import BACKENDS, GROUP_INTERFACE, Backend, Failure, RankAssignment, TrialSpec


class EventQueue:
    """Thread-safe queue of events."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def post(self, event: Event) -> None:
        """Put an event into the queue."""
        self._events.put(event)

    def wait(self, seconds: float) -> list[Event]:
        """Return all events. If there are none, wait up to `seconds` for the first."""
        events = []
        with contextlib.suppress(queue.Empty):
            events.append(self._events.get(timeout=seconds))
            while True:
                events.append(self._events.get_nowait())
        return events


class PoolThreads:
    """Starts and joins the pool's threads."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        """Call a function in a thread."""
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        with self._changing:
            self._threads = [*self.living(), thread]
            thread.start()

    def living(self) -> list[threading.Thread]:
        """Return the running threads."""
        return [thread for thread in self._threads if thread.is_alive()]

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the end of all threads except the current thread."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))


class RunningGangs:
    """Running gangs by trial and attempt; thread-safe."""

    def __init__(self) -> None:
        self._gangs: dict[tuple[int, int], Gang] = {}
        self._changing = threading.Lock()

    def __iter__(self) -> Iterator[Gang]:
        return iter(list(self._gangs.values()))

    def add(self, gang: Gang) -> None:
        """Add a gang."""
        with self._changing:
            self._gangs[gang.trial_id, gang.attempt] = gang

    def get(self, trial_id: int, attempt: int) -> Gang | None:
        """Return an attempt's gang; None if it is not running."""
        return self._gangs.get((trial_id, attempt))

    def take(self, trial_id: int, attempt: int) -> Gang | None:
        """Remove and return an attempt's gang; None if another thread removed it."""
        with self._changing:
            gang = self._gangs.pop((trial_id, attempt), None)
        if gang is not None:
            gang.end()
        return gang

    def remove(self, gang: Gang) -> bool:
        """Remove a gang. Returns False if another thread removed it first."""
        return self.take(gang.trial_id, gang.attempt) is not None

    def take_all(self) -> list[Gang]:
        """Remove and return all gangs."""
        return [gang for gang in self if self.remove(gang)]

    def has(self, slot: int) -> bool:
        """Return whether a gang holds a slot."""
        return any(slot in gang.slots for gang in self)


log = logging.getLogger(__name__)

GROUP_DEADLINE_SECONDS = 600.0
CLOSE_DEADLINE_SECONDS = 15.0
TRIALS_PER_PROCESS = 1000
GROWTH_BYTES_PER_PROCESS = 2 * 1024**3


class RayPool:
    """Devices (slots) of a Ray cluster, on which trials train; see `GangPool`.

    Args:
        device: Kind of slot: a GPU, or `cpus_per_rank` CPUs.
        address: Address of a cluster ("auto", "HOST:PORT", "ray://..."), or None to start a local cluster.
        group_timeout_seconds: Timeout of forming process groups and of collectives.
        backend: Backend of process groups; "auto" is NCCL for GPUs and Gloo for CPUs.
        has_gangs: Whether trials may train on several ranks, so that `open` starts the store for their groups.
    """

    def __init__(
        self,
        *,
        device: Literal["cpu", "cuda"] = "cpu",
        cpus_per_rank: int = 1,
        address: str | None = None,
        temp_folder: str | None = None,
        group_timeout_seconds: float = GROUP_DEADLINE_SECONDS,
        backend: Literal["auto", "nccl", "gloo"] = "auto",
        environment: Mapping[str, str] = MappingProxyType({}),
        trials_per_process: int = TRIALS_PER_PROCESS,
        growth_bytes_per_process: int = GROWTH_BYTES_PER_PROCESS,
        grows: bool = False,
        autoscale: bool = False,
        has_gangs: bool = True,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        self._cluster = PoolCluster(
            address=address, temp_folder=temp_folder, device=device, cpus_per_rank=cpus_per_rank
        )
        self._grows, self._autoscale, self._group_timeout_seconds = grows, autoscale, group_timeout_seconds
        self._has_gangs = has_gangs
        self._backend: Backend = BACKENDS[device] if backend == "auto" else backend
        self._ranks = RankMaker(device, cpus_per_rank, self._backend, environment)
        self._trials_per_process, self._growth_bytes_per_process = trials_per_process, growth_bytes_per_process
        self._events, self._gangs = EventQueue(), RunningGangs()
        self._groups = StandingGroups(uuid.uuid4().hex[:8], leaves_together=self._backend == "nccl", leave=self._leave)
        self._store: GroupStore | None = None
        self._nodes = NodeWatch(self._look_at_nodes)
        self._rank_slots = RaySlots(
            new_rank=self._new_rank,
            find_store=self._find_store,
            is_used=self._gangs.has,
            post=self.post,
            nodes=self._nodes,
            cpus_per_slot=cpus_per_rank if device == "cpu" else 0,
            grows=grows,
            autoscale=autoscale,
        )
        self._closed = self._rank_slots.closing
        self._progress = ProgressWatch(self._gangs, self.post, ask_seconds)
        self._changing, self._threads = threading.RLock(), PoolThreads()
        self._counter = itertools.count()

    def open(self, slots: int) -> None:
        """Connect to the cluster and start the slots' processes. Raises PoolError if a fixed cluster is too small."""
        self._cluster.open(slots, must_fit=not self._autoscale)
        self._rank_slots.open(slots)
        if self._has_gangs and (slots > 1 or self._grows):
            self._store = GroupStore(WARM_UP_DEADLINE_SECONDS)
        self._threads.start("slots", self._rank_slots.run, self._cluster.own(), self._lose_all)
        self._threads.start("progress", self._progress.run, self._closed)
        if not self._cluster.is_own:
            self._threads.start("nodes", self._nodes.run, self._closed)

    @property
    def _slots(self) -> dict[int, Slot]:
        return self._rank_slots.by_number

    def _new_rank(self, number: int) -> Any:
        self._groups.forget(number)  # the group of the slot's earlier process is gone with it
        if self._groups.stuck():
            self._threads.start("stuck", self._replace_stuck)
        old = self._slots.get(number)
        node = "" if old is None or old.is_lost or self._nodes.is_leaving(old.node) else old.node
        return self._ranks.new(self._cluster.cpus.get(number, ()), node, elsewhere=not self._cluster.is_own)

    def _find_store(self) -> None:
        if self._store is not None:
            self._store.find(self._closed.is_set)

    def _look_at_nodes(self) -> None:
        """End trials on dead nodes, give up their slots, and report slots on nodes that will be removed."""
        for gang in self._gangs:
            dead = [number for number in gang.slots if self._slots[number].node in self._nodes.dead]
            if dead and self._gangs.remove(gang):
                lost = gang.lost(f"the node of {self._rank_slots.name_of(dead[0])} is gone")
                try:
                    self._rank_slots.replace_there(gang.slots)
                finally:  # the next look no longer finds the gang
                    self._end_of_gang(gang, lost)
        self._rank_slots.look_at_nodes()

    def _lose_all(self, died: str) -> None:
        """End all trials and the study, since the cluster is dead."""
        message = f"the study's own Ray cluster is gone: its {died} died; `automl resume` continues in a new cluster"
        self._cluster.is_dead = True
        log.error("%s", message)
        for gang in self._gangs.take_all():
            self.post(gang.failed("lost", message, counts=False))
        self.post(DrainRequested(reason="error", message=message))

    def close(self) -> None:
        """Kill the slots' processes, and end the cluster if this pool started it."""
        import ray

        with self._changing:
            if self._closed.is_set():
                return
            self._closed.set()
        self._gangs.take_all()
        if not ray.is_initialized():
            return
        stores = [] if self._store is None else [self._store.actor]
        if self._cluster.is_dead:  # a dead cluster answers Ray's calls after a minute, or never
            kill_processes(self._slots.values())
        else:
            for actor in [*self._rank_slots.actors(), *stores]:
                kill(actor)
        # If a thread calls Ray after Ray's end, Ray ends this process.
        self._threads.join(CLOSE_DEADLINE_SECONDS)
        self._cluster.close()

    def pick(self, free: tuple[int, ...], world_size: int) -> tuple[int, ...]:
        """See `GangPool.pick`."""
        return self._groups.pick({number: self._slots[number].node for number in free}, world_size)

    def spare(self, free: tuple[int, ...], count: int) -> tuple[int, ...]:
        """See `GangPool.spare`."""
        return least_shared({number: slot.node for number, slot in self._slots.items()}, free, count)

    def release(self, slots: tuple[int, ...]) -> None:
        """End the slots' processes forever, so that the autoscaler can remove their nodes."""
        self._threads.start("release", self._end_processes, slots, self._rank_slots.release)

    def start(self, trial_id: int, spec: TrialSpec, slots: tuple[int, ...], until: int) -> None:
        """See `GangPool.start`."""
        key = f"{trial_id}-{spec.attempt}-{next(self._counter)}"
        actors = [self._slots[number].actor for number in slots]
        gang = Gang(key=key, trial_id=trial_id, number=spec.trial, attempt=spec.attempt, slots=slots, actors=actors)
        self._gangs.add(gang)
        for number in slots:
            self._slots[number].trials += 1
        self._threads.start(f"gang-{key}", self._drive, gang, spec, until)

    def grant(self, trial_id: int, attempt: int, until: int) -> None:
        """See `GangPool.grant`."""
        if gang := self._gangs.get(trial_id, attempt):
            for actor in gang.actors:
                actor.call.remote("grant", gang.key, until)

    def drain(self, trial_id: int, attempt: int, within_seconds: float = math.inf) -> None:
        """Ask rank 0 to stop the trial; rank 0 informs the other ranks between steps or after the epoch."""
        if gang := self._gangs.get(trial_id, attempt):
            gang.actors[0].call.remote("drain", gang.key, within_seconds)

    def worn(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """Return slots whose process trained many trials or grew too much."""
        most = self._trials_per_process, self._growth_bytes_per_process
        return tuple(number for number in slots if self._slots[number].is_worn(*most))

    def end(self, trial_id: int, attempt: int, retire: tuple[int, ...] = ()) -> None:
        """Make the ranks drop the trial, and replace the processes of slots in `retire`."""
        gang = self._gangs.take(trial_id, attempt)
        if gang is None:
            return
        for actor in gang.actors:
            actor.call.remote("close", gang.key)
        if retire:
            log.info("slots %s get new processes: the old processes trained many trials or grew too much", list(retire))
            self._threads.start("retire", self._end_processes, retire, self._rank_slots.replace)
        self._rank_slots.replace_dead(set(gang.slots) - set(retire))
        self._rank_slots.give_back_leaving(gang.slots)

    def _end_processes(self, slots: tuple[int, ...], end: Callable[[tuple[int, ...]], None]) -> None:
        """Dissolve the slots' process groups before their processes end, so that other members can continue."""
        with contextlib.suppress(StuckGroupError):
            self._groups.dissolve(slots)
        end(slots)

    def kill(self, trial_id: int, attempt: int) -> None:
        """Replace the processes of a trial's ranks."""
        gang = self._gangs.take(trial_id, attempt)
        if gang is not None:
            self._rank_slots.replace(list(gang.slots))

    def _drive(self, gang: Gang, spec: TrialSpec, until: int) -> None:
        if dead := [number for number in gang.slots if self._slots[number].is_gone()]:
            self._refuse(gang, dead, "died before the attempt began")
            return
        try:
            if not gang.begin(spec, self._first_assignment(gang), until):
                return
            failures = GangReports(gang, self.post, self._rank_slots.name_of).read()
            if gang.over.is_set():
                stream, *others = gang.reports
                slots, ends = [self._slots[number] for number in gang.slots], [stream.completed(), *others]
                weigh(slots, gang.actors, ends, self._closed.is_set)
        except StuckGroupError as stuck:
            self._refuse(gang, stuck.slots, "could not leave the process group of an earlier trial")
            self._replace_stuck()
            return
        except Exception as error:  # noqa: BLE001 - in a thread, so the controller must be informed
            failures = [as_failure(error, "a rank")]
        if failures and not gang.over.is_set():
            self._report_failure(gang, failures)

    def _first_assignment(self, gang: Gang) -> RankAssignment:
        """Make the ranks leave process groups of earlier trials, and return rank 0's assignment."""
        if len(gang.slots) > 1:
            with self._changing:
                if self._store is None:  # gangs were not expected
                    self._store = GroupStore(WARM_UP_DEADLINE_SECONDS)
                    self._find_store()
        return RankAssignment(
            key=gang.key,
            rank=0,
            group_id=self._groups.seat(gang.slots),
            backend=self._backend,
            store=None if self._store is None else self._store.address,
            one_host=len({self._slots[number].host for number in gang.slots}) == 1,
            timeout_seconds=self._group_timeout_seconds,
        )

    def _refuse(self, gang: Gang, unfit: Sequence[int], why: str) -> None:
        """Give up a trial's start, because the processes of slots in `unfit` are unusable."""
        if not self._gangs.remove(gang):
            return
        mine = [number for number in unfit if number in gang.slots]
        names = ", ".join(self._rank_slots.name_of(number) for number in unfit)
        self._rank_slots.replace_there(mine)
        usable = tuple(sorted(set(gang.slots) - set(mine)))
        self._end_of_gang(gang, gang.failed("lost", f"{names}: {why}", counts=False), usable)

    def _leave(self, group: StandingGroup, is_hopeless: Callable[[], bool]) -> list[int]:
        return all_leave({number: self._slots[number].actor for number in group.slots}, group.id, is_hopeless)

    def _replace_stuck(self) -> None:
        """Replace processes that cannot leave an earlier trial's process group."""
        stuck = self._groups.stuck()
        for gang in self._gangs:
            if stuck & set(gang.slots) and self._gangs.remove(gang):
                lost = gang.failed("lost", "a member of the process group of an earlier trial is gone", counts=False)
                self._rank_slots.replace_there(gang.slots)
                self._end_of_gang(gang, lost)
        self._rank_slots.replace_idle(self._groups.stuck)

    def _report_failure(self, gang: Gang, failures: list[tuple[Failure, str]]) -> None:
        if not self._cluster.is_own:
            self._nodes.try_to_look()  # if a node is gone, this ends the gang
        if not self._gangs.remove(gang):
            return
        failure, message = most_telling(failures)
        together = len(failures) == len(gang.slots) and all(one[0] in TOGETHER for one in failures)
        if not together:
            log.warning("trial %s, attempt %s: %s", gang.number, gang.attempt, last_line(message))
            self._rank_slots.replace_there(gang.slots)
        self._end_of_gang(gang, gang.failed(failure, message), usable=gang.slots if together else ())
        if together:
            self._rank_slots.replace_dead(gang.slots)

    def _end_of_gang(self, gang: Gang, event: GangFailed, usable: tuple[int, ...] = ()) -> None:
        """Report the trial's failure before freeing its slots, so that the trial pays until then."""
        self.post(event)  # the controller ignores it if it has closed the attempt; the slots become free anyway
        if free := tuple(number for number in usable if not self._nodes.is_leaving(self._slots[number].node)):
            self.post(SlotsReady(slots=free))
        self._rank_slots.give_back_leaving(gang.slots)

    def post(self, event: Event) -> None:
        """See `GangPool.post`."""
        self._events.post(event)

    def now(self) -> float:
        """Return the time in seconds since 1970, without jumps of the system clock."""
        return steady_clock.now()

    def wait(self, seconds: float) -> list[Event]:
        """See `GangPool.wait`."""
        return self._events.wait(seconds)


class PoolCluster:
    """Joins a cluster or, without an address, starts one on this machine.

    `is_dead` is set after a vital process of the started cluster died. `cpus` are each slot's own CPUs.
    """

    def __init__(
        self, *, address: str | None, temp_folder: str | None, device: Literal["cpu", "cuda"], cpus_per_rank: int
    ) -> None:
        self._address, self._temp_folder = address, temp_folder
        self._device, self._cpus_per_rank = device, cpus_per_rank
        self._environment = contextlib.ExitStack()
        self.is_own = self.is_dead = False
        self.cpus: Mapping[int, tuple[int, ...]] = {}

    def open(self, slots: int, *, must_fit: bool = True) -> None:
        """Join or start the cluster. Raises PoolError on failure, or if it is too small."""
        if self._address is None:
            self._environment.callback(_set_variable, GROUP_INTERFACE, os.environ.get(GROUP_INTERFACE))
            _set_variable(GROUP_INTERFACE, _loopback_interface())
        self.is_own = join_or_start(
            self._address,
            slots=slots,
            device=self._device,
            cpus_per_rank=self._cpus_per_rank,
            temp_folder=self._temp_folder,
            must_fit=must_fit,
        )
        if self.is_own and self._device == "cpu":
            self.cpus = own_cpus(slots, self._cpus_per_rank)

    def own(self) -> OwnCluster | None:
        """Return the started cluster's processes; None for a joined cluster."""
        return OwnCluster() if self.is_own else None

    def close(self) -> None:
        """Leave the joined cluster, or end the started cluster."""
        import ray

        if self.is_own or self._address is not None:
            ray.shutdown()
        self._environment.close()


def _loopback_interface() -> str:
    found = psutil.net_if_addrs().items()
    return next((name for name, addresses in found if any(one.address == LOOPBACK for one in addresses)), "")


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
