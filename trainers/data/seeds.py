"""Derives random seeds from seed, epoch and rank only, and saves states of random generators."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

SCHEME = "SeedSequence(purpose, seed, epoch, rank) at each epoch start"
_PURPOSES = {
    "data": 0, "weights": 1, "shuffle": 2, "epoch": 3, "batch": 4, "part": 5, "module": 6, "stream": 7,
    "augmentation": 8,
}  # fmt: skip
_HOST = torch.device("cpu")


def derive(purpose: str, *numbers: int) -> int:
    """Return a 63-bit seed, the same on every machine. Seeds of different purposes are unrelated."""
    entropy = (_PURPOSES[purpose], *(number & 0xFFFF_FFFF_FFFF_FFFF for number in numbers))
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]) >> 1


def reseed(seed: int) -> None:
    """Seed every global generator: torch's on all devices, numpy's and Python's."""
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    random.seed(seed)


def reseed_host(seed: int) -> None:
    """Seed the host's global generators as `reseed` does, but no device's."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    random.seed(seed)


def generators_of(device: torch.device) -> dict[str, Any]:
    """Return the states of a rank's global generators as plain values and tensors."""
    _, words, position, has_gauss, gauss = np.random.get_state()
    states = {
        "torch": torch.get_rng_state(),
        "numpy": [torch.from_numpy(np.asarray(words, dtype=np.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_generators(states: Mapping[str, Any], device: torch.device) -> None:
    """Restore the states from `generators_of`."""
    words, *others = states["numpy"]
    torch.set_rng_state(states["torch"].cpu())
    np.random.set_state(("MT19937", words.cpu().numpy().astype(np.uint32), *others))
    random.setstate(states["python"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


class HostGenerators:
    """State of the host's global generators for one reader of data."""

    def __init__(self) -> None:
        self._states: dict[str, Any] | None = None

    @contextmanager
    def own(self) -> Iterator[None]:
        """Draw from this reader's state within the block, and restore the outer state afterwards."""
        outer = generators_of(_HOST)
        if self._states is not None:
            set_generators(self._states, _HOST)
        try:
            yield
        finally:
            self._states = generators_of(_HOST)
            set_generators(outer, _HOST)


def permutation(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """Return an epoch's random order, int64 [samples], the same on all ranks."""
    generator = torch.Generator().manual_seed(derive("shuffle", seed, epoch))
    return torch.randperm(samples, generator=generator)
