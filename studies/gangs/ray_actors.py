"""Ray actors of a pool: one for each slot, and one for the store of process groups."""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainers.protocol import Backend

log = logging.getLogger(__name__)

RANK_ENTRY_POINT = "trainers.ranks.rank_process:RankProcess"
STORE_ENTRY_POINT = "trainers.ranks.group_store_server:StoreServer"
LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RankMaker:
    """Starts the actors that serve slots; its fields are arguments of `RankProcess`."""

    device: Literal["cpu", "cuda"]
    cpus_per_rank: int
    backend: Backend
    environment: Mapping[str, str] = field(repr=False)

    def new(self, cpus: tuple[int, ...], node: str = "", *, elsewhere: bool = False) -> Any:
        """Start an actor for a slot; on `node`, unless it is empty or dead."""
        import ray

        actor_class: Any = ray.remote(_actor_class())
        gpus, reserved = (1, 0) if self.device == "cuda" else (0, self.cpus_per_rank)
        options = {
            "num_cpus": reserved,
            "num_gpus": gpus,
            "max_concurrency": 8,
            "max_restarts": 0,
            **_placed(node, soft=True),
        }
        if elsewhere and self.environment:
            options["runtime_env"] = {"env_vars": dict(self.environment)}
        arguments = {
            "device": self.device, "cpus_per_rank": self.cpus_per_rank, "cpus": cpus, "backend": self.backend
        }  # fmt: skip
        return actor_class.options(**options).remote(RANK_ENTRY_POINT, arguments)


def new_store() -> Any:
    """Start the actor of the process groups' store on this node, whose end also ends the study."""
    import ray

    store_class: Any = ray.remote(type("GroupStore", (_actor_class(),), {}))  # the class names the process
    node = str(ray.get_runtime_context().get_node_id())
    # Ray may place an actor without resources on any node unless it is bound to one.
    options = {"num_cpus": 0, "max_restarts": 0, **_placed(node, soft=False)}
    return store_class.options(**options).remote(STORE_ENTRY_POINT, None)


def _placed(node: str, *, soft: bool) -> dict[str, Any]:
    """Return Ray's options that bind an actor to a node; `soft` allows other nodes if that node is dead."""
    if not node:
        return {}
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node, soft=soft)}


class GroupStore:
    """The store through which the pool's process groups form."""

    def __init__(self, deadline_seconds: float) -> None:
        self.actor = new_store()
        self.address: tuple[str, int, str] | None = None
        self._deadline_seconds = deadline_seconds
        self._asking = threading.Lock()

    def find(self, is_closing: Callable[[], bool]) -> None:
        """Check that the store answers, and replace a dead store, unless the pool is closing."""
        import ray

        with self._asking:
            if is_closing():
                return
            try:
                self.address = ray.get(self.actor.call.remote("where"), timeout=self._deadline_seconds)
            except ray.exceptions.RayActorError:
                if is_closing():
                    return
                log.warning("the process through which ranks find each other has died; a new one replaces it")
                self.actor = new_store()
                self.address = ray.get(self.actor.call.remote("where"), timeout=self._deadline_seconds)


def all_leave(actors: Mapping[int, Any], group_id: str, is_hopeless: Callable[[], bool]) -> list[int]:
    """Make slots' processes leave a process group together, and wait for them until `is_hopeless()`.

    Returns slots whose processes are still in the group: after a member died, the others can never leave.
    """
    import ray

    there = {slot: actor for slot, actor in actors.items() if actor is not None}
    asked = {actor.call.remote("leave", group_id): slot for slot, actor in there.items()}
    while asked and len(there) == len(actors) and not is_hopeless():
        ready, _ = ray.wait(list(asked), num_returns=1, timeout=LOOK_SECONDS)
        for ref in ready:
            try:
                ray.get(ref)
            except ray.exceptions.RayError:
                return sorted(asked.values())
            del asked[ref]
    return sorted(asked.values())


def kill(actor: Any) -> None:
    """Kill an actor's process, if it is alive."""
    import ray

    with contextlib.suppress(Exception):  # it may be dead already
        ray.kill(actor, no_restart=True)


def _actor_class() -> type:
    """Return the actor class, which imports its code by name, so that this module does not load torch."""

    class Rank:
        def __init__(self, entry_point: str, options: dict[str, Any] | None) -> None:
            import importlib

            module, _, name = entry_point.partition(":")
            made = getattr(importlib.import_module(module), name)
            self._own = made(**options) if options is not None else made(_node_address())
            self._rss_bytes = 0
            self._output: Any = None

        def hello(self) -> dict[str, Any]:
            import ray

            node = ray.get_runtime_context().get_node_id()
            self._rss_bytes = self._own.rss_bytes()
            return {"node": node, "host": _node_address(), "rss_bytes": self._rss_bytes, "pid": self._own.pid()}

        def stay(self) -> None:
            import threading

            threading.Event().wait()  # never returns, so the call fails when the process ends

        def rss_bytes(self) -> int:
            return self._rss_bytes  # measured after the latest trial; by now the next trial may be running

        def call(self, method: str, *arguments: Any) -> Any:
            return getattr(self._own, method)(*arguments)

        def run(self, spec: Any, assignment: Any, until: int) -> Any:
            from trainers.ranks.rank_messages import Began, Failed

            with self._printed(spec, assignment):
                for message in self._own.run(spec, assignment, until):
                    if isinstance(message, Began):
                        yield {"facts": message.facts, "seconds": message.seconds}
                    elif isinstance(message, Failed):
                        yield {"failure": message.failure, "message": message.message}
                    else:
                        yield message
            self._rss_bytes = self._own.rss_bytes()

        def follow(self, spec: Any, assignment: Any, until: int) -> Any:
            with self._printed(spec, assignment):
                failed = self._own.follow(spec, assignment, until)
            self._rss_bytes = self._own.rss_bytes()
            return None if failed is None else (failed.failure, failed.message)

        def _printed(self, spec: Any, assignment: Any) -> Any:
            from trainers.ranks.printed_output import RankOutput

            self._output = self._output or RankOutput()
            return self._output.of(spec, assignment.rank)

    return Rank


def _node_address() -> str:
    """Return this node's address in Ray; 127.0.0.1 in a cluster started here."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return str(next(node["NodeManagerAddress"] for node in nodes if node["NodeID"] == own))
