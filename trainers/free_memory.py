"""Ends reading with an error, before a small file that expands without bound fills the memory."""

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_SOFT_BYTES, _HARD_BYTES = resource.getrlimit(resource.RLIMIT_DATA)
_CONTAINER = Path("/sys/fs/cgroup")


@contextmanager
def within_free_memory(what: str, refused: type[Exception]) -> Iterator[None]:
    """Limit the data of this process to what it has and what is free now. A MemoryError becomes a `refused` error.

    A fixed limit would refuse honest tables on large machines, which often expand twentyfold.
    """
    has = psutil.Process().memory_info().data
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
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no container, or one without a limit
        most, used = (int((_CONTAINER / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)$", (_CONTAINER / "memory.stat").read_text(), re.MULTILINE)
        free = min(free, most - used + int(cached[1] if cached else 0))
    return max(free, 0)
