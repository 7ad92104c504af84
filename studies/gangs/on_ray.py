"""Gangs on Ray: one warm actor per slot, a process group per gang, over one long-lived store.

    controller ── start, grant, drain, end, kill ──► RayPool ──► actors (trainers.rank.RankProcess)
         ▲                                             │
         └───────────── queue of events ◄── one thread per gang, which reads rank 0's stream

Ray is a transport here: it places processes, keeps them, and tells when one dies. Torch is imported in the actors only.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from studies.gangs.available_slots import own_cpus
from studies.gangs.placement import StandingGroups, best_fit
from studies.gangs.protocol import Event, GangFailed, GangStarted, Measured, SlotsReady
from studies.gangs.ray_actors import kill, new_rank, new_store
from studies.gangs.ray_cluster import join_or_start
from trainers.protocol import Failure, Measurement, TrialSpec

log = logging.getLogger(__name__)

WARM_UP_DEADLINE_SECONDS = 180.0
FORM_DEADLINE_SECONDS = 60.0
COLLECTIVE_DEADLINE_SECONDS = 600.0
SECOND_WORD_SECONDS = 2.0
WEIGH_DEADLINE_SECONDS = 10.0
CLOSE_DEADLINE_SECONDS = 15.0
TRIALS_PER_PROCESS = 1000
GROWTH_BYTES_PER_PROCESS = 2 * 1024**3
_EXIT_DETAIL = re.compile(r"^.*Worker exit detail: (.*?)( Some common causes.*)?$")
DIED = " died: "
"""In the message of a rank whose process is gone; the others only lost their connection to it."""
_OVER: tuple[Failure, str] = ("lost", "")
"""Marks the orderly end of a rank's part; compared by identity."""
# What the user's code did explains more than what the other ranks saw of it.
_TELLING: tuple[Failure, ...] = ("out_of_memory", "error", "diverged", "unreadable", "timeout", "lost")
_TOGETHER: frozenset[Failure] = frozenset({"diverged", "unreadable"})
"""What all ranks notice at the same point: their processes stay in step."""


@dataclass(kw_only=True, slots=True)
class _Slot:
    """A place for a rank, and the process that fills it now."""

    actor: Any
    node: str = ""
    host: str = ""
    pid: int = 0
    ready: bool = False
    trials: int = 0
    rss_bytes_when_new: int = 0
    rss_bytes: int = 0


@dataclass(kw_only=True, slots=True)
class _Gang:
    key: str
    trial_id: int
    number: int
    attempt: int
    slots: tuple[int, ...]
    actors: list[Any]
    voices: list[Any] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


class RayPool:
    """Slots on a Ray cluster.

    Args:
        device: What a slot is: a GPU, or `cpus_per_rank` CPUs.
        cpus_per_rank: CPUs of a slot.
        address: An existing cluster ("auto", "HOST:PORT", "ray://..."), or None for a local one of our own.
        temp_folder: Where a local cluster puts its files; Ray's own default (in /tmp) if None.
        collective_timeout_seconds: After so long without the other ranks a collective fails.
        form_timeout_seconds: Deadline of forming a process group, and of each request to the store that it takes.
        trials_per_process: After so many trials a slot gets a new process,
        growth_bytes_per_process: and when its process has grown by so much between its trials.
    """

    def __init__(
        self,
        *,
        device: Literal["cpu", "cuda"] = "cpu",
        cpus_per_rank: int = 1,
        address: str | None = None,
        temp_folder: str | None = None,
        collective_timeout_seconds: float = COLLECTIVE_DEADLINE_SECONDS,
        form_timeout_seconds: float = FORM_DEADLINE_SECONDS,
        trials_per_process: int = TRIALS_PER_PROCESS,
        growth_bytes_per_process: int = GROWTH_BYTES_PER_PROCESS,
    ) -> None:
        self._device = device
        self._cpus_per_rank = cpus_per_rank
        self._address = address
        self._temp_folder = temp_folder
        self._collective_timeout_seconds = collective_timeout_seconds
        self._form_timeout_seconds = form_timeout_seconds
        self._trials_per_process, self._growth_bytes_per_process = trials_per_process, growth_bytes_per_process
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._slots: dict[int, _Slot] = {}
        self._cpus: Mapping[int, tuple[int, ...]] = {}
        self._gangs: dict[tuple[int, int], _Gang] = {}
        self._groups = StandingGroups(uuid.uuid4().hex[:8])
        self._store_actor: Any = None
        self._store_address: tuple[str, int] | None = None
        self._finding_store = threading.Lock()
        self._owns_cluster = False
        self._closing = False
        self._changing = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._counter = itertools.count()

    # ------------------------------------------------------------------ opening and closing

    def open(self, slots: int) -> None:
        """Connect, check that the cluster has so many places at all, and begin to warm the slots up.

        Raises:
            PoolError: The cluster cannot be reached, or is too small; the message has the numbers.
        """
        self._owns_cluster = join_or_start(
            self._address,
            slots=slots,
            device=self._device,
            cpus_per_rank=self._cpus_per_rank,
            temp_folder=self._temp_folder,
        )
        self._cpus = own_cpus(slots, self._cpus_per_rank) if self._owns_cluster and self._device == "cpu" else {}
        self._slots = {number: _Slot(actor=self._new_rank(number)) for number in range(slots)}
        if slots > 1:
            self._store_actor = new_store()
        self._in_thread("warm-up", self._warm_up, list(range(slots)))

    def _new_rank(self, number: int) -> Any:
        return new_rank(self._device, self._cpus_per_rank, self._cpus.get(number, ()))

    def _warm_up(self, numbers: list[int]) -> None:
        """Wait for new actors, each for itself, and say so; one that does not come is replaced."""
        import ray

        try:
            self._find_store()
            waiting = {self._slots[number].actor.hello.remote(): number for number in numbers}
            deadline = time.monotonic() + WARM_UP_DEADLINE_SECONDS
            while waiting and not self._closing:
                done, _ = ray.wait(list(waiting), timeout=min(1.0, max(deadline - time.monotonic(), 0.0)))
                for ref in done:
                    self._welcome(waiting.pop(ref), ray.get(ref))
                if not done and time.monotonic() > deadline:
                    raise TimeoutError(f"{len(waiting)} of {len(numbers)} slots did not come up")
        except Exception as error:  # noqa: BLE001 - in a thread: the controller has to hear of it
            if not self._closing:
                log.warning("slots did not come up: %s", error)
                self._replace_later(numbers, error)

    def _find_store(self) -> None:
        """Ask the store where it is; a dead one is replaced, since without it no new group could ever be formed."""
        import ray

        with self._finding_store:
            if self._store_actor is None or self._closing:
                return
            try:
                self._store_address = ray.get(self._store_actor.call.remote("where"), timeout=WARM_UP_DEADLINE_SECONDS)
            except ray.exceptions.RayActorError:
                if self._closing:
                    return
                log.warning("the store of the process groups died; a new one takes its place")
                self._store_actor = new_store()
                self._store_address = ray.get(self._store_actor.call.remote("where"), timeout=WARM_UP_DEADLINE_SECONDS)

    def _welcome(self, number: int, hello: dict[str, Any]) -> None:
        slot = self._slots[number]
        slot.node, slot.host, slot.pid = hello["node"], hello["host"], hello["pid"]
        slot.rss_bytes_when_new = hello["rss_bytes"]
        slot.rss_bytes = slot.rss_bytes_when_new
        slot.ready = True
        self.post(SlotsReady(slots=(number,)))

    def _replace_later(self, numbers: list[int], error: Exception) -> None:
        from studies.gangs.protocol import DrainRequested

        broken = [number for number in numbers if not self._slots[number].ready]
        failures = next(self._counter)
        if failures >= 3 * len(self._slots):
            self.post(DrainRequested(reason="error", message=f"slots do not come up: {error}"))
            return
        time.sleep(1.0)
        self._replace(broken)

    def close(self) -> None:
        """Kill the actors; end the cluster if it is our own."""
        import ray

        with self._changing:
            if self._closing:
                return
            self._closing = True
            gangs, self._gangs = list(self._gangs.values()), {}
        for gang in gangs:
            gang.over.set()
        if not ray.is_initialized():
            return
        for actor in [*(slot.actor for slot in self._slots.values()), self._store_actor]:
            if actor is not None:
                kill(actor)
        # A thread that asks Ray for something after its end makes Ray end this process.
        deadline = time.monotonic() + CLOSE_DEADLINE_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))
        if self._owns_cluster or self._address is not None:
            ray.shutdown()

    def _in_thread(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        with self._changing:
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
            thread.start()

    # ------------------------------------------------------------------ gangs

    def pick(self, free: tuple[int, ...], world_size: int) -> tuple[int, ...]:
        """A standing group of these ranks if all of it is free, else slots of the fullest node that has room."""
        return self._groups.free_one(free, world_size) or best_fit(
            {number: self._slots[number].node for number in free}, world_size
        )

    def start(self, trial_id: int, spec: TrialSpec, slots: tuple[int, ...], until: int) -> None:
        """Form a gang and train."""
        key = f"{trial_id}-{spec.attempt}-{next(self._counter)}"
        actors = [self._slots[number].actor for number in slots]
        gang = _Gang(key=key, trial_id=trial_id, number=spec.trial, attempt=spec.attempt, slots=slots, actors=actors)
        with self._changing:
            self._gangs[trial_id, spec.attempt] = gang
            for number in slots:
                self._slots[number].trials += 1
        self._in_thread(f"gang-{key}", self._drive, gang, spec, until)

    def grant(self, trial_id: int, attempt: int, until: int) -> None:
        """Tell each rank."""
        if gang := self._gangs.get((trial_id, attempt)):
            for actor in gang.actors:
                actor.call.remote("grant", gang.key, until)

    def drain(self, trial_id: int, attempt: int) -> None:
        """Tell rank 0, whose word travels with the measurement's reduction."""
        if gang := self._gangs.get((trial_id, attempt)):
            gang.actors[0].call.remote("drain", gang.key)

    def worn(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """Slots whose process has served long enough, or has grown: what leaks in a user's task must not add up.

        Memory is what the process held after the trial before: the one that ends now still holds its own.
        """
        return tuple(number for number in slots if self._is_worn(self._slots[number]))

    def _is_worn(self, slot: _Slot) -> bool:
        grown = slot.rss_bytes - slot.rss_bytes_when_new
        return slot.trials >= self._trials_per_process or grown >= self._growth_bytes_per_process

    def end(self, trial_id: int, attempt: int, retire: tuple[int, ...] = ()) -> None:
        """The ranks let go of the trial; their processes stay, but for those that retire."""
        with self._changing:
            gang = self._gangs.pop((trial_id, attempt), None)
        if gang is None:
            return
        gang.over.set()
        for actor in gang.actors:
            actor.call.remote("close", gang.key)
        if retire:
            log.info("slots %s get new processes: theirs have served long enough, or have grown", list(retire))
            self._replace(list(retire))

    def kill(self, trial_id: int, attempt: int) -> None:
        """Kill the ranks' processes and bring up new ones."""
        with self._changing:
            gang = self._gangs.pop((trial_id, attempt), None)
        if gang is not None:
            gang.over.set()
            self._replace(list(gang.slots))

    def _replace(self, numbers: list[int]) -> None:
        with self._changing:
            if self._closing:
                return
            for number in numbers:
                kill(self._slots[number].actor)
                self._groups.forget(number)
                self._slots[number] = _Slot(actor=self._new_rank(number), node=self._slots[number].node)
        self._in_thread("warm-up", self._warm_up, numbers)

    def _drive(self, gang: _Gang, spec: TrialSpec, until: int) -> None:
        """Read what the ranks say until the trial is over or fails."""
        try:
            stream, *others = gang.voices = self._dispatch(gang, spec, until)
            failures = self._listen(gang)
            if gang.over.is_set():
                self._weigh(gang, [stream.completed(), *others])
        except Exception as error:  # noqa: BLE001 - in a thread: the controller has to hear of it
            failures = [_as_failure(error, "a rank")]
        if failures and not gang.over.is_set():
            self._report_failure(gang, failures)

    def _weigh(self, gang: _Gang, ends: list[Any]) -> None:
        """Note what memory the ranks' processes hold once they have let go of the trial."""
        import ray

        ray.wait(ends, num_returns=len(ends), timeout=WEIGH_DEADLINE_SECONDS)
        for number, actor in zip(gang.slots, gang.actors, strict=True):
            slot = self._slots[number]
            if slot.actor is actor and not self._closing:
                with contextlib.suppress(Exception):  # it may die at any time; its next trial will notice
                    slot.rss_bytes = ray.get(actor.rss_bytes.remote(), timeout=WEIGH_DEADLINE_SECONDS)

    def _dispatch(self, gang: _Gang, spec: TrialSpec, until: int) -> list[Any]:
        """Start the ranks; returns rank 0's stream and the other ranks' ends."""
        hosts = {self._slots[number].host for number in gang.slots}
        seat = {
            "key": gang.key,
            "group_id": self._groups.seat(gang.slots),
            "store": self._store_address,
            "one_host": len(hosts) == 1,
            "timeout_seconds": self._collective_timeout_seconds
            if self._device == "cuda"
            else self._form_timeout_seconds,
            "store_timeout_seconds": self._form_timeout_seconds,
        }
        stream = gang.actors[0].run.remote(spec, {**seat, "rank": 0}, until)
        others = [
            actor.follow.remote(spec, {**seat, "rank": rank}, until)
            for rank, actor in enumerate(gang.actors[1:], start=1)
        ]
        return [stream, *others]

    def _listen(self, gang: _Gang) -> list[tuple[Failure, str]]:
        """Pass rank 0's words on; the failures of all ranks once one has failed, else none at the end."""
        import ray

        pending, stream = list(gang.voices), gang.voices[0]
        while pending and not gang.over.is_set():
            ready, _ = ray.wait(pending, num_returns=1, timeout=5.0)
            for ref in ready:
                if ref is stream:
                    failure = self._next_word(gang, stream)
                    if failure is None:
                        continue
                else:
                    failure = self._end_of(gang, ref)
                pending.remove(ref)
                if failure is not _OVER:
                    return [failure, *self._second_words(gang, pending)]
        return []

    def _next_word(self, gang: _Gang, stream: Any) -> tuple[Failure, str] | None:
        """Pass one message of rank 0 on; its failure, `_OVER` at the stream's end, None while it goes on."""
        import ray

        try:
            message = ray.get(next(stream))
        except StopIteration:
            return _OVER
        except Exception as error:  # noqa: BLE001 - any error of the transport is a lost rank
            return _as_failure(error, self._name_of(gang, stream))
        if isinstance(message, list):
            self._pass_on(gang, message)
        elif "facts" in message:
            self.post(GangStarted(trial_id=gang.trial_id, attempt=gang.attempt, facts=message["facts"]))
        else:
            return message["failure"], message["message"]
        return None

    def _pass_on(self, gang: _Gang, measurements: list[Measurement]) -> None:
        for one in measurements:
            self.post(Measured(trial_id=gang.trial_id, attempt=gang.attempt, measurement=one))

    def _end_of(self, gang: _Gang, ref: Any) -> tuple[Failure, str]:
        """How the part of a rank other than 0 ended."""
        import ray

        try:
            failure = ray.get(ref)
        except Exception as error:  # noqa: BLE001 - any error of the transport is a lost rank
            return _as_failure(error, self._name_of(gang, ref))
        return _OVER if failure is None else failure

    def _name_of(self, gang: _Gang, voice: Any) -> str:
        rank = gang.voices.index(voice)
        number = gang.slots[rank]
        slot = self._slots[number]
        return f"rank {rank} of {len(gang.slots)} (slot {number}, process {slot.pid} on {slot.host})"

    def _second_words(self, gang: _Gang, pending: list[Any]) -> list[tuple[Failure, str]]:
        """What the other ranks say of it within a moment: the first to notice is not always the cause."""
        import ray

        failures = []
        deadline = time.monotonic() + SECOND_WORD_SECONDS
        while pending and (left := deadline - time.monotonic()) > 0:
            ready, _ = ray.wait(pending, num_returns=1, timeout=left)
            for ref in ready:
                failure = self._next_word(gang, ref) if ref is gang.voices[0] else self._end_of(gang, ref)
                if failure is None:
                    continue  # a measurement of before
                pending.remove(ref)
                if failure is not _OVER:
                    failures.append(failure)
        return failures

    def _report_failure(self, gang: _Gang, failures: list[tuple[Failure, str]]) -> None:
        with self._changing:
            if self._gangs.pop((gang.trial_id, gang.attempt), None) is None:
                return
        failure, message = min(failures, key=lambda one: (_TELLING.index(one[0]), DIED not in one[1]))
        together = len(failures) == len(gang.slots) and all(one[0] in _TOGETHER for one in failures)
        event = GangFailed(
            trial_id=gang.trial_id, attempt=gang.attempt, failure=failure, message=message, slots_usable=together
        )
        if not together:
            log.warning("trial %s, attempt %s: %s", gang.number, gang.attempt, message.strip().splitlines()[-1])
            self._replace(list(gang.slots))
        self.post(event)

    # ------------------------------------------------------------------ events

    def post(self, event: Event) -> None:
        """Put an event into the queue."""
        self._events.put(event)

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def wait(self, seconds: float) -> list[Event]:
        """All events that are there, or what comes first within that time."""
        events = []
        with contextlib.suppress(queue.Empty):
            events.append(self._events.get(timeout=seconds))
            while True:
                events.append(self._events.get_nowait())
        return events


def _as_failure(error: Exception, who: str) -> tuple[Failure, str]:
    from ray.exceptions import OutOfMemoryError, RayActorError

    text = " ".join(str(error).split())[:2000]
    killed_for_memory = isinstance(error, OutOfMemoryError) or "memory usage threshold" in text
    cause = text if killed_for_memory else _EXIT_DETAIL.sub(r"\1", text)
    if isinstance(error, RayActorError):
        return ("out_of_memory" if killed_for_memory else "lost"), f"{who}{DIED}{cause[:300]}"
    return ("out_of_memory" if killed_for_memory else "lost"), f"{who}: {type(error).__name__}: {cause[:300]}"
