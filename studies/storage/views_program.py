"""The program that mirrors one study in a process of its own: `python -m studies.storage.views_program`.

It reads its order as one line of JSON from stdin: URLs may hold passwords, and every user of a machine can read the
arguments of its processes. The end of stdin says that a command waits for the views.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import psutil

from studies.storage.store import Store
from studies.storage.view_cursors import VIEWS, ViewName
from studies.storage.views import follow

POLL_SECONDS = 0.5
FIRST_REST_SECONDS = 30.0
"""Loading Optuna and MLflow takes seconds of a core, which the first trials need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What the program is to do.

    Attributes:
        store: URL of the store.
        study: Name of the study.
        parent_pid: Process with which this one ends.
        views: Views to mirror.
        first_rest_seconds: Seconds to wait before the first look at the store, unless a command waits for the views.
        yields: Whether the process takes only otherwise idle processor time, once the first rest is over.
    """

    store: str
    study: str
    parent_pid: int
    views: tuple[ViewName, ...] = VIEWS
    first_rest_seconds: float = FIRST_REST_SECONDS
    yields: bool = True

    def to_line(self) -> str:
        """The order as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Order:
        """The order of a line that `to_line` wrote."""
        fields = json.loads(line)
        return cls(**{**fields, "views": tuple(fields["views"])})


def main() -> None:
    """Mirror the study until it is over or the parent process has ended."""
    order = Order.from_line(sys.stdin.readline())
    hurried = threading.Event()
    threading.Thread(target=_set_at_end_of_stdin, args=(hurried,), name="hurry", daemon=True).start()
    is_orphan = _is_gone(order.parent_pid)
    _rest(order.first_rest_seconds, is_orphan, hurried)
    # In a short study a command waits already, and no rank trains any more.
    if order.yields and not hurried.is_set():
        _take_idle_time_only()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    store = Store(order.store)
    try:
        follow(store, order.study, is_orphan, views=order.views, ends_with_study=True, hurried=hurried)
    finally:
        store.close()


def _rest(seconds: float, is_orphan: Callable[[], bool], hurried: threading.Event) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not is_orphan():
        if hurried.wait(min(left, POLL_SECONDS)):
            return


def _set_at_end_of_stdin(event: threading.Event) -> None:
    sys.stdin.read()
    event.set()


def _is_gone(pid: int) -> Callable[[], bool]:
    """A function that says whether the process with this id has ended; an id that is reused is another process."""
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


def _take_idle_time_only() -> None:
    """Give way to the ranks: they are batch threads, and one that wakes up displaces at once only an idle thread.

    That holds within a session only where Linux groups processes by session, so this process stays in the controller's.
    There is no way back without privileges: the process that waits for the views starts others (`ViewsProcess`).
    """
    os.nice(19)
    with contextlib.suppress(AttributeError, OSError):  # only Linux has the policy, and a sandbox may refuse it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    main()
