"""What a task prints stays out of answers that programs read."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

_STDOUT, _STDERR = 1, 2


def divert_stdout() -> int:
    """Send what this process and its children write to standard output to standard error, from now on.

    Python's `print`, C libraries and child processes alike: they all end in file descriptor 1.

    Returns:
        A descriptor of the standard output that was; the caller closes it.
    """
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    return kept


@contextmanager
def stdout_diverted() -> Iterator[None]:
    """As `divert_stdout`, until the end of the block."""
    kept = divert_stdout()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _flush_c_streams()  # else they would be written at the end of the process, to what is then standard output
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _flush_c_streams() -> None:
    with suppress(OSError, AttributeError, TypeError):  # a C library that cannot be reached this way has its own
        ctypes.CDLL(None).fflush(None)
