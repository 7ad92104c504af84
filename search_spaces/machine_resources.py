"""Measures and limits the CPUs and memory of this process.

In `within_free_memory`, a small file that expands without bound causes an error before the memory is full.
"""

import os
import re
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STATUS, _CUDA = Path("/proc/self/status"), Path("/dev/nvidiactl")
_LOCK = threading.Lock()
_before: list[int] = []
"""Soft limit before the first of the active blocks, once for each block."""


@contextmanager
def within_free_memory(what: str, refused: type[Exception]) -> Iterator[None]:
    """Limit this process's memory to its use and the free memory. Turns MemoryError into `refused`.

    A fixed limit would refuse normal tables on large machines, which often expand twentyfold. There is no limit without
    /proc, as on macOS, or with CUDA, which maps more memory than exists.
    """
    if not _STATUS.exists() or _CUDA.exists():
        yield
        return
    has = _number(_STATUS, "VmData:") * 1024
    with _LOCK:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = min(has + _free_bytes(), *(one for one in (soft, hard) if one >= 0), 2**62)
        _before.append(_before[0] if _before else soft)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    except MemoryError:
        problem = f"{what}: needs more memory than the {max(0, most - has) / 2**30:.1f} GiB that are free"
        raise refused(f"{problem}. Give fewer rows, or use a machine with more memory") from None
    finally:
        with _LOCK:
            soft = _before.pop()
            if not _before:
                resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _free_bytes() -> int:
    free = _number(Path("/proc/meminfo"), "MemAvailable:") * 1024
    with suppress(OSError, ValueError):  # no container, or one without a limit
        most, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, most - used + _number(Path("/sys/fs/cgroup/memory.stat"), "inactive_file"))
    return max(free, 0)


def _number(file: Path, name: str) -> int:
    found = re.search(rf"^{name}\s+(\d+)", file.read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def available_cpus(quota: Path = CPU_QUOTA) -> float:
    """Return the CPUs of this process's affinity, or of the container's `quota` if it is lower."""
    cpus = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with suppress(OSError, ValueError, ZeroDivisionError):
        microseconds, period = (float(word) for word in quota.read_text(encoding="ascii").split())
        cpus = min(cpus, microseconds / period)
    return cpus
