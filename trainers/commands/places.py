"""Where the ranks of a gang are, and what their programs are told of it: torchrun's variables, and TensorFlow's.

Each rank says where it is; all are told by the pool's store.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from trainers.commands.meeting import Meeting

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a rank is.

    Attributes:
        host: Address of its machine, by which the others reach it.
        port: Free port for the first connections of the ranks.
        worker_port: Free port for its part in TensorFlow's cluster.
        devices: GPUs of its own as CUDA_VISIBLE_DEVICES names them; empty where it has none, or sees them all.
        folder: Folder of the program's checkpoints on its machine.
    """

    host: str
    port: int
    worker_port: int
    devices: str
    folder: str


class HeldPorts:
    """Ports of this machine that nobody else gets until they are released."""

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
        """Let the program have them."""
        for one in self._sockets:
            with suppress(OSError):
                one.close()


def own_place(folder: str, address: tuple[str, int, str] | None, *, one_host: bool, ports: HeldPorts) -> Place:
    """Return the place of this rank.

    Args:
        address: Host, port and secret of the pool's store.
        one_host: Whether all ranks of the gang share a machine.
    """
    port, worker_port = ports.numbers
    host = _LOOPBACK if one_host or address is None else _address_towards(address[0], address[1])
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return Place(host=host, port=port, worker_port=worker_port, devices=devices, folder=folder)


def all_places(own: Place, meeting: Meeting) -> list[Place] | None:
    """Return the places of all ranks, all of which have to ask; None once the trial is over."""
    texts = meeting.gather("places", json.dumps(asdict(own)))
    return None if texts is None else [Place(**json.loads(text)) for text in texts]


def variables(places: Sequence[Place], rank: int) -> dict[str, str]:
    """Return the variables that tell a program its rank, as torchrun and TensorFlow name them."""
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
    devices = [places[number].devices for number in here]
    if all(devices):  # a program takes the GPU with the number LOCAL_RANK, so it has to see those of all ranks here
        found["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    if len(places) > 1:
        cluster = {"worker": [f"{place.host}:{place.worker_port}" for place in places]}
        found["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    return found


def _address_towards(host: str, port: int) -> str:
    """Return the address of this machine on the way to another one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
