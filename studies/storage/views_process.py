"""The controller's side of the views: processes of their own, so that Optuna and MLflow cannot slow a study down.

While the study runs, one process mirrors it in otherwise idle processor time. A process that has gone to the lowest
priority cannot leave it, and beside any busy process it gets next to nothing. So the process that waits for the views
ends it and starts one for each view that is behind, at its own priority.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from studies.storage.engine import StoreError
from studies.storage.store import Store
from studies.storage.view_cursors import VIEWS, Progress, ViewName, forget_errors, progress
from studies.storage.views_program import FIRST_REST_SECONDS, Order

STOP_SECONDS = 5.0
FAILING_SECONDS = 5.0
"""Time for two more tries."""
POLL_SECONDS = 0.1


class ViewsProcess:
    """Mirrors one study in other processes.

    Args:
        store_url: URL of the store; a password in it goes through a pipe and not through the arguments.
        study: Name of the study.
        log_file: Where the processes say what went wrong; None throws it away.
        first_rest_seconds: Seconds after `start` in which nothing is mirrored unless a command waits for it.
    """

    def __init__(
        self,
        store_url: str,
        study: str,
        *,
        log_file: Path | None = None,
        first_rest_seconds: float = FIRST_REST_SECONDS,
    ) -> None:
        self._store_url, self._study, self._log_file = store_url, study, log_file
        self._first_rest_seconds = first_rest_seconds
        self._processes: dict[ViewName, subprocess.Popen[str]] = {}
        self._store: Store | None = None

    @property
    def is_running(self) -> bool:
        """Whether a process that mirrors a view lives."""
        return any(process.poll() is None for process in self._processes.values())

    @property
    def pids(self) -> frozenset[int]:
        """Ids of the processes that mirror a view, dead or alive."""
        return frozenset(process.pid for process in self._processes.values())

    def start(self) -> None:
        """Start the process, unless one runs; it ends by itself with the study, or with this process."""
        if self.is_running:
            return
        self._forget_errors()
        process = self._launch(self._order(VIEWS, first_rest_seconds=self._first_rest_seconds, yields=True))
        self._processes = dict.fromkeys(VIEWS, process)

    def wait_until_caught_up(self, seconds: float) -> bool:
        """Wait until both views hold the last commit.

        Returns:
            False if they do not after so long, or the process of a view that is behind has died, or each view that is
            behind has failed and got no further for some seconds: what is refused now is refused in half a minute, too.
        """
        self._hurry()
        end, failing_since, failing = time.monotonic() + seconds, math.inf, None
        while True:
            self._replace_slow()
            alive = {view for view, process in self._processes.items() if process.poll() is None}
            behind, now = self._behind(), time.monotonic()
            if behind == []:
                return True
            before, failing = failing, _failing(behind)
            if failing is None or failing != before:
                failing_since = math.inf if failing is None else now
            is_served = bool(alive) and all(one.view in alive for one in behind or ())
            if not is_served or now >= end or now - failing_since >= FAILING_SECONDS:
                return False
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End the processes; what they were doing can be done again."""
        if self._store is not None:
            self._store.close()
            self._store = None
        self._hurry()
        self._end_processes()

    def _hurry(self) -> None:
        """Tell the processes by the end of their stdin that a command waits."""
        for process in set(self._processes.values()):
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()

    def _replace_slow(self) -> None:
        """Let processes of this one's priority take over from a process of a lower one."""
        if not any(_is_slower_than_this(process) for process in set(self._processes.values())):
            return
        self._end_processes()
        behind = self._behind()
        views = VIEWS if behind is None else tuple(one.view for one in behind)
        # A process for each view: one that loads MLflow does not hold up the mirroring into Optuna.
        self._processes = {
            view: self._launch(self._order((view,), first_rest_seconds=0, yields=False)) for view in views
        }
        self._hurry()

    def _order(self, views: tuple[ViewName, ...], *, first_rest_seconds: float, yields: bool) -> Order:
        return Order(
            store=self._store_url,
            study=self._study,
            parent_pid=os.getpid(),
            views=views,
            first_rest_seconds=first_rest_seconds,
            yields=yields,
        )

    def _launch(self, order: Order) -> subprocess.Popen[str]:
        output = subprocess.DEVNULL if self._log_file is None else os.open(
            self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )  # fmt: skip
        try:
            # -P: a user's own folder called `studies` or `mlflow` must not be imported for ours.
            # A process group of its own: Ctrl-C drains the study, which the views then still have to mirror.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "studies.storage.views_program"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                process_group=0,
            )
        finally:
            if output >= 0:
                os.close(output)
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        # A process that died at once is noticed by `wait_until_caught_up`.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(order.to_line())
            process.stdin.flush()
        return process

    def _end_processes(self) -> None:
        processes, self._processes = set(self._processes.values()), {}
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _behind(self) -> list[Progress] | None:
        """The views that lack something; None if the store does not answer."""
        try:
            return [one for one in progress(self._opened(), self._study).values() if one.behind]
        except (SQLAlchemyError, StoreError):
            return None

    def _forget_errors(self) -> None:
        """Remove what went wrong for an earlier process: it says nothing about the one that starts now."""
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


def _is_slower_than_this(process: subprocess.Popen[str]) -> bool:
    """Whether a living process has gone to a priority below this process's own."""
    if process.poll() is not None:
        return False
    with contextlib.suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, process.pid) > os.getpriority(os.PRIO_PROCESS, 0):
            return True
        if hasattr(os, "SCHED_IDLE"):
            return os.sched_getscheduler(process.pid) == os.SCHED_IDLE != os.sched_getscheduler(0)
    return False
