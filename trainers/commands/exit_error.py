"""What the end of a program means that has not reported its last epoch."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence

from trainers.errors import error_of_text
from trainers.protocol import LostError, TaskError, TrainingError

_KILLS = frozenset({signal.SIGKILL, signal.SIGTERM})
"""Signals that say nothing of the command: another attempt may succeed."""
_SHELL_SIGNALS = 128
"""A shell whose program was killed by a signal ends with this and the signal's number."""
_TAKEN = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)


def exit_error(
    status: int | str | None,
    where: str,
    *,
    epochs: tuple[int, int],
    way: str,
    last_lines: Sequence[str],
    ports: Collection[int],
) -> TrainingError:
    """Return the error of a program that has ended too early.

    Args:
        status: Its exit status, a negative one being a signal; the reason for which it could not be run; None where
            its supervisor was killed, and nobody knows.
        where: Attempt and rank, for messages.
        epochs: Number of epochs that it has reported, and of those that it should have reported.
        way: How it can report them, for messages.
        last_lines: Lines that it has printed last.
        ports: Ports that it was given and has not begun to use for long: another process may have taken one.
    """
    if status is None:
        return LostError(f"the supervisor of the command was killed ({where})")
    if isinstance(status, str):
        return TaskError(f"the command cannot be run ({where}): {status}")
    if status == 0:
        done, planned = epochs
        how_far = f"after epoch {done} of {planned}" if done else "without a report"
        wanted = "a report of each epoch, or one that says last" if done else way
        return TaskError(f"the command ended with exit status 0 {how_far}; allowed: {wanted}")
    killed_by = -status if status < 0 else status - _SHELL_SIGNALS
    if killed_by in _KILLS:
        return LostError(f"the command was killed by signal {killed_by} ({where})")
    text = "\n".join(last_lines)
    for port in ports:
        if _TAKEN.search(text) and re.search(rf"\b{port}\b", text):
            return LostError(f"another process took port {port} before the command did ({where})")
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
    return error_of_text(f"the command {how} ({where})", last_lines)
