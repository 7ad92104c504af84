"""A question to a program of ours in a process of its own, which reads what users have sent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from automl.service.errors import BusyError, ConflictError
from search_spaces.errors import UserError

CHECK_SECONDS = 120.0
"""Longest time for a task's code to say what it is."""
MOST_AT_ONCE, MOST_TAKEN = 2, 8
"""Number of questions that are worked out at the same time, and of those that are taken: each holds a thread."""
WAIT_SECONDS = 10.0
"""Longest wait of a question for those before it."""
_at_once = threading.BoundedSemaphore(MOST_AT_ONCE)
_taken = threading.BoundedSemaphore(MOST_TAKEN)


def answer_of(
    module: str, arguments: Sequence[str] = (), *, text: str = "", what: str = "check", **environment: str
) -> dict[str, Any]:
    """Return the last line that a module prints, read as JSON.

    Args:
        module: Module with a `main`, which ends with exit code 0, or with one line about what is wrong.
        arguments: Its arguments.
        text: What it finds on its standard input.
        what: What is asked for, as the place in messages about it.
        environment: Further variables of its environment.

    Raises:
        UserError: It ended otherwise; the message is the last line on its standard error.
        ConflictError: It took too long.
        BusyError: Too many questions are worked out now.
    """
    command = [sys.executable, "-m", module, *arguments]
    with _turn(what):
        code, printed, told = _ended(command, text, {**os.environ, **environment}, what)
    if code != 0:
        lines = [line for line in told.splitlines() if line.strip()]
        raise UserError(lines[-1] if lines else f"{what}: ended with exit code {code}")
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


@contextmanager
def _turn(what: str) -> Iterator[None]:
    """Wait until fewer questions than `MOST_AT_ONCE` are worked out."""
    busy = BusyError(
        f"{what}: found {MOST_AT_ONCE} checks or exports at work, allowed: at most that many; ask again in some seconds"
    )
    if not _taken.acquire(blocking=False):
        raise busy
    try:
        if not _at_once.acquire(timeout=WAIT_SECONDS):
            raise busy
        try:
            yield
        finally:
            _at_once.release()
    finally:
        _taken.release()


def _ended(command: Sequence[str], text: str, environment: dict[str, str], what: str) -> tuple[int, str, str]:
    """Exit code and output of a command, which is killed with all that it has started if it takes too long."""
    process = subprocess.Popen(  # noqa: S603 - our own program
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, told = process.communicate(text, timeout=CHECK_SECONDS)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise ConflictError(f"{what}: the task's code took longer than {CHECK_SECONDS:g} s") from None
        raise
    return process.returncode, printed, told
