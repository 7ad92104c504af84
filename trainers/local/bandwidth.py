"""Times the collectives that trainings use, for several sizes."""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.local.local_training import Send, in_processes
from trainers.ranks.group_options import GroupOptions
from trainers.ranks.process_group import DeviceKind
from trainers.ranks.rendezvous import RankPlace

SIZES_BYTES = (4 * 2**10, 64 * 2**10, 2**20, 16 * 2**20, 64 * 2**20)
_WARM_UPS = 2
_LEAST_RUNS, _MOST_RUNS = 5, 50
_BUDGET_SECONDS = 0.25
_FLOAT_BYTES = 4
_USUAL_GROUP = GroupOptions()


class Collective(NamedTuple):
    """A collective among k ranks. `run` takes a whole tensor [n], and a tensor [n / k] as this rank's share.

    Attributes:
        bus_factor: Function of k: bytes over each link of a ring per byte of the tensor (nccl-tests, PERFORMANCE.md).
        result: Function of k: value of all elements afterwards (of the share for a reduce-scatter), if all were 1.
    """

    name: str
    run: Callable[[Tensor, Tensor], object]
    bus_factor: Callable[[int], float]
    result: Callable[[int], float]


def _reduce_scatter(whole: Tensor, share: Tensor) -> object:
    return dist.reduce_scatter_tensor(share, whole)


COLLECTIVES = (
    Collective("all-gather", dist.all_gather_into_tensor, lambda k: (k - 1) / k, lambda _: 1.0),
    Collective("reduce-scatter", _reduce_scatter, lambda k: (k - 1) / k, lambda k: k),
    Collective("broadcast", lambda whole, _: dist.broadcast(whole, 0), lambda _: 1.0, lambda _: 1.0),
    Collective("all-reduce", lambda whole, _: dist.all_reduce(whole), lambda k: 2 * (k - 1) / k, lambda k: k),
)
"""Collectives to time. DDP uses all-reduce and broadcast; sharded trainings use the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """Median time of a collective on a float32 tensor, on rank 0, with data rate and bus rate."""

    collective: str
    bytes: int
    seconds: float
    gigabytes_per_second: float
    bus_gigabytes_per_second: float


def measure_bandwidth(
    world_size: int,
    device: DeviceKind = "cpu",
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    group: GroupOptions = _USUAL_GROUP,
) -> list[Exchange]:
    """Time collectives among processes of this machine, by collective and size. Raises TrainingError.

    Scripts that call this need `if __name__ == "__main__":`. Bytes are rounded up to a multiple of 4 k for k ranks.
    """
    work = partial(_exchange_all, tuple(sizes_bytes))
    with closing(in_processes(work, world_size, device, group)) as messages:
        return [message for rank, message in messages if rank == 0]


def _exchange_all(sizes_bytes: tuple[int, ...], place: RankPlace, send: Send) -> None:
    group = place.join()
    ranks = group.world_size
    for collective in COLLECTIVES:
        for size in sizes_bytes:
            share = torch.empty(-(-size // (_FLOAT_BYTES * ranks)), device=group.device)
            whole = torch.empty(len(share) * ranks, device=group.device)
            seconds = _median_seconds(collective, whole, share)
            came = share if collective.name == "reduce-scatter" else whole
            if not bool((came == collective.result(ranks)).all()):
                raise RuntimeError(f"the {collective.name} of {size} bytes among {ranks} ranks gave a wrong result")
            total = _FLOAT_BYTES * len(whole)
            rate = total / seconds / 1e9
            send(
                Exchange(
                    collective=collective.name,
                    bytes=total,
                    seconds=seconds,
                    gigabytes_per_second=rate,
                    bus_gigabytes_per_second=rate * collective.bus_factor(ranks),
                )
            )


def _median_seconds(collective: Collective, whole: Tensor, share: Tensor) -> float:
    for _ in range(_WARM_UPS):
        first = _seconds(collective, whole, share)
    # All ranks need the same number of runs, so rank 0 decides.
    runs = int(min(max(_BUDGET_SECONDS / first, _LEAST_RUNS), _MOST_RUNS))
    wanted = torch.tensor(runs, device=whole.device)
    dist.broadcast(wanted, 0)
    return statistics.median(_seconds(collective, whole, share) for _ in range(int(wanted)))


def _seconds(collective: Collective, whole: Tensor, share: Tensor) -> float:
    whole.fill_(1.0)
    share.fill_(1.0)
    _wait_for(whole)
    dist.barrier()
    started = time.perf_counter()
    collective.run(whole, share)
    _wait_for(whole)
    return time.perf_counter() - started


def _wait_for(tensor: Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
