"""The process that trials run in: what one of them may have changed is undone before the next."""

from __future__ import annotations

import os
import random
import resource
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch


def set_threads(cpus_per_rank: int) -> None:
    """Let torch use so many threads; more than its share makes ranks fight over cores."""
    if torch.get_num_threads() != cpus_per_rank:
        torch.set_num_threads(cpus_per_rank)


def calm_scheduler() -> None:
    """Ask Linux not to let this thread, and threads that it starts from now on, interrupt others when they wake up.

    Ranks that share cores wake one another all the time. As batch threads they let each other finish first: an
    all-reduce of two ranks on two cores took 0.2 ms instead of 1.6 ms, an epoch of a small model 15 ms instead of 45.
    """
    with suppress(AttributeError, OSError):  # only Linux knows it, and a sandbox may refuse
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def clean_process() -> None:
    """Put torch's global switches back to their defaults, free cached device memory and forget the random state."""
    torch.set_default_dtype(torch.float32)
    torch.set_default_device("cpu")
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = False
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def forget_peak_memory(device: torch.device) -> None:
    """Let `peak_memory_bytes` start from what is in use now; where the system cannot, it keeps what was before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # 5: the peak resident size


def peak_memory_bytes(device: torch.device) -> float:
    """Return the most memory in use since `forget_peak_memory`: torch's on a GPU, the whole process's on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    with suppress(OSError, ValueError, IndexError), open("/proc/self/status", "rb", buffering=0) as file:  # noqa: PTH123
        return float(file.read(4096).partition(b"VmHWM:")[2].split(maxsplit=1)[0]) * 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)
