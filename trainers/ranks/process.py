"""The process that trials run in: its threads, CPUs and memory; `trainers.ranks.process_state` has its global state."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import shutil
import sys
import time
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import torch

from trainers.ranks.available_cpus import CPU_QUOTA, available_cpus

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Numbers of these options of `mallopt` in glibc's malloc.h."""
_SMALL_BLOCK, _LARGE_BLOCK = 2**18, 2**25
"""Bytes of a block of memory from which glibc returns it at once when it is freed: what we set, and where glibc's own
limit ends, which rises to the largest block that was freed up to this."""

_PEAK_LASTS_SECONDS = 0.1

_YOUNG, _ALL = 1, 2
"""Generations of Python's garbage collector: a short trial's model is still among the young ones."""


def set_threads(cpus_per_rank: int) -> None:
    """Set the number of torch's threads; ranks with more threads than CPUs compete for cores."""
    if torch.get_num_threads() != cpus_per_rank:
        torch.set_num_threads(cpus_per_rank)


def use_device(device: torch.device, world_size: int, cpus_per_rank: int) -> None:
    """Let this thread, which trains as one of so many ranks, use its device and its CPUs."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif world_size > 1:
        use_batch_scheduling()
    set_threads(cpus_per_rank)


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


def cpus_of_each_gpu(
    devices: Path = Path("/dev"),
    gpus: Path = Path("/proc/driver/nvidia/gpus"),
    quota: Path = CPU_QUOTA,
) -> int:
    """Return the CPUs for each GPU, of those that this process may use: a container's or a job's share of a machine.

    Args:
        quota: Argument of `available_cpus`.
    """
    return max(1, int(available_cpus(quota) / max(1, _usable_gpus(devices, gpus))))


def _usable_gpus(devices: Path, gpus: Path) -> int:
    """Return the number of GPUs of this job; a rank's own CUDA sees only one of them.

    A container has the device files of its own GPUs only, and a job's cgroup refuses access to the others, which the
    kernel says without a device being opened: that could wake a GPU up.
    """
    usable = sum(os.access(device, os.R_OK | os.W_OK) for device in devices.glob("nvidia[0-9]*"))
    if usable:
        return usable
    return len(list(gpus.iterdir())) if gpus.is_dir() else torch.cuda.device_count()


def has_room_for_workers(shared: Path = Path("/dev/shm"), least_bytes: int = 2**30) -> bool:  # noqa: S108 - Linux's
    """Return whether processes that read data can hand batches over: a container of Docker's has 64 MiB for that."""
    try:
        return shutil.disk_usage(shared).total >= least_bytes
    except OSError:  # another system, with other ways
        return True


def use_one_heap() -> None:
    """Give all threads that start from now on the main thread's heap; call it before any of them allocates.

    glibc gives each thread a heap of its own, which returns memory to the system and asks for it again all the time. A
    small network that trains in a thread, as in an actor, needed 6 % more processor time than in the main thread.
    """
    with suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_freed_tensors(*, at_once: bool) -> None:
    """Let the system have the memory of larger tensors back as soon as they are freed, or keep it for the next ones.

    Kept memory falls into pieces: where blocks of 1 MiB are gathered and freed in turn, ranks that held 36 MiB had 200
    to 300 MiB from the system, and 41 if it goes back at once.
    """
    with suppress(AttributeError, OSError):  # only glibc has it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _SMALL_BLOCK if at_once else _LARGE_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, 2 * (_SMALL_BLOCK if at_once else _LARGE_BLOCK))


def keep_start_out_of_collections() -> None:
    """Let garbage collections pass over what exists now, which lives as long as the process anyway.

    A full collection took 100 ms of processor time with torch loaded, and takes as long as what came later then.
    """
    gc.freeze()


def free_memory(parameters: Remains | None) -> None:
    """Free what a trial has left: its model in reference cycles, compiled code, cached device memory.

    Full sharding and models of users make cycles, which only a garbage collection finds; device memory that a model
    still holds cannot be freed. Where the parameters are gone nothing is collected, since that takes time.

    torch compiles at most so many variants of one piece of code in a process and then goes on without compiling, with
    a warning at most: times and costs would depend on which trials came before. So each trial finds no code compiled.

    Args:
        parameters: The parameters of the trial's model; None where they are not known, as after a failure while it
            was built.
    """
    for generation in _YOUNG, _ALL:
        if parameters is None or parameters.remain():
            gc.collect(generation)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        with suppress(AttributeError):  # older versions of torch have it not
            torch.accelerator.memory.empty_host_cache()  # what copies for checkpoints have pinned
    _return_freed_memory()


def _return_freed_memory() -> None:
    """Give the system back what was freed on the CPU."""
    with suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


class Remains:
    """Tells whether parameters of a model are still in memory, and keeps none of them there."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = [weakref.ref(parameter) for parameter in parameters]

    def remain(self) -> bool:
        """Return whether any of the parameters is still there."""
        return any(parameter() is not None for parameter in self._parameters)


_COUNTED = nullcontext()


class PeakMemory:
    """Peak memory of this process since this object was made, and of earlier attempts of the trial.

    It is read at most every 0.1 s: in short epochs every reading would show in the epoch's time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._bytes, self._valid_until = device, 0.0, 0.0
        self._before = 0.0
        self._passed: set[tuple[str, int]] = set()
        self._largest: dict[str, int] = {}
        self._first_peaks: dict[str, float] = {}
        forget_peak_memory(device)

    def peak_bytes(self) -> float:
        """Return the peak in bytes."""
        now = time.monotonic()
        if now >= self._valid_until:
            self._bytes = peak_memory_bytes(self._device)
            self._valid_until = now + _PEAK_LASTS_SECONDS
        return max(self._bytes, self._before, *self._first_peaks.values())

    def include(self, peak_bytes: float) -> None:
        """Count a peak of an earlier attempt, in bytes."""
        self._before = max(self._before, peak_bytes)

    def of_pass(self, kind: str, samples: int) -> AbstractContextManager[object]:
        """Return the context of a pass through the model.

        In the first pass of each size on a GPU cuDNN tries its algorithms out: they take memory that no later pass
        needs, nor the same trial where another one of the process has tried them out (34 MiB of 139 in tests/gpu on an
        H100). So its peak counts only for the largest batch, and only as long as no second one has passed.
        """
        if self._device.type != "cuda":
            return _COUNTED
        if (kind, samples) not in self._passed:
            return self._of_first_pass(kind, samples)
        if samples == self._largest[kind]:
            self._first_peaks.pop(kind, None)
        return _COUNTED

    @contextmanager
    def _of_first_pass(self, kind: str, samples: int) -> Iterator[None]:
        self.include(peak_memory_bytes(self._device))
        forget_peak_memory(self._device)
        yield
        self._passed.add((kind, samples))
        if samples > self._largest.get(kind, 0):
            self._largest[kind], self._first_peaks[kind] = samples, peak_memory_bytes(self._device)
        forget_peak_memory(self._device)
        self._valid_until = 0.0

    @contextmanager
    def without_counting(self) -> Iterator[None]:
        """Count no peak inside, as of reading a checkpoint; memory that stays in use is counted afterwards.

        Else a trial that goes on from a checkpoint, whose content lies beside model and optimizer until it is loaded,
        would seem to need more memory than the same trial without a pause.
        """
        self.include(peak_memory_bytes(self._device))
        yield
        _return_freed_memory()
        forget_peak_memory(self._device)
        self._valid_until = 0.0


def forget_peak_memory(device: torch.device) -> None:
    """Let `peak_memory_bytes` start from what is in use now; where the system cannot, it keeps what was before."""
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call] # a device with a number would not be known before
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
