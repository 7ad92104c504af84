"""A separate process that updates the copies in Optuna and MLflow, so that they never delay the controller.

It reads lines of JSON from standard input: first its task (`store`, `study`, `parent_pid`), then requests: `hurry`, or
`report`, the path of a report to store in MLflow before it ends.
"""

import contextlib
import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
from sqlalchemy.exc import SQLAlchemyError

from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from studies.storage.views.cursors import Progress, forget_errors, progress
from studies.storage.views.mirror import follow, keep_report


class _Wishes:
    def __init__(self) -> None:
        self.hurried, self.ends = threading.Event(), threading.Event()
        self.report: str | None = None
        threading.Thread(target=self._read, name="wishes", daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            wish = json.loads(line)
            if wish.get("hurry"):
                self.hurried.set()
            if "report" in wish:
                self.report = wish["report"]
                self.ends.set()
        self.hurried.set()


def main() -> None:
    """Update the views until the study or the parent process ends, or a report arrives, which is then stored."""
    order = json.loads(sys.stdin.readline())
    wishes = _Wishes()
    is_orphan = _is_gone(order["parent_pid"])
    with contextlib.suppress(AttributeError, OSError):  # only Linux has the policy, and a sandbox may refuse it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")

    def is_over() -> bool:
        return wishes.ends.is_set() or is_orphan()

    with closing(Store(order["store"])) as store:
        follow(store, order["study"], is_over, ends_with_study=True, hurried=wishes.hurried)
        if wishes.report is not None:
            keep_report(store, order["study"], Path(wishes.report))


def _is_gone(pid: int) -> Callable[[], bool]:
    """Return a function that returns whether this process has ended, even if another process got its id."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return lambda: True

    def gone() -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            return True

    return gone


if __name__ == "__main__":
    main()


STOP_SECONDS = 5.0
FAILING_SECONDS = 5.0  # seconds without progress after which failing views are given up: time for two more tries
POLL_SECONDS = 0.1


class ViewsProcess:
    """Updates the views of one study in another process. A pipe passes the store's URL, which may hold a password."""

    def __init__(self, store_url: str, study: str, *, log_file: Path | None = None) -> None:
        self._store_url, self._study, self._log_file = store_url, study, log_file
        self._process: subprocess.Popen[str] | None = None
        self._store: Store | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Id of the process, even after its end; None before the start."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process unless it is running. It ends by itself with the study or with this process."""
        with contextlib.suppress(SQLAlchemyError, StoreError):  # stale errors only make the wait at the end shorter
            forget_errors(self._opened(), self._study)
        if not self.is_running:
            self._process = self._launch()
            self._send(store=self._store_url, study=self._study, parent_pid=os.getpid())

    def hurry(self) -> None:
        """Make the process work without pauses from now on, because a command is waiting for it."""
        self._send(hurry=True)

    def wait_until_caught_up(self, seconds: float) -> bool:
        """Wait until all views contain the last commit.

        Returns False after `seconds`, if the process died, or if all remaining views failed and made no progress for
        some seconds, so that waiting longer would not help.
        """
        self.hurry()
        end, failing_since, failing = time.monotonic() + seconds, math.inf, None
        while True:
            is_running = self.is_running
            behind, now = self._behind(), time.monotonic()
            if behind == []:
                return True
            before, failing = failing, _failing(behind)
            if failing is None or failing != before:
                failing_since = math.inf if failing is None else now
            if not is_running or now >= end or now - failing_since >= FAILING_SECONDS:
                return False
            time.sleep(POLL_SECONDS)

    def keep_report(self, report: Path, seconds: float) -> bool:
        """Make the process store a report in MLflow and end. Returns True if it did, or if MLflow is off."""
        process = self._process
        if process is None or not self.is_running:
            return False
        self._send(report=str(report))
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(seconds) == 0
        return False

    def stop(self) -> None:
        """End the process. Interrupted work is repeated later."""
        if self._store is not None:
            self._store.close()
            self._store = None
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _send(self, **what: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # if it died at once, `wait_until_caught_up` notices
                self._process.stdin.write(json.dumps(what) + "\n")
                self._process.stdin.flush()

    def _launch(self) -> subprocess.Popen[str]:
        output = subprocess.DEVNULL if self._log_file is None else os.open(
            self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )  # fmt: skip
        try:
            # -P: a user's own folder called `studies` or `mlflow` must not be imported instead of ours.
            # Own process group: Ctrl-C drains the study, which the views still have to mirror then.
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "studies.storage.views.views_process"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                process_group=0,
            )
        finally:
            if output >= 0:
                os.close(output)

    def _behind(self) -> list[Progress] | None:
        try:
            return [one for one in progress(self._opened(), self._study).values() if one.behind]
        except (SQLAlchemyError, StoreError):
            return None

    def _opened(self) -> Store:
        if self._store is None:
            self._store = Store(self._store_url)
        return self._store


def _failing(behind: list[Progress] | None) -> dict[str, int] | None:
    if not behind or any(one.error is None for one in behind):
        return None
    return {one.view: one.revision for one in behind}
