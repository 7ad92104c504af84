"""Keeping the Optuna and the MLflow view up with the store: once, or for as long as a study runs.

As a program (`python -m studies.storage.views`) it follows one study beside its controller, at the lowest priority. It
reads what to do as one line of JSON from stdin, since the URLs may hold passwords and arguments are there for all to
see. A view that fails never stops the other one, nor the study: its error is kept in its cursor, and it tries again.
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
from dataclasses import dataclass

import psutil
from sqlalchemy.exc import SQLAlchemyError

from studies.redact import redact
from studies.storage.store import Store
from studies.storage.view_cursors import (
    VIEWS,
    Progress,
    ViewBusyError,
    ViewName,
    ask_for_rebuild,
    claimed,
    lag,
    progress,
    set_cursor,
)
from studies.storage.view_rows import Pending, View, ViewDamagedError, load_mirrored_study, load_pending

POLL_SECONDS = 0.5
REST_SECONDS, MOST_REST_SECONDS = 5.0, 60.0
FIRST_REST_SECONDS = 30.0  # loading Optuna and MLflow takes seconds of a core, which the first trials need
RESTS_PER_PASS = 19.0  # a twentieth of a core, which ranks may have all to themselves
BACKOFF_FIRST_SECONDS, BACKOFF_MOST_SECONDS = 1.0, 30.0
CLAIM_WAIT_SECONDS = 120.0
LINGER_SECONDS = 60.0  # a controller may start the views first and reopen its closed study then
log = logging.getLogger(__name__)


class Mirror:
    """One view of one study, and what it takes to bring it up to date.

    Args:
        store: The truth.
        study_name: A study of it.
        name: Which view.
    """

    def __init__(self, store: Store, study_name: str, name: ViewName) -> None:
        self._store, self._study_name, self._name = store, study_name, name
        self._view = _make_view(name, store.url)
        self._left_at: int | None = None

    def advance(self, *, wait_seconds: float) -> Progress:
        """One pass: mirror what is committed; an idle one costs one query.

        Args:
            wait_seconds: How long to wait for another process that mirrors this view.

        Returns:
            Where things were before the pass.

        Raises:
            Exception: Whatever Optuna, MLflow or a database raises; the next pass tries again.
        """
        where = progress(self._store, self._study_name)[self._name]
        if where.behind == 0:
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
        """Give the view's connections back."""
        self._view.close()

    def _pass(self, now: Progress, renew: Callable[[], None]) -> None:
        if now.revision != self._left_at:
            self._view.forget()  # another process was here meanwhile
        since = now.revision
        if now.must_rebuild:
            self._clear(now.study_id)
            since = 0
        pending = load_pending(self._store, now.study_id, since)
        try:
            self._view.mirror(self._store, pending, renew)
        except ViewDamagedError as damage:
            log.warning("%s; the %s view is made anew", damage, self._name)
            self._clear(now.study_id)
            pending = load_pending(self._store, now.study_id, 0)
            self._view.mirror(self._store, pending, renew)
        self._advance_cursor(pending)

    def _clear(self, study_id: int) -> None:
        self._view.clear(load_mirrored_study(self._store, study_id))
        # The wish is fulfilled here and not after the mirroring: a reopening that comes later wishes anew.
        set_cursor(self._store, study_id, self._name, revision=0, rebuild=False)

    def _advance_cursor(self, pending: Pending) -> None:
        set_cursor(self._store, pending.study.id, self._name, revision=pending.study.revision, error=None)
        self._left_at = pending.study.revision


def catch_up(store: Store, study_name: str, views: tuple[ViewName, ...] = VIEWS) -> dict[ViewName, str | None]:
    """Bring the views up to the last commit.

    Args:
        store: The truth.
        study_name: A study of it.
        views: Which of them; one that the spec switches off is left out.

    Returns:
        For each view None, or in one line why it could not be brought up.

    Raises:
        StoreError: There is no such study.
    """
    wanted = [view for view, behind in lag(store, study_name).items() if view in views]
    return {view: _catch_up_one(store, study_name, view) for view in wanted}


def rebuild(store: Store, study_name: str) -> dict[ViewName, str | None]:
    """Make both views anew from the store; the result is `catch_up`'s.

    Raises:
        StoreError: There is no such study.
    """
    ask_for_rebuild(store, store.require(study_name).id)
    return catch_up(store, study_name)


def follow(
    store: Store,
    study_name: str,
    until: Callable[[], bool],
    *,
    ends_with_study: bool = False,
    hurried: threading.Event | None = None,
) -> None:
    """Keep both views up until told otherwise; each has a thread, so that a server that hangs delays its own view only.

    Args:
        store: The truth.
        study_name: A study of it.
        until: Asked about twice a second by both threads. What was committed before it turned true is mirrored.
        ends_with_study: End by itself once the study is no longer running and everything is mirrored.
        hurried: Once it is set, somebody waits for the views, and they rest no more.
    """
    rest = _Rest(until, hurried or threading.Event())
    threads = [
        threading.Thread(
            target=_follow_one, args=(store, study_name, view, rest, ends_with_study), name=f"view-{view}", daemon=True
        )
        for view in lag(store, study_name)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@dataclass(frozen=True, slots=True)
class _Rest:
    """When to look at the store again.

    What piles up is mirrored for half the processor time that it costs row by row, and nobody looks at a view every
    second: a long pass earns a long rest, until somebody waits for the views.
    """

    until: Callable[[], bool]
    hurried: threading.Event

    def after(self, used_seconds: float) -> float:
        """Seconds to rest after a pass that took so much processor time."""
        return min(max(REST_SECONDS, RESTS_PER_PASS * used_seconds), MOST_REST_SECONDS)

    def take(self, seconds: float) -> None:
        """Rest, unless it is the end, or somebody waits: then for a moment only."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.until():
            if self.hurried.wait(min(left, POLL_SECONDS)):
                time.sleep(max(min(end - time.monotonic(), POLL_SECONDS), 0.0))
                return


def _follow_one(store: Store, study_name: str, view: ViewName, rest: _Rest, ends_with_study: bool) -> None:
    mirror = Mirror(store, study_name, view)
    began, backoff = time.monotonic(), BACKOFF_FIRST_SECONDS
    try:
        while True:
            last, at, used = rest.until(), time.monotonic(), time.thread_time()
            try:
                where = mirror.advance(wait_seconds=CLAIM_WAIT_SECONDS if last else 0.0)
                backoff = BACKOFF_FIRST_SECONDS
                over = ends_with_study and where.state != "running" and where.behind == 0
                if last or (over and at - began > LINGER_SECONDS):
                    return
                seconds = rest.after(time.thread_time() - used) if where.behind else POLL_SECONDS
                if where.state != "running":
                    seconds = POLL_SECONDS
            except ViewBusyError:
                if last:
                    return
                seconds = REST_SECONDS
            except Exception as error:  # noqa: BLE001 - a view must survive whatever Optuna, MLflow or a network does
                _note_error(store, study_name, view, error)
                if last:
                    return
                seconds, backoff = backoff, min(2 * backoff, BACKOFF_MOST_SECONDS)
            rest.take(seconds)
    finally:
        mirror.close()


def _catch_up_one(store: Store, study_name: str, view: ViewName) -> str | None:
    try:
        mirror = Mirror(store, study_name, view)
        try:
            mirror.advance(wait_seconds=CLAIM_WAIT_SECONDS)
        finally:
            mirror.close()
    except Exception as error:  # noqa: BLE001 - one view's trouble, whatever it is, must not stop the other
        return _note_error(store, study_name, view, error)
    return None


def _note_error(store: Store, study_name: str, view: ViewName, error: Exception) -> str:
    """Keep the error where `automl status` and people can find it; returns it in one line."""
    text = one_line(error)
    if isinstance(error, ViewBusyError):
        return text
    try:
        where = progress(store, study_name)[view]
        if where.error != text:
            log.warning("the %s view: %s", view, text)
            set_cursor(store, where.study_id, view, error=text)
    except SQLAlchemyError:
        log.warning("the store does not answer")
    return text


def one_line(error: BaseException) -> str:
    """An error for people: its kind and the first line of its cause, without passwords."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    said = str(getattr(cause, "orig", None) or cause).strip().splitlines() or [""]
    return redact(f"{type(cause).__name__}: {said[0]}")[:500]


def _make_view(name: ViewName, store_url: str) -> View:
    if name == "optuna":
        from studies.storage.optuna_view import OptunaView

        return OptunaView(store_url)
    from studies.storage.mlflow_view import MlflowView

    return MlflowView(store_url)


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
    """Ranks are batch threads: when one wakes up, only an idle one makes room at once, any other keeps its core.

    That holds within a session only where Linux groups processes by session, so this one stays in the controller's.
    """
    os.nice(19)
    with contextlib.suppress(AttributeError, OSError):  # only Linux knows it, and a sandbox may refuse
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _set_at_end_of_stdin(event: threading.Event) -> None:
    sys.stdin.read()
    event.set()


def main() -> None:
    """Follow the study that one line of JSON on stdin names: {"store": URL, "study": name, "parent_pid": number}.

    When stdin ends, somebody waits for the views.
    """
    order = json.loads(sys.stdin.readline())
    hurried = threading.Event()
    threading.Thread(target=_set_at_end_of_stdin, args=(hurried,), name="hurry", daemon=True).start()
    is_orphan = _is_gone(int(order["parent_pid"]))
    _Rest(is_orphan, hurried).take(FIRST_REST_SECONDS)
    if not hurried.is_set():  # a short study is over by then: nobody trains, and somebody waits
        _take_idle_time_only()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    store = Store(order["store"])
    try:
        follow(store, order["study"], is_orphan, ends_with_study=True, hurried=hurried)
    finally:
        store.close()


__all__ = ["Mirror", "catch_up", "follow", "lag", "main", "one_line", "rebuild"]

if __name__ == "__main__":
    main()
