"""Exchanges the addresses of a trial's ranks, and sets the environment variables of torchrun and TensorFlow."""

import json
import math
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType

from trainers.failures import classify
from trainers.protocol import LostError, TrainingError
from trainers.ranks.gather_over_store import StoreGather, delete_once_read, wait_for
from trainers.ranks.group_store import StoreClient
from trainers.ranks.process_group import Group


class Meeting:
    """Exchanges texts between the ranks of one attempt. An error raised in the block reaches the other ranks.

    Requests to the store are short, because a waiting request blocks other threads' requests.
    """

    def __init__(self, key: str, group: Group, store: StoreClient | None, is_over: Callable[[], bool]) -> None:
        self._prefix, self._group, self._is_over = f"command/{key}", group, is_over
        self._failed = f"{self._prefix}/failed"
        self._store = store if group.world_size > 1 else None
        self._set_here: set[str] = set()
        self._last_heard: tuple[str, str] | None = None

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._store is None:
            return
        with suppress(Exception):  # a store that does not answer must not hide the error
            if error is not None:
                self._store.set(self._failed, f"rank {self._group.rank}: {error}")
            for name in self._set_here:
                self._store.delete_key(name)

    def gather(self, what: str, own: str) -> list[str] | None:
        """Return all ranks' texts; None once the trial is over. A collective. Raises LostError if a rank failed."""
        if self._store is None:
            return [own]
        gather = StoreGather(f"{self._prefix}/{what}", self._group, self._store, is_over=self._need_not_wait)
        return gather(own) or None

    def say(self, what: str, text: str) -> None:
        """Send a text from rank 0 to the other ranks."""
        if self._store is not None:
            self._set_here.add(f"{self._prefix}/{what}")
            self._store.set(f"{self._prefix}/{what}", text)

    def pass_on(
        self, what: str, take: Callable[[str | None], None], take_error: Callable[[TrainingError], None]
    ) -> None:
        """Wait in a thread for rank 0's text, and pass it to `take`. For ranks other than 0."""

        def wait() -> None:
            try:
                take(self._heard(what))
            except Exception as error:  # noqa: BLE001 - handed to the training thread
                take_error(classify(error))

        threading.Thread(target=wait, name=what, daemon=True).start()

    def _heard(self, what: str) -> str | None:
        assert self._store is not None  # noqa: S101 - a gang of several ranks has a store
        if self._last_heard is None or self._last_heard[0] != what:
            name = f"{self._prefix}/{what}"
            if not wait_for(self._store, [name], what, math.inf, is_over=self._need_not_wait):
                return None
            self._last_heard = what, self._store.get(name).decode()
            delete_once_read(self._store, [name], f"{name}/read", self._group.world_size - 1)
        return self._last_heard[1]

    def _need_not_wait(self) -> bool:
        assert self._store is not None  # noqa: S101 - the callers have checked
        if self._store.check([self._failed]):
            raise LostError(f"another rank has failed: {self._store.get(self._failed).decode()}")
        return self._is_over()


_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Address of a rank. `worker_port` is for TensorFlow; `devices` has the form of CUDA_VISIBLE_DEVICES."""

    host: str
    port: int
    worker_port: int
    devices: str
    folder: str


class HeldPorts:
    """Ports of this machine that no other process gets until `release`."""

    def __init__(self, count: int) -> None:
        self._sockets = [socket.socket() for _ in range(count)]
        try:
            for one in self._sockets:
                one.bind(("", 0))
        except BaseException:
            self.release()
            raise
        self.numbers = [int(one.getsockname()[1]) for one in self._sockets]

    def release(self) -> None:
        """Release the ports for the program."""
        for one in self._sockets:
            with suppress(OSError):
                one.close()


def own_place(folder: str, address: tuple[str, int, str] | None, *, one_host: bool, ports: HeldPorts) -> Place:
    """Return the address of this rank."""
    port, worker_port = ports.numbers
    host = _LOOPBACK if one_host or address is None else _address_towards(address[0], address[1])
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return Place(host=host, port=port, worker_port=worker_port, devices=devices, folder=folder)


def all_places(own: Place, meeting: Meeting) -> list[Place] | None:
    """Return all ranks' addresses; None once the trial is over. A collective."""
    texts = meeting.gather("places", json.dumps(asdict(own)))
    return None if texts is None else [Place(**json.loads(text)) for text in texts]


def variables(places: Sequence[Place], rank: int, *, is_asked: bool) -> dict[str, str]:
    """Return a rank's variables of torchrun and TensorFlow. A single rank gets torchrun's only if `is_asked`.

    Programs such as nanoGPT conclude from RANK that they train on several GPUs.
    """
    here = [number for number, place in enumerate(places) if place.host == places[rank].host]
    hosts = list(dict.fromkeys(place.host for place in places))
    found = {
        "RANK": str(rank),
        "LOCAL_RANK": str(here.index(rank)),
        "WORLD_SIZE": str(len(places)),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "GROUP_RANK": str(hosts.index(places[rank].host)),
        "GROUP_WORLD_SIZE": str(len(hosts)),
        "NODE_RANK": str(hosts.index(places[rank].host)),
        "MASTER_ADDR": places[0].host,
        "MASTER_PORT": str(places[0].port),
    }
    if len(places) == 1 and not is_asked:
        found = {}
    devices = [places[number].devices for number in here]
    if all(devices):  # a program uses GPU number LOCAL_RANK, so it must see the GPUs of all ranks of this machine
        found["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    if len(places) > 1:
        cluster = {"worker": [f"{place.host}:{place.worker_port}" for place in places]}
        found["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    return found


def _address_towards(host: str, port: int) -> str:
    """Return this machine's address on the route to a machine. Sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
