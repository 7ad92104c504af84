"""Streams: each sample to one rank and one worker process, and epochs that end on all ranks at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from trainers.protocol import TaskError


def is_stream(dataset: object) -> bool:
    """Whether a dataset can only be read from its beginning."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


class SharedStream(IterableDataset[Any]):
    """This rank's share of a stream: ranks, and worker processes within them, take turns.

    Every worker process of every rank reads the whole stream, and leaves out what is not its own.

    Args:
        samples: The stream, the same in every process; read from its beginning in each epoch.
        rank: The rank whose share this is, from 0.
        world_size: Number of ranks.
        is_shared_out: Whether the stream gives each rank and worker its own samples by itself.

    Raises:
        TaskError: The samples cannot be read a second time.
    """

    def __init__(self, samples: Iterable[Any], *, rank: int, world_size: int, is_shared_out: bool) -> None:
        if not hasattr(samples, "__iter__") or isinstance(samples, Iterator):
            raise TaskError(
                f"trial.loader: found {type(samples).__name__}, allowed: what each epoch can read from its beginning"
            )
        self._samples, self._rank, self._world_size = samples, rank, world_size
        self._is_shared_out = is_shared_out

    @property
    def epoch(self) -> int:
        """The epoch whose samples these are."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if hasattr(self._samples, "set_epoch"):
            self._samples.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        """Yield this process's samples."""
        if self._is_shared_out:
            return iter(self._samples)
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        return islice(self._samples, self._rank * workers + number, None, self._world_size * workers)


def in_step(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches as long as every rank has one; all ranks have to ask equally often.

    Who runs out first ends the epoch on all ranks, since each step takes part in an all-reduce. What the others have
    left is dropped.
    """
    nothing = object()
    iterator = iter(batches)
    while True:
        batch = next(iterator, nothing)
        has_one = torch.tensor(batch is not nothing, dtype=torch.uint8, device=device)
        dist.all_reduce(has_one, dist.ReduceOp.MIN)
        if not has_one.item():
            return
        yield batch
