"""Lets a command continue when standard output or standard error is closed."""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_NOBODY_READS = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO})
"""Errors of a pipe whose reader has ended (`| head -1`), and of a closed terminal."""


class LastingFile(io.FileIO):
    """A file descriptor that drops failed writes. `problem` is the first error other than a closed pipe."""

    problem: OSError | None = None

    def write(self, data: object, /) -> int:
        """Write, or drop the data on an error. Returns the number of bytes handled."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        try:
            return super().write(view) or 0
        except OSError as error:
            if error.errno not in _NOBODY_READS and self.problem is None:
                self.problem = error
            return len(view)


@contextmanager
def lasting_streams() -> Iterator[list[LastingFile]]:
    """Replace and yield this process's own standard streams. Characters outside their encoding are escaped."""
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
    """Open /dev/null in place of closed standard streams, because the next opened file would get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _lasting(stream: TextIO) -> tuple[TextIO, LastingFile]:
    stream.flush()
    file = LastingFile(stream.fileno(), "wb", closefd=False)
    buffered = io.BufferedWriter(file)
    made = io.TextIOWrapper(buffered, stream.encoding, "backslashreplace", line_buffering=True, write_through=True)
    return made, file
