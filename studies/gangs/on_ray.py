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
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from studies.gangs.placement import StandingGroups, best_fit
from studies.gangs.places import own_cpus
from studies.gangs.protocol import Event, GangFailed, GangStarted, Measured, PoolError, SlotsReady
from trainers.protocol import Failure, Measurement, TrialSpec

log = logging.getLogger(__name__)

RANK_ENTRY_POINT = "trainers.rank:RankProcess"
STORE_ENTRY_POINT = "trainers.rank:StoreProcess"
CONNECT_DEADLINE_SECONDS = 10.0
WARM_UP_DEADLINE_SECONDS = 180.0
FORM_DEADLINE_SECONDS = 60.0
COLLECTIVE_DEADLINE_SECONDS = 600.0
SECOND_WORD_SECONDS = 2.0
WEIGH_DEADLINE_SECONDS = 10.0
OBJECT_STORE_BYTES = 128 * 1024**2
TRIALS_PER_PROCESS = 1000
GROWTH_BYTES_PER_PROCESS = 2 * 1024**3
# What the user's code did explains more than what the other ranks saw of it.
_TELLING: tuple[Failure, ...] = ("out_of_memory", "error", "diverged", "timeout", "lost")


@dataclass(kw_only=True, slots=True)
class _Slot:
    """A place for a rank, and the process that fills it now."""

    actor: Any
    node: str = ""
    host: str = ""
    ready: bool = False
    trials: int = 0
    rss_bytes_when_new: int = 0
    rss_bytes: int = 0


@dataclass(kw_only=True, slots=True)
class _Gang:
    key: str
    trial_id: int
    attempt: int
    slots: tuple[int, ...]
    actors: list[Any]
    over: threading.Event = field(default_factory=threading.Event)


class RayPool:
    """Slots on a Ray cluster.

    Args:
        device: What a slot is: a GPU, or `cpus_per_rank` CPUs.
        cpus_per_rank: CPUs of a slot.
        address: An existing cluster ("auto", "HOST:PORT", "ray://..."), or None for a local one of our own.
        temp_folder: Where a local cluster puts its files; Ray's own default (in /tmp) if None.
        collective_timeout_seconds: After so long without the other ranks a collective fails.
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
        trials_per_process: int = TRIALS_PER_PROCESS,
        growth_bytes_per_process: int = GROWTH_BYTES_PER_PROCESS,
    ) -> None:
        self._device = device
        self._cpus_per_rank = cpus_per_rank
        self._address = address
        self._temp_folder = temp_folder
        self._collective_timeout_seconds = collective_timeout_seconds
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
        self._counter = itertools.count()

    # ------------------------------------------------------------------ opening and closing

    def open(self, slots: int) -> None:
        """Connect, check that the cluster has so many places at all, and begin to warm the slots up.

        Raises:
            PoolError: The cluster cannot be reached, or is too small; the message has the numbers.
        """
        self._connect(slots)
        self._check_room(slots)
        self._cpus = own_cpus(slots, self._cpus_per_rank) if self._owns_cluster and self._device == "cpu" else {}
        self._slots = {number: _Slot(actor=self._new_actor(number)) for number in range(slots)}
        if slots > 1:
            self._store_actor = self._new_store()
        threading.Thread(target=self._warm_up, args=(list(range(slots)),), name="warm-up", daemon=True).start()

    def _connect(self, slots: int) -> None:
        import ray

        if ray.is_initialized() or self._address is not None:
            connect(self._address)
            return
        self._owns_cluster = True
        connect(
            None,
            num_cpus=slots * self._cpus_per_rank,
            num_gpus=slots if self._device == "cuda" else 0,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=self._temp_folder,
        )

    def _check_room(self, slots: int) -> None:
        import ray

        resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
        kind, each = ("GPU", 1.0) if self._device == "cuda" else ("CPU", float(self._cpus_per_rank))
        there = int(resources.get(kind, 0) // each)
        if there < slots:
            need = f"{slots} slots x {each:g} {kind} = {slots * each:g} {kind}"
            raise PoolError(
                f"Ray: {need} are wanted, the cluster has {resources.get(kind, 0):g}: room for {there} slots"
            )

    def _new_actor(self, number: int) -> Any:
        import ray

        gpus = 1 if self._device == "cuda" else 0
        cpus = self._cpus_per_rank if self._device == "cpu" else 0
        actor_class: Any = ray.remote(_actor_class())
        return actor_class.options(num_cpus=cpus, num_gpus=gpus, max_concurrency=8, max_restarts=0).remote(
            RANK_ENTRY_POINT,
            {"device": self._device, "cpus_per_rank": self._cpus_per_rank, "cpus": self._cpus.get(number, ())},
        )

    def _new_store(self) -> Any:
        import ray

        store_class: Any = ray.remote(type("GroupStore", (_actor_class(),), {}))  # the class names the process
        return store_class.options(num_cpus=0, max_restarts=0).remote(STORE_ENTRY_POINT, None)

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
                log.warning("the store of the process groups died; a new one takes its place")
                self._store_actor = self._new_store()
                self._store_address = ray.get(self._store_actor.call.remote("where"), timeout=WARM_UP_DEADLINE_SECONDS)

    def _welcome(self, number: int, hello: dict[str, Any]) -> None:
        slot = self._slots[number]
        slot.node, slot.host, slot.rss_bytes_when_new = hello["node"], hello["host"], hello["rss_bytes"]
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
                _kill(actor)
        if self._owns_cluster or self._address is not None:
            ray.shutdown()

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
        gang = _Gang(key=key, trial_id=trial_id, attempt=spec.attempt, slots=slots, actors=actors)
        with self._changing:
            self._gangs[trial_id, spec.attempt] = gang
            for number in slots:
                self._slots[number].trials += 1
        thread = threading.Thread(target=self._drive, args=(gang, spec, until), name=f"gang-{key}", daemon=True)
        thread.start()

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
                _kill(self._slots[number].actor)
                self._groups.forget(number)
                self._slots[number] = _Slot(actor=self._new_actor(number), node=self._slots[number].node)
        threading.Thread(target=self._warm_up, args=(numbers,), name="warm-up", daemon=True).start()

    def _drive(self, gang: _Gang, spec: TrialSpec, until: int) -> None:
        """Read what the ranks say until the trial is over or fails."""
        try:
            stream, others = self._dispatch(gang, spec, until)
            failures = self._listen(gang, stream, others)
            if gang.over.is_set():
                self._weigh(gang, [stream.completed(), *others])
        except Exception as error:  # noqa: BLE001 - in a thread: the controller has to hear of it
            failures = [_as_failure(error)]
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

    def _dispatch(self, gang: _Gang, spec: TrialSpec, until: int) -> tuple[Any, list[Any]]:
        hosts = {self._slots[number].host for number in gang.slots}
        seat = {
            "key": gang.key,
            "group_id": self._groups.seat(gang.slots),
            "store": self._store_address,
            "one_host": len(hosts) == 1,
            "timeout_seconds": self._collective_timeout_seconds if self._device == "cuda" else FORM_DEADLINE_SECONDS,
        }
        stream = gang.actors[0].run.remote(spec, {**seat, "rank": 0}, until)
        others = [
            actor.follow.remote(spec, {**seat, "rank": rank}, until)
            for rank, actor in enumerate(gang.actors[1:], start=1)
        ]
        return stream, others

    def _listen(self, gang: _Gang, stream: Any, others: list[Any]) -> list[tuple[Failure, str]]:
        """Pass rank 0's words on; the failures of all ranks once one has failed, else none at the end."""
        import ray

        pending = [stream, *others]
        while pending and not gang.over.is_set():
            ready, _ = ray.wait(pending, num_returns=1, timeout=5.0)
            for ref in ready:
                if ref is stream:
                    failure = self._next_word(gang, stream)
                    if failure is None:
                        continue
                else:
                    failure = _result(ref)
                pending.remove(ref)
                if failure is not _OVER:
                    return [failure, *self._second_words(gang, pending, stream)]
        return []

    def _next_word(self, gang: _Gang, stream: Any) -> tuple[Failure, str] | None:
        """Pass one message of rank 0 on; its failure, `_OVER` at the stream's end, None while it goes on."""
        import ray

        try:
            message = ray.get(next(stream))
        except StopIteration:
            return _OVER
        except Exception as error:  # noqa: BLE001 - any error of the transport is a lost rank
            return _as_failure(error)
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

    def _second_words(self, gang: _Gang, pending: list[Any], stream: Any) -> list[tuple[Failure, str]]:
        """What the other ranks say of it within a moment: the first to notice is not always the cause."""
        import ray

        failures = []
        deadline = time.monotonic() + SECOND_WORD_SECONDS
        while pending and (left := deadline - time.monotonic()) > 0:
            ready, _ = ray.wait(pending, num_returns=1, timeout=left)
            for ref in ready:
                pending.remove(ref)
                failure = self._last_word(gang, stream) if ref is stream else _result(ref)
                if failure is not _OVER:
                    failures.append(failure)
        return failures

    def _last_word(self, gang: _Gang, stream: Any) -> tuple[Failure, str]:
        import ray

        try:
            for ref in stream:
                message = ray.get(ref)
                if isinstance(message, list):
                    self._pass_on(gang, message)
                elif "failure" in message:
                    return message["failure"], message["message"]
        except Exception as error:  # noqa: BLE001 - as in `_next_word`
            return _as_failure(error)
        return _OVER

    def _report_failure(self, gang: _Gang, failures: list[tuple[Failure, str]]) -> None:
        with self._changing:
            if self._gangs.pop((gang.trial_id, gang.attempt), None) is None:
                return
        failure, message = min(failures, key=lambda one: _TELLING.index(one[0]))
        together = len(failures) == len(gang.slots) and all(one[0] == "diverged" for one in failures)
        event = GangFailed(
            trial_id=gang.trial_id, attempt=gang.attempt, failure=failure, message=message, slots_usable=together
        )
        if not together:
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


def cluster_resources(address: str) -> tuple[int, tuple[str, ...]]:
    """CPUs of an existing cluster, and the names of its GPUs; stays connected.

    Raises:
        PoolError: The cluster cannot be reached.
    """
    import ray

    connect(address)
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    names = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
    gpus = int(resources.get("GPU", 0))
    return int(resources.get("CPU", 0)), ((names or ["GPU"])[0],) * gpus


def connect(address: str | None, **options: Any) -> None:
    """Join a cluster, or start a local one with the options.

    Raises:
        PoolError: One line that says why not.
    """
    import ray

    if ray.is_initialized():
        return
    # Ray asks for it before its first start; a study is nobody's business.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray reports that its door is locked, as this program wants it; that it is open it should still say.
    said_by = logging.getLogger("ray._private.authentication.authentication_token_setup")
    said_by.addFilter(lambda record: not record.getMessage().startswith("Token authentication is enabled"))
    if address is not None:
        _check_reachable(address)
    try:
        ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **options)
    except Exception as error:  # Ray raises bare ones too, for instance when a node is slow to start
        where = f"resources.ray_address: cannot use {address}" if address else "Ray: cannot start a local cluster"
        raise PoolError(f"{where}: {' '.join(str(error).split())[:300]}") from error


def _check_reachable(address: str) -> None:
    """Ask whether anybody listens there: Ray itself tries for minutes, and then ends the process."""
    host, sign, port = address.removeprefix("ray://").rpartition(":")
    if address in {"auto", "local"}:
        return
    try:
        if not sign or not port.isdigit():
            raise ValueError("it is not of the form HOST:PORT, ray://HOST:PORT or auto")
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_DEADLINE_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise PoolError(f"resources.ray_address: found {address!r}, which does not answer ({error})") from None


_OVER: tuple[Failure, str] = ("lost", "")
"""Marks the orderly end of a rank's part; compared by identity."""


def _actor_class() -> type:
    """The class of every actor: it imports what it is told to, so that its module needs no torch."""

    class Rank:
        def __init__(self, entry_point: str, options: dict[str, Any] | None) -> None:
            import importlib

            module, _, name = entry_point.partition(":")
            made = getattr(importlib.import_module(module), name)
            self._own = made(**options) if options is not None else made(_node_address())
            self._rss_bytes = 0

        def hello(self) -> dict[str, Any]:
            import ray

            node = ray.get_runtime_context().get_node_id()
            self._rss_bytes = self._own.rss_bytes()
            return {"node": node, "host": _node_address(), "rss_bytes": self._rss_bytes}

        def rss_bytes(self) -> int:
            return self._rss_bytes  # as it was after the latest trial: now the next one may be at work

        def call(self, method: str, *arguments: Any) -> Any:
            return getattr(self._own, method)(*arguments)

        def run(self, spec: TrialSpec, seat: dict[str, Any], until: int) -> Any:
            from trainers.rank import Began, Failed, Seat

            for message in self._own.run(spec, Seat(**seat), until):
                if isinstance(message, Began):
                    yield {"facts": message.facts}
                elif isinstance(message, Failed):
                    yield {"failure": message.failure, "message": message.message}
                else:
                    yield message
            self._rss_bytes = self._own.rss_bytes()

        def follow(self, spec: TrialSpec, seat: dict[str, Any], until: int) -> Any:
            from trainers.rank import Seat

            failed = self._own.follow(spec, Seat(**seat), until)
            self._rss_bytes = self._own.rss_bytes()
            return None if failed is None else (failed.failure, failed.message)

    return Rank


def _node_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _result(ref: Any) -> tuple[Failure, str]:
    import ray

    try:
        failure = ray.get(ref)
    except Exception as error:  # noqa: BLE001 - any error of the transport is a lost rank
        return _as_failure(error)
    return _OVER if failure is None else failure


def _as_failure(error: Exception) -> tuple[Failure, str]:
    from ray.exceptions import OutOfMemoryError

    text = " ".join(str(error).split())[:2000]
    killed_for_memory = isinstance(error, OutOfMemoryError) or "memory usage threshold" in text
    return ("out_of_memory" if killed_for_memory else "lost"), f"{type(error).__name__}: {text}"


def _kill(actor: Any) -> None:
    import ray

    with contextlib.suppress(Exception):  # it may be dead already
        ray.kill(actor, no_restart=True)
