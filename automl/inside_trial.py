"""Functions for a program that runs as a trial; outside a trial they do nothing, so a script still works by itself.

    import automl

    folder = automl.resume()                 # files of the earlier attempt; None at the first start
    for epoch in range(first, 21):
        ...
        if folder := automl.checkpoint(epoch):
            torch.save(state, folder / "state.pt")
        automl.report(epoch=epoch, val_error=error)

It imports only the standard library: the user's own modules may have the names of ours. Other end:
`trainers.commands.channel`.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

CHANNEL = "AUTOML_CHANNEL"
"""Variable with the path of the socket; it is set inside trials."""
_PARAMS = "AUTOML_PARAMS"


class TrialOver(SystemExit):
    """The trial ends here: it was pruned, paused or stopped. `finally` blocks run, and the exit status is 0."""


def report(epoch: int, *, last: bool = False, **metrics: Any) -> None:
    """Report the metrics of an epoch, and wait until the search has decided about the next one.

    Rank 0's metrics count; other ranks call this too if they are to end in order with rank 0.

    Args:
        epoch: Number of the epoch that has ended, from 1; report each epoch, in order.
        last: The program ends with this epoch, though more were planned.
        metrics: Numbers, or values that `float` accepts, such as a tensor of one element.

    Raises:
        TrialOver: The trial is over.
        ValueError: A metric is not a number.
        ConnectionError: This program is inside a trial, and cannot reach it.
    """
    if CHANNEL not in os.environ:
        return
    numbers = {name: _number(name, value) for name, value in metrics.items()}
    _ask(ask="report", epoch=int(epoch), last=bool(last), metrics=numbers)


def checkpoint(epoch: int, *, last: bool = False) -> Path | None:
    """Return the folder for the files needed to go on after this epoch; None if no checkpoint is wanted now.

    Call it before the epoch's report, which keeps the content of the folder; all ranks get the same answer.

    Args:
        epoch: Number of the epoch that has ended, from 1.
        last: Its report will say `last=True`: then a checkpoint is wanted.
    """
    if CHANNEL not in os.environ:
        return None
    folder = _ask(ask="checkpoint", epoch=int(epoch), last=bool(last)).get("folder")
    return None if folder is None else Path(folder)


def resume() -> Path | None:
    """Return the folder with the files of an earlier attempt; None at the first start.

    Call it before the loop over the epochs: time up to here counts as the start of the trial.
    """
    folder = _ask(ask="resume").get("folder") if CHANNEL in os.environ else None
    return None if folder is None else Path(folder)


def params() -> dict[str, Any]:
    """Return the trial's parameters by name; none outside a trial."""
    found: dict[str, Any] = json.loads(os.environ.get(_PARAMS, "{}"))
    return found


def heartbeat() -> None:
    """Report that the program is alive; output and used CPU time count as well."""
    if CHANNEL in os.environ:
        _ask(ask="heartbeat")


class _Connection:
    """The connection of this process; a forked process opens its own."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._asking = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(os.environ[CHANNEL])
        except ConnectionRefusedError:  # nobody listens any more: the rank has ended the trial
            raise TrialOver(0) from None
        except OSError as error:
            raise ConnectionError(
                f"the trial cannot be reached at {os.environ[CHANNEL]} ({CHANNEL}): {error.strerror or error}; "
                "start the program where it sees this path, or without the variable"
            ) from None
        self._answers = self._socket.makefile("rb")

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        with self._asking:
            self._socket.sendall(json.dumps(question).encode() + b"\n")
            line = self._answers.readline()
        if not line:
            raise TrialOver(0)
        answer: dict[str, Any] = json.loads(line)
        return answer


_connection: _Connection | None = None


def _ask(**question: Any) -> dict[str, Any]:
    global _connection  # noqa: PLW0603 - one for each process
    if _connection is None or _connection.process != os.getpid():
        try:
            _connection = _Connection()
        except ConnectionError as error:
            raise ConnectionError(f"automl.{question['ask']}: {error}") from None
    try:
        answer = _connection.ask(question)
    except OSError:  # the rank has ended the trial, and takes no more questions
        raise TrialOver(0) from None
    if answer.get("over"):
        raise TrialOver(0)
    if "error" in answer:
        raise ValueError(f"automl.{question['ask']}: {answer['error']}")
    return answer


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"automl.report: {name}: found {value!r:.80}, allowed: a number") from None
