"""Signal handling of commands.

SIGINT (Ctrl-C), SIGTERM and SIGHUP (a closed terminal) make a command stop its study with checkpoints. A second SIGINT
or SIGTERM ends the process at once, or in a notebook the study. Commands without a study end with exit code 130.
"""

import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from automl.terminal.echo import INTERRUPTED

SAME_REQUEST_SECONDS = 1.0
"""Seconds in which a second SIGTERM is ignored: `timeout` signals a process and then its group."""


def leave_at_once() -> None:
    """End this process without cleaning up."""
    os._exit(INTERRUPTED)


Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def private_files() -> Iterator[None]:
    """Hide files created in the `with` block, also by child processes, from other users."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def draining_signals(
    drain: Callable[[str], None], say: Callable[[str], None], what_ends: str, leave: Callable[[], None] = leave_at_once
) -> Iterator[None]:
    """Call `drain` with a reason at the first signal, and `leave`, which does not return, at the second."""
    first: tuple[int, float] | None = None

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = (number, now)
            drain("interrupted")
            line = f"draining: {what_ends}; Ctrl-C again leaves at once"
            threading.Thread(target=say, args=(line,), daemon=True).start()
            return
        sent_twice = number == signal.SIGTERM == first[0] and now - first[1] < SAME_REQUEST_SECONDS
        if number == signal.SIGHUP or sent_twice:
            return
        if first[0] == signal.SIGHUP:  # the terminal was closed, but nobody has asked for an end yet
            first = (number, now)
            return
        leave()

    with _handlers(handle):
        yield


@contextmanager
def interrupting_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, so that everything is cleaned up."""
    with _handlers(signal.default_int_handler, numbers=(signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def _handlers(
    handler: Handler, numbers: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
) -> Iterator[None]:
    """Handle signals in a `with` block, in the main thread only. SIGHUP stays ignored under `nohup`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    taken = [number for number in numbers if not (number == signal.SIGHUP and ignored)]
    before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


_NOBODY_READS = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO})
"""Errors of a pipe whose reader has ended (`| head -1`), and of a closed terminal."""


class LastingFile(io.FileIO):
    """File that ignores failed writes. `problem` is the first error other than a closed pipe."""

    problem: OSError | None = None

    def write(self, data: object, /) -> int:
        """Write the data, or drop them if writing fails. Returns the number of handled bytes."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        try:
            return super().write(view) or 0
        except OSError as error:
            if error.errno not in _NOBODY_READS and self.problem is None:
                self.problem = error
            return len(view)


@contextmanager
def lasting_streams() -> Iterator[list[LastingFile]]:
    """Replace stdout and stderr by streams that escape characters they cannot encode. Yields their files."""
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
    """Open /dev/null for closed standard streams. Otherwise the next opened files would get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _lasting(stream: TextIO) -> tuple[TextIO, LastingFile]:
    stream.flush()
    file = LastingFile(stream.fileno(), "wb", closefd=False)
    buffered = io.BufferedWriter(file)
    made = io.TextIOWrapper(buffered, stream.encoding, "backslashreplace", line_buffering=True, write_through=True)
    return made, file
