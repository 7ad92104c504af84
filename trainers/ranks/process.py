"""Threads, CPUs and memory of a process that trains trials."""

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

from search_spaces.machine_resources import CPU_QUOTA, available_cpus

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # options of `mallopt` in glibc's malloc.h
_SMALL_BLOCK, _LARGE_BLOCK = 2**18, 2**25
"""Bytes above which glibc returns a freed block at once: our small setting, and glibc's own largest."""

_PEAK_LASTS_SECONDS = 0.1

_YOUNG, _ALL = 1, 2  # generations of Python's garbage collector: a short trial's model is still young


def set_threads(cpus_per_rank: int) -> None:
    """Set the number of torch's threads: more threads than CPUs would compete for cores."""
    if torch.get_num_threads() != cpus_per_rank:
        torch.set_num_threads(cpus_per_rank)


def use_device(device: torch.device, world_size: int, cpus_per_rank: int) -> None:
    """Prepare this training thread for its device and CPUs."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif world_size > 1:
        use_batch_scheduling()
    set_threads(cpus_per_rank)


def use_batch_scheduling() -> None:
    """Ask Linux that this thread, and threads that it starts, do not preempt others when they wake up.

    Ranks that share cores wake each other: an all-reduce of two ranks on two cores takes 0.2 ms, not 1.6 ms.
    """
    with suppress(AttributeError, OSError):  # only Linux has batch scheduling, and a sandbox may refuse it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def pin_to_cpus(cpus: Collection[int]) -> None:
    """Pin this process and its children to CPUs, if any. Two ranks on two cores then need 10 % less time."""
    if not cpus:
        return
    with suppress(AttributeError, OSError):  # only Linux can pin, and a container may forbid some CPUs
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), cpus)


def cpus_of_each_gpu(
    devices: Path = Path("/dev"), gpus: Path = Path("/proc/driver/nvidia/gpus"), quota: Path = CPU_QUOTA
) -> int:
    """Return the number of this container's or job's CPUs for each GPU."""
    return max(1, int(available_cpus(quota) / max(1, _usable_gpus(devices, gpus))))


def _usable_gpus(devices: Path, gpus: Path) -> int:
    """Return the job's number of GPUs by access to device files, because a rank's CUDA sees only one GPU."""
    usable = sum(os.access(device, os.R_OK | os.W_OK) for device in devices.glob("nvidia[0-9]*"))
    if usable:
        return usable
    return len(list(gpus.iterdir())) if gpus.is_dir() else torch.cuda.device_count()


def has_room_for_workers(shared: Path = Path("/dev/shm"), least_bytes: int = 2**30) -> bool:  # noqa: S108 - Linux's
    """Return whether shared memory has room for batches of data workers. Docker's default is only 64 MiB."""
    try:
        return shutil.disk_usage(shared).total >= least_bytes
    except OSError:  # other systems have no such folder
        return True


def use_one_heap() -> None:
    """Let all threads started later share the main thread's heap. Separate heaps cost training 6 % more CPU time."""
    with suppress(AttributeError, OSError):  # only glibc has `mallopt`
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_freed_tensors(*, at_once: bool) -> None:
    """If `at_once`, return freed larger tensors to the system, otherwise keep their memory for reuse.

    Kept memory fragments: gathering blocks of 1 MiB, ranks with 36 MiB of tensors held 200 to 300 MiB, not 41 MiB.
    """
    with suppress(AttributeError, OSError):  # only glibc has `mallopt`
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _SMALL_BLOCK if at_once else _LARGE_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, 2 * (_SMALL_BLOCK if at_once else _LARGE_BLOCK))


def free_memory(parameters: "Remains | None") -> None:
    """Free a trial's leftovers: its model in reference cycles, compiled code, cached device memory.

    Skips the slow garbage collection if the model's parameters are gone; None means unknown, as after a failed start.
    Deletes compiled code, because torch limits variants per process, and times would depend on earlier trials.
    """
    for generation in _YOUNG, _ALL:
        if parameters is None or parameters.remain():
            gc.collect(generation)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        with suppress(AttributeError):  # older versions of torch lack it
            torch.accelerator.memory.empty_host_cache()  # memory pinned for copies of checkpoints
    _return_freed_memory()


def _return_freed_memory() -> None:
    with suppress(AttributeError, OSError):  # only glibc has `malloc_trim`
        ctypes.CDLL(None).malloc_trim(0)


def exempt_from_collection() -> None:
    """Exempt all present objects from garbage collection: searching them takes 30 to 100 ms after each trial."""
    gc.collect()  # garbage among exempt objects would stay
    gc.freeze()


def collect_exempt() -> None:
    """Collect garbage also among the objects that were exempt, and exempt none."""
    gc.unfreeze()
    gc.collect()


class Remains:
    """Checks by weak references whether a model's parameters are still in memory."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = [weakref.ref(parameter) for parameter in parameters]

    def remain(self) -> bool:
        """Return whether any parameter is still in memory."""
        return any(parameter() is not None for parameter in self._parameters)


_COUNTED = nullcontext()


class PeakMemory:
    """Peak memory of this process since this object's creation, and of earlier attempts. Read every 0.1 s at most."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._bytes, self._valid_until = device, 0.0, 0.0
        self._before = 0.0
        self._passed: set[tuple[str, int]] = set()
        self._largest: dict[str, int] = {}
        self._first_peaks: dict[str, float] = {}
        forget_peak_memory(device)

    def peak_bytes(self) -> float:
        """Return the peak memory in bytes."""
        now = time.monotonic()
        if now >= self._valid_until:
            self._bytes = peak_memory_bytes(self._device)
            self._valid_until = now + _PEAK_LASTS_SECONDS
        return max(self._bytes, self._before, *self._first_peaks.values())

    def include(self, peak_bytes: float) -> None:
        """Include an earlier attempt's peak in bytes."""
        self._before = max(self._before, peak_bytes)

    def of_pass(self, kind: str, samples: int) -> AbstractContextManager[object]:
        """Return the context of a pass through the model, for measuring its memory.

        On a GPU, the first pass of each size includes cuDNN's trials of algorithms, which later passes do not need. Its
        peak counts only for the largest batch, and only until that batch size is passed again.
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
        """Leave the block's memory out of the recorded peak: only a resumed trial reads a checkpoint, for example."""
        self.include(peak_memory_bytes(self._device))
        yield
        _return_freed_memory()
        forget_peak_memory(self._device)
        self._valid_until = 0.0


def forget_peak_memory(device: torch.device) -> None:
    """Restart `peak_memory_bytes` from the memory in use, if the system supports it."""
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call] # torch needs this for a device with a number
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # 5: the peak resident size


def peak_memory_bytes(device: torch.device) -> float:
    """Return the peak in bytes since `forget_peak_memory`: torch's on a GPU, the whole process's on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    with suppress(OSError, ValueError, IndexError), open("/proc/self/status", "rb", buffering=0) as file:  # noqa: PTH123
        return float(file.read(4096).partition(b"VmHWM:")[2].split(maxsplit=1)[0]) * 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)
