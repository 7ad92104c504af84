"""Which samples of a dataset a rank of a training function gets."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from trainers.epoch_plan import share
from trainers.seeds import permutation


class SharingSampler(Sampler[int]):
    """Shares out the samples of a dataset, in an order of each epoch's own or in theirs.

    Shuffled samples are dealt out in turn, the first ones once more where that makes the shares equal. Others are
    shared out in consecutive parts whose sizes differ by at most one.

    Args:
        samples: Number of samples.
        rank: The rank whose samples these are, from 0.
        world_size: Number of ranks.
        seed: Seed of the order.
        shuffles: Whether each epoch has an order of its own.

    Attributes:
        epoch: The epoch whose order this is.
    """

    def __init__(self, samples: int, *, rank: int, world_size: int, seed: int, shuffles: bool) -> None:
        self._samples, self._rank, self._world_size = samples, rank, world_size
        self._seed, self._shuffles = seed, shuffles
        self.epoch = 0

    def __len__(self) -> int:
        """Return the number of this rank's samples."""
        if self._shuffles:
            return math.ceil(self._samples / self._world_size)
        return len(share(self._samples, self._rank, self._world_size))

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of this rank's samples."""
        if not self._shuffles:
            return iter(share(self._samples, self._rank, self._world_size))
        order = permutation(self._samples, seed=self._seed, epoch=self.epoch)
        missing = len(self) * self._world_size - self._samples
        whole = torch.cat([order, order.repeat(math.ceil(missing / max(1, self._samples)))[:missing]])
        return iter(whole[self._rank :: self._world_size].tolist())
