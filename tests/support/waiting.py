"""Wait for what other processes and threads do."""

import time
from collections.abc import Callable
from typing import Any

import psutil


def wait_until(holds: Callable[[], Any], what: str = "it did not come true", seconds: float = 60.0) -> None:
    """Ask until the answer is true, and fail with `what`, and the last answer, after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"{what} in {seconds:g} s: {answer!r}"
        time.sleep(0.05)


def is_gone(process: psutil.Process | int) -> bool:
    """Whether a process has ended; whoever started it may still have to ask for its exit code."""
    try:
        one = process if isinstance(process, psutil.Process) else psutil.Process(process)
        return not one.is_running() or one.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
