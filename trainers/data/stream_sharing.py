"""Shares out streams: each sample to one rank and worker; epochs end on all ranks at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from trainers.data.epoch_plan import Pass
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group


def is_stream(dataset: object) -> bool:
    """Return whether a dataset can only be read from its beginning."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


class SharedStream(IterableDataset[Any]):
    """This rank's share of a stream: every worker process reads all of it, and keeps its own samples."""

    def __init__(self, samples: Iterable[Any], *, rank: int, world_size: int, is_shared_out: bool) -> None:
        if not hasattr(samples, "__iter__") or isinstance(samples, Iterator):
            raise TaskError(
                f"trial.loader: found {type(samples).__name__}, allowed: what each epoch can read from its beginning"
            )
        self._samples, self._rank, self._world_size = samples, rank, world_size
        self._is_shared_out = is_shared_out

    @property
    def epoch(self) -> int:
        """The epoch of the samples."""
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
    """Yield batches while every rank has one; a collective for each batch.

    The first rank that runs out ends the epoch for all, since each step takes an all-reduce; remaining batches are
    dropped.
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


def steps_of_all(
    steps: Iterable[Sequence[tuple[Pass, Any]]], group: Group, what: str, *, even: bool, is_begun: bool
) -> Iterator[list[tuple[Pass, Any]]]:
    """Yield this rank's steps while every rank has one, with the number of samples of all ranks.

    Args:
        even: All ranks need equally many passes; missing passes get samples that count nothing.
        is_begun: These steps follow others, so they may be empty.
    """
    iterator = iter(steps)
    while True:
        step = list(next(iterator, ()))
        own = len(step)
        samples, passes = of_all((sum(one.samples for one, _ in step if not one.is_empty), own), group)
        if not is_begun:
            check_all_have_some(samples, what)
        if min(samples) == 0:
            return
        is_begun = True
        step += [step[0]] * (max(passes) - len(step) if even else 0)
        yield [
            (
                replace(
                    one,
                    step_samples=sum(samples),
                    begins_step=place == 0,
                    ends_step=place == len(step) - 1,
                    is_empty=one.is_empty or place >= own,
                ),
                batch,
            )
            for place, (one, batch) in enumerate(step)
        ]


def of_all(own: Sequence[int], group: Group) -> list[list[int]]:
    """Return these numbers of all ranks, by rank; a collective."""
    table = torch.zeros(group.world_size, len(own), dtype=torch.int64, device=group.device)
    table[group.rank] = torch.tensor(own)
    dist.all_reduce(table)
    found: list[list[int]] = table.T.tolist()
    return found


def check_all_have_some(samples: Sequence[int], what: str) -> None:
    """Refuse a stream that leaves a rank without samples."""
    if min(samples) == 0:
        raise TaskError(
            f"{what}: found no samples for rank {samples.index(0)} of {len(samples)}, allowed: at least one for each "
            "rank"
        )
