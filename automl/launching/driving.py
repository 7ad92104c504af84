"""Driving a study with a controller in this process: a drain at a signal, views, and the report at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from automl.launching.model_counting import Counting
from automl.launching.pools import pool_of
from automl.launching.preparing import Prepared
from automl.signals import draining_signals
from automl.stored.reporting import VIEWS_SECONDS, report_path
from reports.page import write_report
from studies.control.session import Session
from studies.control.state import StudyMachine
from studies.records import StudyRecord, ViewRecord
from studies.storage.reader import load_study
from studies.storage.store import Store
from studies.storage.view_cursors import lag
from studies.storage.views_process import ViewsProcess


@dataclass(frozen=True, kw_only=True, slots=True)
class Watcher:
    """Functions that hear of a study's progress.

    Attributes:
        on_commit: Called with the state machine after each commit.
        say: Called with a line for the user.
        warn: Called with a warning.
    """

    on_commit: Callable[[StudyMachine], None] = lambda _machine: None
    say: Callable[[str], None] = lambda _line: None
    warn: Callable[[str], None] = lambda _line: None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A study after its controller has ended.

    Attributes:
        record: Study as committed.
        report: Path of the HTML page.
        ran: Whether there was anything to do.
        views_behind: Views that did not catch up in time.
    """

    record: StudyRecord
    report: Path
    ran: bool
    views_behind: tuple[ViewRecord, ...] = ()


def drive(store: Store, row: sa.Row[Any], prepared: Prepared, watcher: Watcher) -> Outcome:
    """Drive the study until it is closed, drained or failed, wait for its views, and write its report.

    Args:
        store: Store that holds the study.
        row: Row of the study.
        prepared: Spec in force, and the machine that it runs on.
        watcher: Functions that hear of the progress.
    """
    spec = prepared.spec
    views = ViewsProcess(store.url, spec.study)
    counting = Counting(store, row, prepared)
    session = Session(
        store=store,
        row=row,
        spec=spec,
        pool_spec=prepared.place,
        pool=pool_of(prepared),
        on_commit=_starting_views(views, watcher),
        on_stand_by=lambda holder: watcher.say(f"{holder} drives this study; standing by"),
        counted=counting.sizes,
    )
    over = threading.Event()

    def drain(reason: str) -> None:
        if over.is_set():
            raise KeyboardInterrupt
        session.drain(reason)

    with draining_signals(drain, watcher.say, "every trial ends its epoch and is paused"):
        try:
            with counting:
                machine = session.run()
            over.set()
            caught_up = _wait_for_views(views, store, spec.study, ran=machine is not None)
        finally:
            views.stop()
        record = load_study(store, spec.study)
        report = report_path(record, prepared.base_folder)
        if machine is not None or not report.exists():
            write_report(record, report)
    behind = () if caught_up else tuple(view for view in record.views if view.behind)
    return Outcome(record=record, report=report, ran=machine is not None, views_behind=behind)


def _starting_views(views: ViewsProcess, watcher: Watcher) -> Callable[[StudyMachine], None]:
    """Start the views after the first trial's first epoch, so that they do not slow down the start of the slots."""
    started = threading.Event()

    def on_commit(machine: StudyMachine) -> None:
        if not started.is_set() and (machine.finished or _has_epochs(machine)):
            started.set()
            views.start()
        watcher.on_commit(machine)

    return on_commit


def _has_epochs(machine: StudyMachine) -> bool:
    return any(trial.epochs_done for trial in machine.trials.values())


def _wait_for_views(views: ViewsProcess, store: Store, study: str, *, ran: bool) -> bool:
    """Whether the views have caught up. A launch that had nothing to do brings views up to date that are late."""
    if not ran:
        if not any(lag(store, study).values()):
            return True
        views.start()
    return views.wait_until_caught_up(VIEWS_SECONDS)
