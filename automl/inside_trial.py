"""Functions for a program that runs as a trial. Outside a trial they do nothing.

    import automl

    folder = automl.resume()                 # files of the earlier attempt; None at the first start
    for epoch in range(first, 21):
        ...
        if folder := automl.checkpoint(epoch):
            torch.save(state, folder / "state.pt")
        automl.report(epoch=epoch, val_error=error)

This module imports only the standard library, because the user's modules may have the names of this project's modules.
The other end of the connection is `trainers.commands.channel`.
"""

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

CHANNEL = "AUTOML_CHANNEL"  # environment variable with the path of the socket, set inside trials
_PARAMS = "AUTOML_PARAMS"


class TrialOver(SystemExit):
    """The search has pruned, paused or stopped this trial. `finally` blocks run, and the exit status is 0."""


def report(epoch: int, *, last: bool = False, **metrics: Any) -> None:
    """Report an epoch's metrics, and wait until the search has decided about the next epoch.

    Only rank 0's metrics count. The other ranks must call this too, to end together with rank 0.

    Args:
        epoch: Number of the ended epoch, from 1. Report each epoch, in order.
        last: The program ends with this epoch, although more were planned.
        metrics: Numbers, or other values that `float` accepts, such as tensors of one element.

    Raises:
        TrialOver: The search has pruned, paused or stopped the trial.
        ValueError: A metric is not a number.
        ConnectionError: The trial's process cannot be reached.
    """
    if CHANNEL not in os.environ:
        return
    numbers = {name: _number(name, value) for name, value in metrics.items()}
    _ask(ask="report", epoch=int(epoch), last=bool(last), metrics=numbers)


def checkpoint(epoch: int, *, last: bool = False) -> Path | None:
    """Return the folder for the files needed to continue after this epoch, or None if no checkpoint is due.

    Call this before the epoch's report, which saves the content of the folder. All ranks get the same answer.

    Args:
        epoch: Number of the ended epoch, from 1.
        last: The next report has `last=True`, so a checkpoint is due.
    """
    if CHANNEL not in os.environ:
        return None
    folder = _ask(ask="checkpoint", epoch=int(epoch), last=bool(last)).get("folder")
    return None if folder is None else Path(folder)


def resume() -> Path | None:
    """Return the folder with an earlier attempt's files, or None at the first start.

    Call this before the loop over the epochs: the time until this call counts as the trial's start.
    """
    folder = _ask(ask="resume").get("folder") if CHANNEL in os.environ else None
    return None if folder is None else Path(folder)


def params() -> dict[str, Any]:
    """Return the trial's parameters by name; empty outside a trial."""
    found: dict[str, Any] = json.loads(os.environ.get(_PARAMS, "{}"))
    return found


def heartbeat() -> None:
    """Report that the program is alive. Output and used CPU time have the same effect."""
    if CHANNEL in os.environ:
        _ask(ask="heartbeat")


class _Connection:
    """Connection of this process to its trial. A forked process opens its own connection."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._asking = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(os.environ[CHANNEL])
        except ConnectionRefusedError:  # the socket is closed: the rank has ended the trial
            raise TrialOver(0) from None
        except OSError as error:
            raise ConnectionError(
                f"the trial cannot be reached at {os.environ[CHANNEL]} ({CHANNEL}): {error.strerror or error}; "
                "start the program where this path exists, or unset the variable"
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
    global _connection  # noqa: PLW0603 - one connection for each process
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
