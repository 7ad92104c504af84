"""Driving a study from a terminal or from Python: signals, views, progress, and the report at the end."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy as sa

from automl.launching.counting import Counting
from automl.launching.preparing import Prepared
from studies.control.session import Session
from studies.control.state import StudyMachine
from studies.gangs.on_ray import RayPool
from studies.records import SIMULATED_TASK, StudyRecord, ViewRecord
from studies.redact import redact
from studies.spec.errors import SpecError
from studies.spec.study_spec import StudySpec, differences, parse_spec, spec_to_mapping
from studies.storage.engine import StoreError
from studies.storage.reader import load_study
from studies.storage.store import Store
from studies.storage.view_cursors import lag
from studies.storage.views_process import ViewsProcess

VIEWS_SECONDS = 30.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Watcher:
    """Where progress goes.

    Attributes:
        on_commit: Called with the state machine after each commit.
        say: One line for the user.
        warn: One line that is for stderr.
    """

    on_commit: Callable[[StudyMachine], None] = lambda _machine: None
    say: Callable[[str], None] = lambda _line: None
    warn: Callable[[str], None] = lambda _line: None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A study after its controller has ended.

    Attributes:
        ran: Whether there was anything to do.
        views_behind: Views that did not catch up in time.
    """

    record: StudyRecord
    report: Path
    ran: bool
    views_behind: tuple[ViewRecord, ...] = ()


def stored_form(spec: StudySpec) -> dict[str, Any]:
    """A spec as the store keeps it: without the store's own URL, which may change, and without passwords."""
    mapping = spec_to_mapping(spec)
    mapping.pop("store", None)
    mapping["search"]["from_studies"] = [redact(name) for name in spec.search.from_studies]
    return mapping


def from_store(form: dict[str, Any], name: str) -> StudySpec:
    """The spec that a study of the store has in force.

    Raises:
        StoreError: The study was simulated: nothing of it can go on.
    """
    check_launched(form, name)
    return parse_spec(form, name)


def check_launched(form: Mapping[str, Any], name: str) -> None:
    """Raise `StoreError` if a study of the store was simulated: it has no models, and nothing that could go on."""
    if form.get("task") == SIMULATED_TASK:
        raise StoreError(f"study: found {name!r}, which was simulated; allowed: a study that was launched")


def find_or_create(store: Store, prepared: Prepared) -> sa.Row[Any]:
    """The study of this name: new, or one that was launched with an equal spec.

    Raises:
        SpecError: There is one with another spec; the message says where they differ.
    """
    name = prepared.spec.study
    row = store.study_row(name)
    if row is None:
        earlier = [one.to_plain() for one in prepared.earlier]
        store.create_study(name, stored_form(prepared.spec), str(prepared.base_folder), time.time(), earlier)
        return store.require(name)
    stored = from_store(row.launched_spec, name)
    lines = differences(stored, prepared.spec)
    if lines:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        problem = (
            f"found {name!r}, which exists with another spec: {lines[0]}{more}; "
            "allowed: another name, or `automl resume` to go on with the stored one"
        )
        raise SpecError(prepared.source, ("study",), problem)
    changed = _changed_sections(stored, prepared.spec)
    if changed:
        problem = (
            f"found {name!r}, which exists with another {changed[0]}; allowed: "
            f"`automl resume {name} --set {changed[0]}...` changes it"
        )
        raise SpecError(prepared.source, ("study",), problem)
    return row


def _changed_sections(stored: StudySpec, given: StudySpec) -> list[str]:
    return [name for name in ("budget",) if getattr(stored, name) != getattr(given, name)]


def drive(store: Store, row: sa.Row[Any], prepared: Prepared, watcher: Watcher, *, with_views: bool = True) -> Outcome:
    """Drive the study until it is closed, drained or failed, then wait for its views and write its report."""
    spec, resources = prepared.spec, prepared.spec.resources
    pool = RayPool(
        device=prepared.place.device,
        cpus_per_rank=resources.cpus_per_rank,
        address=resources.ray_address,
        temp_folder=resources.ray_temp_folder,
    )
    views = ViewsProcess(store.url, spec.study) if with_views else None
    counting = Counting(store, row, prepared)
    session = Session(
        store=store,
        row=row,
        spec=spec,
        place=prepared.place,
        pool=pool,
        on_commit=_starting_views(views, watcher),
        on_stand_by=lambda holder: watcher.say(f"{holder} drives this study; standing by"),
        counted=counting.sizes,
    )
    try:
        with counting, draining_signals(session.drain, watcher.say):
            machine = session.run()
        caught_up = _wait_for_views(views, store, spec.study, ran=machine is not None)
    finally:
        if views is not None:
            views.stop()
    record = load_study(store, spec.study)
    report = report_path(record, prepared.base_folder)
    if machine is not None or not report.exists():
        _write_report(record, report)
    behind = () if caught_up else tuple(view for view in record.views if view.behind)
    return Outcome(record=record, report=report, ran=machine is not None, views_behind=behind)


def refresh(store: Store, study: str, base_folder: Path) -> bool:
    """Let the views and the report follow what was committed without a controller; whether the views did in time."""
    views = ViewsProcess(store.url, study)
    try:
        views.start()
        caught_up = views.wait_until_caught_up(VIEWS_SECONDS)
    finally:
        views.stop()
    record = load_study(store, study)
    _write_report(record, report_path(record, base_folder))
    return caught_up


def report_path(record: StudyRecord, base_folder: Path) -> Path:
    """Where a study's report is: beside its checkpoints."""
    checkpoints = record.spec.get("checkpoints")
    folder = checkpoints.get("folder", ".") if isinstance(checkpoints, dict) else "."
    return (base_folder / str(folder) / record.name / "report.html").absolute()


def _write_report(record: StudyRecord, path: Path) -> None:
    from reports.page import write_report

    path.parent.mkdir(parents=True, exist_ok=True)
    write_report(record, path)


def _starting_views(views: ViewsProcess | None, watcher: Watcher) -> Callable[[StudyMachine], None]:
    """Start the views with the first trial's first epoch, so that they do not slow down the slots' warming up."""
    started = threading.Event()

    def on_commit(machine: StudyMachine) -> None:
        if views is not None and not started.is_set() and (machine.finished or _has_epochs(machine)):
            started.set()
            views.start()
        watcher.on_commit(machine)

    return on_commit


def _has_epochs(machine: StudyMachine) -> bool:
    return any(trial.epochs_done for trial in machine.trials.values())


def _wait_for_views(views: ViewsProcess | None, store: Store, study: str, *, ran: bool) -> bool:
    """Whether the views have caught up; a launch that died before they did leaves them to the next one."""
    if views is None:
        return True
    if not ran:
        if not any(lag(store, study).values()):
            return True
        views.start()
    return views.wait_until_caught_up(VIEWS_SECONDS)


@contextmanager
def draining_signals(drain: Callable[[str], None], say: Callable[[str], None]) -> Iterator[None]:
    """The first Ctrl-C drains, the second one leaves at once. Only the main thread may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            os._exit(130)
        say("draining: every trial ends its epoch and is paused; Ctrl-C again leaves at once")
        drain("interrupted")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
