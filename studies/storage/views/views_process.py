"""A separate process that updates the copies in Optuna and MLflow, so that they never delay the controller.

It reads JSON lines from standard input: first its task (`store`, `study`, `parent_pid`), then requests: `hurry`, or
`report`, the path of a report to store in MLflow before the process ends.
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
    """Update the views until the study or the parent process ends; a report ends this process, too."""
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
    """Return a function that checks whether a process has ended, even if its id was reused."""
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
    """Updates a study's views in another process; a pipe passes the store's URL with its password."""

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
        """Id of the process, also after its end; None before the start."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process unless it runs. It ends with the study or with this process."""
        with contextlib.suppress(SQLAlchemyError, StoreError):  # stale errors only shorten the wait at the end
            forget_errors(self._opened(), self._study)
        if not self.is_running:
            self._process = self._launch()
            self._send(store=self._store_url, study=self._study, parent_pid=os.getpid())

    def hurry(self) -> None:
        """Make the process work without pauses from now on."""
        self._send(hurry=True)

    def wait_until_caught_up(self, seconds: float) -> bool:
        """Wait until all views contain the last commit.

        Returns False after `seconds`, if the process died, or if all remaining views keep failing.
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
        """Make the process store a report in MLflow and end. Returns whether it succeeded."""
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
            # -P: a user's folder named `studies` or `mlflow` must not be imported.
            # Own process group: after Ctrl-C, the views still have to mirror the drained study.
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
