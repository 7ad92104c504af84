"""Figures of this machine that DDP depends on: slots, cores, price, and exchange rate between processes."""

import socket
import threading
import time
from dataclasses import dataclass

from studies.gangs.available_slots import find_slots
from studies.money.prices import price_of
from trainers.ranks.available_cpus import available_cpus

_CHUNK_BYTES = 2**20
_MEASURED_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Resources of this machine."""

    device: str  # "cpu" or "cuda"
    device_name: str
    slots: int
    cores: int
    usd_per_slot_hour: float  # list price of a slot in dollars per hour
    price_source: str

    def usd(self, ranks: int, seconds: float) -> float:
        """Return the cost in dollars of ranks for this time, with one slot each."""
        return ranks * seconds * self.usd_per_slot_hour / 3600.0


def this_machine() -> Machine:
    """Return the resources of this machine."""
    places = find_slots("auto", 1, None)
    price = price_of(places.device, places.device_name, 1)
    return Machine(
        device=places.device,
        device_name=places.device_name,
        slots=places.slots,
        cores=max(1, int(available_cpus())),
        usd_per_slot_hour=price.usd_per_slot_hour,
        price_source=price.source,
    )


def loopback_bytes_per_second() -> float:
    """Measure TCP bytes per second between two threads on loopback, gloo's transport. Sends 64 MiB, in about 0.1 s."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.perf_counter()
        sender = threading.Thread(target=_send, args=(server.getsockname(),), daemon=True)
        sender.start()
        connection, _ = server.accept()
        with connection:
            left = _MEASURED_BYTES
            while left > 0:
                received = len(connection.recv(_CHUNK_BYTES))
                if not received:
                    break
                left -= received
        sender.join()
    return (_MEASURED_BYTES - left) / max(time.perf_counter() - began, 1e-9)


def _send(address: tuple[str, int]) -> None:
    chunk = bytes(_CHUNK_BYTES)
    with socket.create_connection(address) as connection:
        for _ in range(_MEASURED_BYTES // _CHUNK_BYTES):
            connection.sendall(chunk)
