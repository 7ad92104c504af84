"""Copies stored rows to Optuna and MLflow (the views), once or continuously while a study runs.

If a view fails, its cursor stores the error and the next update retries; the other view and the study continue.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from search_spaces.untrusted_text import redact
from studies.storage.study_store import Store
from studies.storage.views import view_pace
from studies.storage.views.cursors import (
    VIEWS,
    Progress,
    ViewBusyError,
    ViewName,
    ask_for_rebuild,
    claimed,
    lag,
    note_link,
    progress,
    set_cursor,
)
from studies.storage.views.mlflow_connect import import_quietly
from studies.storage.views.view_pace import Pace, timed
from studies.storage.views.view_rows import Pending, View, ViewDamagedError, load_mirrored_study, load_pending

BACKOFF_FIRST_SECONDS, BACKOFF_MOST_SECONDS = 1.0, 30.0
CLAIM_WAIT_SECONDS = 120.0
LINGER_SECONDS = 60.0  # a controller may start the views before it reopens its closed study
log = logging.getLogger(__name__)


class Mirror:
    """Updates one view (Optuna or MLflow) of one study."""

    def __init__(self, store: Store, study_name: str, name: ViewName) -> None:
        self._store, self._study_name, self._name = store, study_name, name
        self._view = _make_view(name, store.url)
        self._left_at: int | None = None
        self._link = ""

    def advance(self, *, wait_seconds: float, opens: bool = False) -> Progress:
        """Copy new commits to the view; with `opens`, update it even without commits, so that the study appears.

        Any error of Optuna, MLflow or a database may be raised; the next call retries.
        """
        where = progress(self._store, self._study_name)[self._name]
        if not (where.behind or (opens and where.is_wanted)):
            return where
        study_id = where.study_id
        with claimed(self._store, study_id, self._name, wait_seconds=wait_seconds) as renew:
            now = progress(self._store, self._study_name)[self._name]
            try:
                self._pass(now, renew)
            except BaseException:
                self._view.forget()
                raise
        return where

    def close(self) -> None:
        """Close the connections of the view."""
        self._view.close()

    def _pass(self, now: Progress, renew: Callable[[], None]) -> None:
        if now.revision != self._left_at:
            self._view.forget()  # another process has updated this view since our last pass
        since = now.revision
        if now.must_rebuild:
            self._clear(now.study_id)
            since = 0
        pending = load_pending(self._store, now.study_id, since)
        try:
            self._view.mirror(self._store, pending, renew)
        except ViewDamagedError as damage:
            log.warning("%s; the view (the study's copy in %s) is rebuilt", damage, self._name)
            self._clear(now.study_id)
            pending = load_pending(self._store, now.study_id, 0)
            self._view.mirror(self._store, pending, renew)
        self._advance_cursor(pending)

    def _clear(self, study_id: int) -> None:
        self._view.clear(load_mirrored_study(self._store, study_id))
        # Reset the flag before mirroring: a study that is reopened while mirroring sets it again.
        set_cursor(self._store, study_id, self._name, revision=0, rebuild=False)

    def _advance_cursor(self, pending: Pending) -> None:
        set_cursor(self._store, pending.study.id, self._name, revision=pending.study.revision, error=None)
        self._left_at = pending.study.revision
        link = self._view.link(pending.study)
        if link != self._link:
            note_link(self._store, pending.study.id, self._name, link)
            self._link = link


def catch_up(store: Store, study_name: str, views: tuple[ViewName, ...] = VIEWS) -> dict[ViewName, str | None]:
    """Update all views in use. Returns None or an error in one line for each."""
    wanted = [view for view, behind in lag(store, study_name).items() if view in views]
    return {view: _catch_up_one(store, study_name, view) for view in wanted}


def rebuild(store: Store, study_name: str) -> dict[ViewName, str | None]:
    """Clear all views and copy the whole study again. Returns like `catch_up`."""
    ask_for_rebuild(store, store.require(study_name).id)
    return catch_up(store, study_name)


def keep_report(store: Store, study_name: str, report: Path) -> None:
    """Store a report in MLflow, if the study uses it. Raises any error of MLflow or a database."""
    where = progress(store, study_name)["mlflow"]
    if not where.is_wanted:
        return
    from studies.storage.views.mlflow_view import MlflowView

    view = MlflowView(store.url)
    try:
        view.keep_report(load_mirrored_study(store, where.study_id), report)
    finally:
        view.close()


def follow(
    store: Store,
    study_name: str,
    until: Callable[[], bool],
    *,
    ends_with_study: bool = False,
    hurried: threading.Event | None = None,
) -> None:
    """Copy new commits until `until()` is True, in one thread for each view.

    A hanging server thus does not delay the other view. While `hurried` is set, updates do not pause.
    """
    shared = Pace(until, hurried or threading.Event())
    threads = [
        threading.Thread(
            target=_follow_one,
            args=(store, study_name, view, shared, ends_with_study),
            name=f"view-{view}",
            daemon=True,
        )
        for view in lag(store, study_name)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.close()


def _follow_one(store: Store, study_name: str, view: ViewName, shared: Pace, ends_with_study: bool) -> None:
    mirror = Mirror(store, study_name, view)
    began, backoff, is_open = time.monotonic(), BACKOFF_FIRST_SECONDS, False
    try:
        while True:
            last, at = shared.until(), time.monotonic()
            wait_seconds = CLAIM_WAIT_SECONDS if last else 0.0
            try:
                if view == "mlflow" and not is_open:
                    shared.load(import_quietly)
                # The first pass creates databases, which must not be interrupted, so it runs without a time limit.
                carry_out = shared.carry_out if is_open else timed
                where, used = carry_out(partial(mirror.advance, wait_seconds=wait_seconds, opens=not is_open))
                backoff = BACKOFF_FIRST_SECONDS
                over = ends_with_study and where.is_over and where.behind == 0
                if last or (over and at - began > LINGER_SECONDS):
                    return
                seconds = shared.rest_after(used if is_open else 0.0) if where.behind else view_pace.POLL_SECONDS
                if where.state != "running":
                    seconds = view_pace.POLL_SECONDS
                is_open = True
            except ViewBusyError:
                if last:
                    return
                seconds = view_pace.REST_SECONDS
            except Exception as error:  # noqa: BLE001 - a view must survive any error of Optuna, MLflow or a network
                _note_error(store, study_name, view, error)
                if last:
                    return
                shared.rest(backoff, hurried_seconds=BACKOFF_FIRST_SECONDS)
                backoff = min(2 * backoff, BACKOFF_MOST_SECONDS)
                continue
            shared.rest(seconds)
    finally:
        mirror.close()


def _catch_up_one(store: Store, study_name: str, view: ViewName) -> str | None:
    try:
        mirror = Mirror(store, study_name, view)
        try:
            mirror.advance(wait_seconds=CLAIM_WAIT_SECONDS)
        finally:
            mirror.close()
    except Exception as error:  # noqa: BLE001 - no failure of one view may stop the other
        return _note_error(store, study_name, view, error)
    return None


def _note_error(store: Store, study_name: str, view: ViewName, error: Exception) -> str:
    text = one_line(error)
    if isinstance(error, ViewBusyError):
        return text
    try:
        where = progress(store, study_name)[view]
        if where.error != text:
            log.warning("the %s view: %s", view, text)
            set_cursor(store, where.study_id, view, error=text)
    except SQLAlchemyError:
        log.warning("the store does not answer, so this error of Optuna or MLflow is not stored: %s", text)
    return text


def one_line(error: BaseException) -> str:
    """Return an error's type and the first line of its cause, without passwords."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    said = str(getattr(cause, "orig", None) or cause).strip().splitlines() or [""]
    return redact(f"{type(cause).__name__}: {said[0]}")[:500]


def _make_view(name: ViewName, store_url: str) -> View:
    if name == "optuna":
        from studies.storage.views.optuna_view import OptunaView

        return OptunaView(store_url)
    from studies.storage.views.mlflow_view import MlflowView

    return MlflowView(store_url)


__all__ = ["Mirror", "catch_up", "follow", "lag", "one_line", "rebuild"]
