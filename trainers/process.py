"""The process that trials run in: what one of them may have changed is undone before the next."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

_M_ARENA_MAX = -8
"""Number of this option of `mallopt` in glibc's malloc.h."""

_PEAK_LASTS_SECONDS = 0.1


def set_threads(cpus_per_rank: int) -> None:
    """Set the number of torch's threads; ranks with more threads than CPUs compete for cores."""
    if torch.get_num_threads() != cpus_per_rank:
        torch.set_num_threads(cpus_per_rank)


def use_batch_scheduling() -> None:
    """Ask Linux not to let this thread, and threads that it starts from now on, interrupt others when they wake up.

    Ranks that share cores wake one another all the time. As batch threads they let each other finish first: an
    all-reduce of two ranks on two cores took 0.2 ms instead of 1.6 ms, an epoch of a small model 15 ms instead of 45.
    """
    with suppress(AttributeError, OSError):  # only Linux knows it, and a sandbox may refuse
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def pin_to_cpus(cpus: Collection[int]) -> None:
    """Let this process, and what it starts from now on, run on these CPUs only; an empty collection allows all.

    The scheduler moves ranks that fill a machine whenever another process wakes up, and then two of them wait for one
    core while another is free. With a core of its own for each, an epoch of two ranks on two cores took 10 % less time.
    """
    if not cpus:
        return
    with suppress(AttributeError, OSError):  # only Linux knows it, and a container may forbid some CPUs
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), cpus)


def use_one_heap() -> None:
    """Give all threads that start from now on the main thread's heap; call it before any of them allocates.

    glibc gives each thread a heap of its own, which returns memory to the system and asks for it again all the time. A
    small network that trains in a thread, as in an actor, needed 6 % more processor time than in the main thread.
    """
    with suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def clean_process() -> None:
    """Put torch's global switches back to their defaults, free cached device memory and forget the random state."""
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)  # "cpu" would send every operation through Python
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


class PeakMemory:
    """Peak memory of this process since this object was made.

    It is read at most every 0.1 s: in short epochs every reading would show in the epoch's time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._bytes, self._valid_until = device, 0.0, 0.0
        forget_peak_memory(device)

    def peak_bytes(self) -> float:
        """Return the peak in bytes."""
        now = time.monotonic()
        if now >= self._valid_until:
            self._bytes = peak_memory_bytes(self._device)
            self._valid_until = now + _PEAK_LASTS_SECONDS
        return self._bytes


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
