"""Progress of a study's copies (views), and claims of the processes that update them. Imports no Optuna or MLflow.

A cursor holds the study's revision that a view contains. A claim in the cursor's row, which ends with its process,
prevents two processes from inserting trials twice.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from studies.records.records import StudyState
from studies.storage.leases import processes
from studies.storage.schema import tables as t
from studies.storage.schema.engine import clock_of
from studies.storage.study_store import Store

ViewName = Literal["optuna", "mlflow"]
VIEWS: tuple[ViewName, ...] = ("optuna", "mlflow")
CLAIM_SECONDS = 120.0
CLAIM_POLL_SECONDS = 0.1


class ViewBusyError(Exception):
    """Another process is updating this view."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Revisions of a study and one of its views."""

    study_id: int
    view: ViewName
    state: StudyState
    stop_reason: str | None  # reason why the study ended or was drained; None while it runs
    study_revision: int
    revision: int
    must_rebuild: bool  # the view contains final states that are wrong by now
    is_wanted: bool
    error: str | None  # error of the last pass in one line; None if it succeeded
    link: str  # address that shows the study; empty if the view has none, or no pass has succeeded

    @property
    def is_over(self) -> bool:
        """Return whether the study ended or was stopped; False while it waits for disk space."""
        return self.state != "running" and (self.state, self.stop_reason) != ("drained", "storage")

    @property
    def behind(self) -> int:
        """Number of revisions that the view lacks; 0 if it is not used."""
        if not self.is_wanted:
            return 0
        return max(self.study_revision, 1) if self.must_rebuild else max(self.study_revision - self.revision, 0)


def progress(store: Store, study_name: str) -> dict[ViewName, Progress]:
    """Read the progress of all views. Raises `StoreError` if the study does not exist."""
    s, c = t.studies.c, t.view_cursors.c
    query = (
        sa.select(
            s.id, s.state, s.stop_reason, s.revision, s.spec["mlflow"].as_string().label("mlflow"), c.view, c.error
        )
        .add_columns(c.revision.label("seen"), c.rebuild, c.details)
        .join(t.view_cursors, c.study_id == s.id)
        .where(s.name == study_name, c.view.in_(VIEWS))
        .order_by(c.id)
    )
    with store.engine.connect().execution_options(automl_read_only=True) as connection:
        rows = connection.execute(query).all()
    if not rows:
        store.require(study_name)
    return {
        row.view: Progress(
            study_id=row.id,
            view=row.view,
            state=row.state,
            stop_reason=row.stop_reason,
            study_revision=row.revision,
            revision=row.seen,
            must_rebuild=row.rebuild,
            is_wanted=row.view != "mlflow" or not is_off(row.mlflow),
            error=row.error,
            link=row.details.get("link", ""),
        )
        for row in rows
    }


def is_off(mlflow: object) -> bool:
    """Return whether the spec's key `mlflow` switches MLflow off."""
    return mlflow in {None, "", "off", "false", "0", False}


def lag(store: Store, study_name: str) -> dict[ViewName, int]:
    """Return the number of revisions that each view in use lacks. Raises `StoreError` if the study does not exist."""
    return {view: p.behind for view, p in progress(store, study_name).items() if p.is_wanted}


def set_cursor(store: Store, study_id: int, view: ViewName, **columns: Any) -> None:
    """Set `revision`, `rebuild` or `error` of a cursor."""
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.view_cursors).where(*_where(study_id, view)).values(**columns))


def note_link(store: Store, study_id: int, view: ViewName, link: str) -> None:
    """Store the address of the study in a view."""
    with store.engine.begin() as connection:
        details = _details(connection, study_id, view)
        if details.get("link", "") != link:
            _set_details(connection, study_id, view, {**details, "link": link})


def forget_errors(store: Store, study_name: str) -> None:
    """Delete stored errors of views. Raises `StoreError` if the study does not exist."""
    study_id = store.require(study_name).id
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.view_cursors).where(t.view_cursors.c.study_id == study_id).values(error=None))


def ask_for_rebuild(store: Store, study_id: int) -> None:
    """Make the next update clear all views and copy the whole study."""
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.view_cursors).where(t.view_cursors.c.study_id == study_id).values(rebuild=True))


@contextmanager
def claimed(store: Store, study_id: int, view: ViewName, *, wait_seconds: float) -> Iterator[Callable[[], None]]:
    """Claim a view, and yield a function that renews the claim. Raises `ViewBusyError` after `wait_seconds`."""
    token, until = uuid.uuid4().hex, time.monotonic() + wait_seconds
    while (holder := _try_claim(store, study_id, view, token)) is not None:
        if time.monotonic() >= until:
            raise ViewBusyError(_busy(view, holder))
        time.sleep(CLAIM_POLL_SECONDS)
    renewed = time.monotonic()

    def renew() -> None:
        nonlocal renewed
        if time.monotonic() - renewed > CLAIM_SECONDS / 4:
            if (other := _try_claim(store, study_id, view, token)) is not None:
                raise ViewBusyError(_busy(view, other))
            renewed = time.monotonic()

    try:
        yield renew
    finally:
        _release(store, study_id, view, token)


def _busy(view: ViewName, holder: Mapping[str, Any]) -> str:
    return f"process {holder['pid']} on {holder['host']} is mirroring the {view} view now. Try again later"


def _where(study_id: int, view: ViewName) -> tuple[sa.ColumnElement[bool], ...]:
    return t.view_cursors.c.study_id == study_id, t.view_cursors.c.view == view


def _try_claim(store: Store, study_id: int, view: ViewName, token: str) -> Mapping[str, Any] | None:
    with store.engine.begin() as connection:
        details = _details(connection, study_id, view)
        held = details.get("claim")
        now = float(connection.execute(sa.select(clock_of(connection))).scalar_one())
        if held and held["token"] != token and _is_alive(held, now):
            return dict(held)
        pid = os.getpid()
        claim = {
            "token": token, "host": socket.gethostname(), "pid": pid, "started": processes.started_at(pid),
            "space": processes.space(), "until": now + CLAIM_SECONDS,
        }  # fmt: skip
        _set_details(connection, study_id, view, {**details, "claim": claim})
    return None


def _release(store: Store, study_id: int, view: ViewName, token: str) -> None:
    with store.engine.begin() as connection:
        details = _details(connection, study_id, view)
        if details.get("claim", {}).get("token") == token:
            _set_details(connection, study_id, view, {key: one for key, one in details.items() if key != "claim"})


def _details(connection: sa.Connection, study_id: int, view: ViewName) -> Mapping[str, Any]:
    query = sa.select(t.view_cursors.c.details).where(*_where(study_id, view)).with_for_update()
    details: Mapping[str, Any] = connection.execute(query).scalar_one()
    return details


def _set_details(connection: sa.Connection, study_id: int, view: ViewName, details: Mapping[str, Any]) -> None:
    connection.execute(sa.update(t.view_cursors).where(*_where(study_id, view)).values(details=details))


def _is_alive(claim: Mapping[str, Any], now: float) -> bool:
    if now >= float(claim["until"]):
        return False
    return not processes.is_known_gone(claim.get("space"), int(claim["pid"]), float(claim["started"] or 0.0))
