"""Runs a study in this process, with its devices, signals, copies in MLflow and Optuna, and report."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from automl.launching.expected_cost import most_slot_seconds
from automl.launching.first_trials import FirstTrials, SharedFiles
from automl.launching.model_counting import Counting
from automl.launching.prepared_study import Prepared
from automl.signals import draining_signals, leave_at_once, private_files
from automl.stored.reporting import REPORT_SECONDS, VIEWS_SECONDS, report_path
from reports.page import write_report
from search_spaces.untrusted_text import redact
from studies.control.files.wait_for_disk import RoomWaiter, storage_problem
from studies.control.machine.state import StudyMachine
from studies.control.machine.study_setup import OwnLogging
from studies.control.session import Session
from studies.gangs.on_ray import RayPool
from studies.gangs.rank_deaths_and_reports import ASK_SECONDS
from studies.records.records import StudyRecord, ViewRecord
from studies.search.model.size_model import SizeModel
from studies.spec.study_spec import StudySpec
from studies.storage.leases.processes import marked
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store
from studies.storage.views.cursors import lag
from studies.storage.views.views_process import ViewsProcess
from trainers.checkpoints.locations import environment_of, is_url
from trainers.commands.command import Command


@dataclass(frozen=True, kw_only=True, slots=True)
class Watcher:
    """Callbacks while a study runs. `leave` is called at the second interrupt, and must exit or raise."""

    on_commit: Callable[[StudyMachine], None] = lambda _machine: None
    say: Callable[[str], None] = lambda _line: None
    warn: Callable[[str], None] = lambda _line: None
    leave: Callable[[], None] = leave_at_once


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of running a study. After an interrupt, another process may continue the study."""

    record: StudyRecord
    report: Path
    ran: bool
    views_behind: tuple[ViewRecord, ...] = ()
    interrupted: bool = False


def drive(store: Store, row: sa.Row[Any], prepared: Prepared, watcher: Watcher) -> Outcome:
    """Run a study to its end or a signal, wait for its copies in Optuna and MLflow, and write its report."""
    spec = prepared.spec
    views = ViewsProcess(store.url, spec.study)
    counting = Counting(store, row, prepared)
    logging, warning = own_logging(spec, str(row.uid), prepared.base_folder)
    if warning:
        watcher.warn(warning)
    command = Command.of(spec.task_options) if spec.is_command else None
    most = most_slot_seconds(prepared, row.usd_per_slot_hour)
    sessions = _Sessions(
        store,
        row,
        prepared,
        watcher,
        counted=counting.sizes,
        on_commit=_hurrying(
            views,
            watcher,
            FirstTrials(most / prepared.place.slots, command, watcher.warn),
            SharedFiles(command, prepared.base_folder, watcher.warn),
        ),
        on_room=views.start,  # they may have died because the disk was full
        own_logging=replace(logging, diagnostics=prepared.diagnostics),
    )
    what_ends = "every trial ends its epoch and is paused"
    with private_files(), marked(row.uid), draining_signals(sessions.drain, watcher.say, what_ends, watcher.leave):
        try:
            views.start()  # while the pool starts and cores are free, so that the first epochs appear soon
            with counting:
                machine = sessions.run()
            caught_up = _wait_for_views(views, store, spec.study, ran=machine is not None)
            record = load_study(store, spec.study)
            report = report_path(record, prepared.base_folder)
            if machine is not None or not report.exists():
                _write_report(record, report, watcher)
                if caught_up and report.exists():
                    views.keep_report(report, REPORT_SECONDS)
        finally:
            views.stop()
    behind = tuple(view for view in record.views if view.behind)
    for view in record.views:
        if view.link:
            watcher.say(runs_text(record, view.link))
    return Outcome(
        record=record,
        report=report,
        ran=machine is not None,
        views_behind=behind,
        interrupted=sessions.was_interrupted(machine),
    )


def runs_text(record: StudyRecord, link: str) -> str:
    """Return `runs in MLflow: http://...`, without a server with the command that starts one."""
    uri = str(record.mlflow_uri)
    is_served = uri.startswith(("http:", "https:"))
    return f"runs in MLflow: {link}" + ("" if is_served else f", after `mlflow ui --backend-store-uri {redact(uri)}`")


class _Sessions:
    """Runs a study, and resumes it after each full disk."""

    def __init__(
        self,
        store: Store,
        row: sa.Row[Any],
        prepared: Prepared,
        watcher: Watcher,
        *,
        counted: Callable[[], SizeModel | None],
        on_commit: Callable[[StudyMachine], None],
        on_room: Callable[[], None],
        own_logging: OwnLogging,
    ) -> None:
        self._store, self._row, self._prepared, self._watcher = store, row, prepared, watcher
        self._counted, self._own_logging = counted, own_logging
        self._on_commit, self._on_room = on_commit, on_room
        self._session: Session | None = None
        self._drain_reason: str | None = None
        self._over = self._stood_by = False
        self._epochs = 0

    def drain(self, reason: str) -> None:
        """Stop the study, or its wait for disk space. Raises KeyboardInterrupt if the study has ended."""
        if self._over:
            raise KeyboardInterrupt
        self._drain_reason = reason
        if self._session is not None:
            self._session.drain(reason)

    def run(self) -> StudyMachine | None:
        """Run the study, and wait while checkpoints cannot be written. Returns the result of `Session.run`."""
        waiter: RoomWaiter | None = None
        while True:
            self._session = self._new_session()
            if self._drain_reason is not None:
                self._session.drain(self._drain_reason)
            machine = self._session.run()
            if machine is None or machine.stop_reason != "storage":
                break
            folder = machine.setup.checkpoint_folder
            waiter = waiter or RoomWaiter(folder, self._is_stopped)
            problem = storage_problem(folder) or _refusal(folder)
            self._watcher.warn(f"checkpoints cannot be written ({problem}); the study waits until this works again")
            epochs = sum(trial.epochs_done for trial in machine.trials.values())
            made_progress, self._epochs = epochs > self._epochs, epochs
            if not waiter.wait(made_progress=made_progress):
                break
            if self._store.require(self._row.name).stop_reason == "stopped":  # while the disk was tested
                break  # otherwise keep the row of the launch, so that the session refuses a spec that has changed since
            self._on_room()
        self._over = True
        return machine

    def was_interrupted(self, machine: StudyMachine | None) -> bool:
        """Return whether a signal ended `run` early."""
        if self._drain_reason is None or (machine is None and not self._stood_by):
            return False
        return machine is None or machine.state == "drained"

    def _is_stopped(self) -> bool:
        with suppress(DBAPIError):  # the store may be on the full disk
            return self._drain_reason is not None or self._store.require(self._row.name).stop_reason == "stopped"
        return False

    def _say_who_drives(self, holder: str) -> None:
        self._stood_by = True
        self._watcher.say(f"{holder} runs this study already. Waiting, to take over if it ends")

    def _new_session(self) -> Session:
        return Session(
            store=self._store,
            row=self._row,
            spec=self._prepared.spec,
            pool_spec=self._prepared.place,
            pool=pool_of(self._prepared, grows=True),
            on_commit=self._on_commit,
            on_stand_by=self._say_who_drives,
            counted=self._counted,
            own_logging=self._own_logging,
        )


def _refusal(folder: str) -> str:
    """Return the message for a place that accepts small files, but not checkpoints."""
    what = (
        "a checkpoint could not be saved or loaded" if is_url(folder) else "no room for a checkpoint, or it is broken"
    )
    return f"{folder}: {what}"


def _write_report(record: StudyRecord, report: Path, watcher: Watcher) -> None:
    try:
        write_report(record, report)
    except OSError as error:
        watcher.warn(f"the report cannot be written ({report}: {error.strerror}); to write it later: `automl report`")
    except Exception as error:  # noqa: BLE001 - a study that has ended does not fail because of its report
        watcher.warn(f"the report could not be drawn ({type(error).__name__}: {error}); to try again: `automl report`")


def _hurrying(
    views: ViewsProcess, watcher: Watcher, *looking: FirstTrials | SharedFiles
) -> Callable[[StudyMachine], None]:
    """Return a callback that requests the last update of the copies at the study's last commit."""

    def on_commit(machine: StudyMachine) -> None:
        if machine.finished and machine.stop_reason != "storage":  # a study that waits for its disk continues
            views.hurry()
        for one in looking:
            one.look(machine)
        watcher.on_commit(machine)

    return on_commit


def _wait_for_views(views: ViewsProcess, store: Store, study: str, *, ran: bool) -> bool:
    """Wait until the copies in Optuna and MLflow are up to date, even if this launch trained nothing."""
    if not ran:
        if not any(lag(store, study).values()):
            return True
        views.start()
    return views.wait_until_caught_up(VIEWS_SECONDS)


ASKED_WITHIN_SILENCE = 4  # number of health checks of a rank within the longest silence


def pool_of(prepared: Prepared, *, grows: bool = False) -> RayPool:
    """Return an unopened pool. If it `grows`, joining devices become slots unless the spec sets a number."""
    resources = prepared.spec.resources
    joins = resources.slots == "auto" and resources.ray_address is not None
    return RayPool(
        device=prepared.place.device,
        cpus_per_rank=resources.cpus_per_rank,
        backend=resources.backend,
        environment=handed_over(resources.environment, prefixes=environment_of(prepared.spec.checkpoints.folder)),
        address=resources.ray_address,
        temp_folder=resources.ray_temp_folder,
        grows=grows and joins,
        autoscale=resources.autoscale,
        has_gangs=prepared.spec.space is None or "world_size" in prepared.spec.space,
        group_timeout_seconds=prepared.spec.faults.group_seconds,
        ask_seconds=min(ASK_SECONDS, prepared.spec.faults.silence_seconds / ASKED_WITHIN_SILENCE),
    )


_PROGRAM = (sys.executable, "-P", "-m", "studies.storage.views.mlflow_connect")
_SECONDS = 60.0
_WORD = b"mlflow"
_MOST_BYTES = 2**24


def own_logging(spec: StudySpec, study_uid: str, folder: Path) -> tuple[OwnLogging, str]:
    """Return the MLflow settings for the user's code, and a warning or "". The spec must have absolute paths."""
    wanted = spec.mlflow != "off" and "MLFLOW_TRACKING_URI" not in os.environ and uses_mlflow(spec, folder)
    problem = _made(spec.mlflow, spec.study) if wanted else ""
    uri = spec.mlflow if wanted and not problem else ""
    warning = f"MLflow calls of your own code are not redirected: {problem}" if problem else ""
    return OwnLogging(study=spec.study, study_uid=study_uid, mlflow=uri), warning


def uses_mlflow(spec: StudySpec, folder: Path) -> bool:
    """Return whether a command's files, or the task's module, contain the word "mlflow"."""
    for path in _files(spec, folder):
        with suppress(OSError):
            if path.is_file() and path.stat().st_size <= _MOST_BYTES and _WORD in path.read_bytes():
                return True
    return False


def _files(spec: StudySpec, folder: Path) -> Iterator[Path]:
    if spec.is_command:
        command = Command.of(spec.task_options)
        for part in command.parts:
            texts = part if isinstance(part, tuple) else (part,)
            yield from (command.script_folder(folder) / text for text in texts)
    elif ":" in spec.task:
        module = folder.joinpath(*spec.task.partition(":")[0].split("."))
        yield from (module.with_name(f"{module.name}.py"), module / "__init__.py")


def _made(uri: str, study: str) -> str:
    """Create the MLflow experiment in another process, since MLflow imports slowly. Returns the problem, or ""."""
    question = json.dumps({"uri": uri, "study": study})
    try:
        done = subprocess.run(  # noqa: S603 - a module of this project
            _PROGRAM, input=question, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"MLflow gave no answer within {_SECONDS:g} s"
    return done.stdout.strip() or (f"exit status {done.returncode}" if done.returncode else "")


PREFIXES = ("NCCL_", "GLOO_", "HF_", "CUDA_")  # prefixes of variables that are always passed on
OF_THE_NODE = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "AWS_EXECUTION_ENV")  # valid on one machine only
ROLES_OF_THE_NODE = "AWS_CONTAINER_"  # prefix of variables that give a container its role; useless on another machine


def handed_over(
    names: Collection[str], environment: Mapping[str, str] = os.environ, *, prefixes: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the environment variables for ranks on other machines, including `names`."""
    return {
        name: value
        for name, value in environment.items()
        if name in names
        or (name.startswith(PREFIXES + prefixes) and name not in OF_THE_NODE and not name.startswith(ROLES_OF_THE_NODE))
    }
