"""Ends reading with an error, before a small file that expands without bound fills the memory."""

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SOFT_BYTES, _HARD_BYTES = resource.getrlimit(resource.RLIMIT_DATA)


@contextmanager
def within_free_memory(what: str, refused: type[Exception]) -> Iterator[None]:
    """Limit the data of this process to what it has and what is free now. A MemoryError becomes a `refused` error.

    A fixed limit would refuse honest tables on large machines, which often expand twentyfold.
    """
    has = _number("/proc/self/status", "VmData:") * 1024
    most = min(has + _free_bytes(), *(one for one in (_SOFT_BYTES, _HARD_BYTES) if one >= 0), 2**62)
    resource.setrlimit(resource.RLIMIT_DATA, (most, _HARD_BYTES))
    try:
        yield
    except MemoryError:
        problem = f"{what}: needs more memory than the {(most - has) / 2**30:.1f} GiB that are free"
        raise refused(f"{problem}. Give fewer rows, or use a machine with more memory") from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (_SOFT_BYTES, _HARD_BYTES))


def _free_bytes() -> int:
    free = _number("/proc/meminfo", "MemAvailable:") * 1024
    with suppress(OSError, ValueError):  # no container, or one without a limit
        most, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, most - used + _number("/sys/fs/cgroup/memory.stat", "inactive_file"))
    return max(free, 0)


def _number(file: str, name: str) -> int:
    found = re.search(rf"^{name}\s+(\d+)", Path(file).read_text(), re.MULTILINE)
    return int(found[1]) if found else 0
