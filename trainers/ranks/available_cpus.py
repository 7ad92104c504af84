"""CPUs that this process may use. Does not load torch."""

import os
from contextlib import suppress
from pathlib import Path

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def available_cpus(quota: Path = CPU_QUOTA) -> float:
    """Return the CPUs of this process's affinity or a container's `quota` ("microseconds period"), if less."""
    cpus = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with suppress(OSError, ValueError, ZeroDivisionError):
        microseconds, period = (float(word) for word in quota.read_text(encoding="ascii").split())
        cpus = min(cpus, microseconds / period)
    return cpus
