"""The program that mirrors one study in a process of its own: `python -m studies.storage.views_program`.

It reads its order as one line of JSON from stdin: URLs may hold passwords, and every user of a machine can read the
arguments of its processes. Further lines are `Wish`es; the end of stdin says that a command waits for the views.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from studies.storage.store import Store
from studies.storage.views import follow, keep_report, load


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What the program is to do.

    Attributes:
        store: URL of the store.
        study: Name of the study.
        parent_pid: Process with which this one ends.
    """

    store: str
    study: str
    parent_pid: int

    def to_line(self) -> str:
        """The order as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Order:
        """The order of a line that `to_line` wrote."""
        return cls(**json.loads(line))


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What a command asks of the program later; any wish is one to begin.

    Attributes:
        hurry: Whether to mirror without rests from now on.
        report: Path of the report that is to be kept in MLflow; the program ends afterwards.
    """

    hurry: bool = False
    report: str | None = None

    def to_line(self) -> str:
        """The wish as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"


class _Wishes:
    """The wishes on stdin, read by a thread."""

    def __init__(self) -> None:
        self.begun, self.hurried, self.ends = threading.Event(), threading.Event(), threading.Event()
        self.report: str | None = None
        threading.Thread(target=self._read, name="wishes", daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            wish = Wish(**json.loads(line))
            if wish.hurry:
                self.hurried.set()
            if wish.report is not None:
                self.report = wish.report
                self.ends.set()
            self.begun.set()
        self.hurried.set()
        self.begun.set()


def main() -> None:
    """Mirror the study until it is over, the parent process has ended, or a report is to be kept; then keep it."""
    order = Order.from_line(sys.stdin.readline())
    wishes = _Wishes()
    is_orphan = _is_gone(order.parent_pid)
    _be_a_batch_process()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")

    def is_over() -> bool:
        return wishes.ends.is_set() or is_orphan()

    with closing(Store(order.store)) as store:
        load(store, order.study)
        wishes.begun.wait()
        follow(store, order.study, is_over, ends_with_study=True, hurried=wishes.hurried)
        if wishes.report is not None:
            keep_report(store, order.study, Path(wishes.report))


def _be_a_batch_process() -> None:
    """Displace no rank when it wakes up."""
    with contextlib.suppress(AttributeError, OSError):  # only Linux has the policy, and a sandbox may refuse it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


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


if __name__ == "__main__":
    main()
