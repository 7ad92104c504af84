"""The controller's side of the views: a process of their own, so that Optuna and MLflow cannot slow a study down."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from studies.storage.engine import StoreError
from studies.storage.store import Store
from studies.storage.view_cursors import Progress, forget_errors, progress

STOP_SECONDS = 5.0
FAILING_SECONDS = 5.0  # long enough for two more tries
POLL_SECONDS = 0.1


class ViewsProcess:
    """Follows one study in another process.

    Args:
        store_url: Of the store; may hold a password, which goes through a pipe and not through the arguments.
        study: Name of the study.
        log_file: Where the process says what went wrong; None throws it away.
    """

    def __init__(self, store_url: str, study: str, *, log_file: Path | None = None) -> None:
        self._store_url, self._study, self._log_file = store_url, study, log_file
        self._process: subprocess.Popen[str] | None = None
        self._store: Store | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process, unless it runs; it ends by itself with the study, or with this process."""
        if self.is_running:
            return
        self._forget_errors()
        order = {"store": self._store_url, "study": self._study, "parent_pid": os.getpid()}
        output = subprocess.DEVNULL if self._log_file is None else os.open(
            self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )  # fmt: skip
        try:
            # -P: a user's own folder called `studies` or `mlflow` must not be imported for ours.
            # A process group of its own: Ctrl-C drains the study, which the views then still have to mirror.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "studies.storage.views"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                process_group=0,
            )
        finally:
            if output >= 0:
                os.close(output)
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once: `wait_until_caught_up` will say that the views are behind

    def wait_until_caught_up(self, seconds: float) -> bool:
        """Wait until both views hold the last commit.

        Returns:
            False if they do not after so long, or the process has died, or each view that is behind has failed and got
            no further for some seconds: what is refused now is refused in half a minute, too.
        """
        self._hurry()
        end, failing_since, failing = time.monotonic() + seconds, math.inf, None
        while True:
            lived, behind, now = self.is_running, self._behind(), time.monotonic()
            if behind == []:
                return True
            before, failing = failing, _failing(behind)
            if failing is None or failing != before:
                failing_since = math.inf if failing is None else now
            if not lived or now >= end or now - failing_since >= FAILING_SECONDS:
                return False
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End the process; what it was doing can be done again."""
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._process is None:
            return
        self._hurry()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _hurry(self) -> None:
        """Somebody waits from now on: the end of its stdin tells the process."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _behind(self) -> list[Progress] | None:
        """The views that lack something; None if the store does not answer."""
        try:
            return [one for one in progress(self._opened(), self._study).values() if one.behind]
        except (SQLAlchemyError, StoreError):
            return None

    def _forget_errors(self) -> None:
        """What went wrong for an earlier process says nothing about the one that starts now."""
        with contextlib.suppress(SQLAlchemyError, StoreError):  # it only shortens the waiting at the end
            forget_errors(self._opened(), self._study)

    def _opened(self) -> Store:
        if self._store is None:
            self._store = Store(self._store_url)
        return self._store


def _failing(behind: list[Progress] | None) -> dict[str, int] | None:
    """How far each view is, if all that are behind have failed at their last try."""
    if behind is None or any(one.error is None for one in behind):
        return None
    return {one.view: one.revision for one in behind}
