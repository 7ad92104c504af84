"""Lets a command go on when standard output or standard error goes away."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_NOBODY_READS = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO})
"""Errors of a pipe whose reader has ended (`| head -1`) and of a terminal that was closed."""


class LastingFile(io.FileIO):
    """A file descriptor whose failed writes are dropped; `problem` is the first error other than a closed pipe."""

    problem: OSError | None = None

    def write(self, data: object, /) -> int:
        """Write, or drop the data on an error; returns the number of bytes handled."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        try:
            return super().write(view) or 0
        except OSError as error:
            if error.errno not in _NOBODY_READS and self.problem is None:
                self.problem = error
            return len(view)


@contextmanager
def lasting_streams() -> Iterator[list[LastingFile]]:
    """Replace and yield this process's own standard streams; characters outside their encoding are escaped."""
    _open_missing()
    before, files = (sys.stdout, sys.stderr), []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            made, file = _lasting(stream)
            setattr(sys, name, made)
            files.append(file)
    try:
        yield files
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before


def _open_missing() -> None:
    """Open /dev/null in place of closed standard streams: the next file would get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _lasting(stream: TextIO) -> tuple[TextIO, LastingFile]:
    stream.flush()
    file = LastingFile(stream.fileno(), "wb", closefd=False)
    buffered = io.BufferedWriter(file)
    made = io.TextIOWrapper(buffered, stream.encoding, "backslashreplace", line_buffering=True, write_through=True)
    return made, file
