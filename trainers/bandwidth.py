"""How fast ranks exchange gradients: the time of an all-reduce, by size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from trainers.ddp import DeviceKind, Group
from trainers.local import Send, in_processes

SIZES_BYTES = (4 * 2**10, 64 * 2**10, 2**20, 16 * 2**20, 64 * 2**20)
_WARM_UPS = 2
_LEAST_RUNS, _MOST_RUNS = 5, 50
_BUDGET_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """The all-reduce of one tensor of float32 among all ranks.

    Attributes:
        bytes: Size of the tensor, which each rank holds.
        seconds: Median time of one, on rank 0.
        gigabytes_per_second: `bytes` over `seconds`: how fast gradients of that size are averaged.
        bus_gigabytes_per_second: `gigabytes_per_second` times 2 (k - 1) / k for k ranks: what a ring sends over each
            link, which can be compared with the link's own figure whatever k is.
    """

    bytes: int
    seconds: float
    gigabytes_per_second: float
    bus_gigabytes_per_second: float


def measure_bandwidth(
    world_size: int, device: DeviceKind = "cpu", sizes_bytes: Sequence[int] = SIZES_BYTES
) -> list[Exchange]:
    """Time all-reduces among ranks in processes of this machine.

    A script that calls this needs `if __name__ == "__main__":`.

    Args:
        world_size: Number of ranks, at least 2.
        device: Kind of device that holds the tensors.
        sizes_bytes: Sizes of the tensors in bytes, multiples of 4.

    Raises:
        TrainingError: A rank failed, or the ranks did not find each other.
    """
    with closing(in_processes(partial(_exchange_all, tuple(sizes_bytes)), world_size, device)) as messages:
        return [message for rank, message in messages if rank == 0]


def _exchange_all(sizes_bytes: tuple[int, ...], group: Group, send: Send) -> None:
    for size in sizes_bytes:
        tensor = torch.empty(size // 4, device=group.device)
        seconds = _median_seconds(tensor)
        if not bool((tensor == group.world_size).all()):
            raise RuntimeError(f"the sum of {size} bytes over {group.world_size} ranks came out wrong")
        rate = size / seconds / 1e9
        on_each_link = rate * 2 * (group.world_size - 1) / group.world_size
        send(Exchange(bytes=size, seconds=seconds, gigabytes_per_second=rate, bus_gigabytes_per_second=on_each_link))


def _median_seconds(tensor: torch.Tensor) -> float:
    for _ in range(_WARM_UPS):
        first = _seconds(tensor)
    # All ranks have to agree on how often; rank 0 says.
    runs = int(min(max(_BUDGET_SECONDS / first, _LEAST_RUNS), _MOST_RUNS))  # of one type, whoever measured what
    wanted = torch.tensor(runs, device=tensor.device)
    dist.broadcast(wanted, 0)
    return statistics.median(_seconds(tensor) for _ in range(int(wanted)))


def _seconds(tensor: torch.Tensor) -> float:
    tensor.fill_(1.0)
    _wait_for(tensor)
    dist.barrier()
    started = time.perf_counter()
    dist.all_reduce(tensor)
    _wait_for(tensor)
    return time.perf_counter() - started


def _wait_for(tensor: torch.Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
