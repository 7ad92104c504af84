"""CPUs that this process may use. Does not load torch."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where a container has its share of the CPUs' time."""


def available_cpus(quota: Path = CPU_QUOTA) -> float:
    """Return the number of CPUs that this process is bound to, or a container's share of their time if that is less.

    Args:
        quota: The container's file of CPU time, "microseconds period" or "max period".
    """
    cpus = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with suppress(OSError, ValueError, ZeroDivisionError):
        microseconds, period = (float(word) for word in quota.read_text(encoding="ascii").split())
        cpus = min(cpus, microseconds / period)
    return cpus
