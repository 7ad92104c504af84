"""Randomness that depends on nothing but (seed, epoch, rank), so that a resumed trial draws what it would have.

Within an epoch it goes on from the generators' states, which checkpoints of an epoch's part hold.
"""

from __future__ import annotations

import random

import numpy as np
import torch

SCHEME = "SeedSequence(purpose, seed, epoch, rank) at each epoch start"
_PURPOSES = {"data": 0, "weights": 1, "shuffle": 2, "epoch": 3, "batch": 4, "part": 5, "module": 6}


def derive(purpose: str, *numbers: int) -> int:
    """Return a 63-bit seed for `purpose`, the same on every machine; equal numbers give unrelated seeds elsewhere."""
    entropy = (_PURPOSES[purpose], *(number & 0xFFFF_FFFF_FFFF_FFFF for number in numbers))
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]) >> 1


def reseed(seed: int) -> None:
    """Seed every global generator: torch's on all devices, numpy's and Python's."""
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    random.seed(seed)


def permutation(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """Return the order in which an epoch visits the samples, int64 of shape [samples], the same on all ranks."""
    generator = torch.Generator().manual_seed(derive("shuffle", seed, epoch))
    return torch.randperm(samples, generator=generator)
