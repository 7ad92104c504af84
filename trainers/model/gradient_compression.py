"""Compresses exchanged gradients with torch's communication hooks of DDP.

fp16 and bf16 halve the traffic. PowerSGD (Vogels et al. 2019, arXiv 1905.13727) sends two thin matrices for each
weight matrix where that saves at least half, and adds the error to the next step's gradient.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

_EXACT_STEPS = 2
"""First steps in which PowerSGD sends whole gradients: DDP settles its buckets in the first."""

_EPSILON = 1e-8
"""Keeps zero gradients from becoming NaN."""


class Compression:
    """The hook on a DDP model."""

    def __init__(self, network: DistributedDataParallel, compress: str, powersgd_rank: int) -> None:
        self._rank = powersgd_rank
        self._state: PowerSGDState | None = None
        if compress == "fp16":
            network.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif compress == "bf16":
            network.register_comm_hook(None, default_hooks.bf16_compress_hook)
        elif compress == "powersgd":
            self._state = self._fresh()
            network.register_comm_hook(self._state, _powersgd)

    def begin_epoch(self) -> None:
        """Reset PowerSGD, which then takes two exact steps.

        That loses one error correction per epoch, but no checkpoint has to hold each rank's error, and a resumed trial
        has the bits of an uninterrupted one at any world size.
        """
        if self._state is not None:
            fresh = self._fresh()
            for name in ("error_dict", "p_memory_dict", "q_memory_dict", "iter", "rng"):
                setattr(self._state, name, getattr(fresh, name))

    def _fresh(self) -> PowerSGDState:
        return PowerSGDState(
            None,
            matrix_approximation_rank=self._rank,
            start_powerSGD_iter=_EXACT_STEPS,
            orthogonalization_epsilon=_EPSILON,
        )


@wraps(powerSGD_hook)  # DDP reads a hook's annotations, and takes none that are texts
def _powersgd(state: PowerSGDState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Compress as torch's hook does, but restore the GPU's generator as well as the CPU's.

    The hook seeds all generators for a bucket's first matrices. Reading a GPU's generator state, on the host, is cheap.
    """
    device = bucket.buffer().device
    if device.type != "cuda" or bucket.index() in state.p_memory_dict:
        return powerSGD_hook(state, bucket)
    drawn = torch.cuda.get_rng_state(device)
    try:
        return powerSGD_hook(state, bucket)
    finally:
        torch.cuda.set_rng_state(drawn, device)
