"""Serves a store to the browser on 127.0.0.1: a page of all studies, their reports, and Optuna Dashboard."""

import importlib
import logging
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import quote, unquote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from sqlalchemy.exc import SQLAlchemyError

from automl.dashboard_study import show
from automl.standalone.serving.listening import is_loopback, names_this_machine
from automl.stored.polling import rest_seconds
from reports.page import render
from reports.page_templates import template
from reports.phrases import plural, state_text, usd
from reports.recommending import judged_of, named_value
from search_spaces.messages import UserError
from search_spaces.untrusted_text import redact
from studies.records.records import NANO, StudyLine
from studies.results.recommendation import recommended
from studies.storage.reading.reader import list_studies, load_study
from studies.storage.schema.engine import StoreError, exists, parse_url, shown
from studies.storage.study_store import Store
from studies.storage.views.cursors import progress
from studies.storage.views.mirror import catch_up, one_line
from studies.storage.views.optuna_view import open_storage

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_BESTS: dict[str, tuple[int, str]] = {}  # revision and best value of each study, by its uid
REPORT, OPTUNA = "/report/", "/dashboard/"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A study's row on the front page. Addresses without a page are empty."""

    name: str
    state: str
    trials: str
    cost: str
    best: str
    created: str
    report: str
    optuna: str
    mlflow: str
    mlflow_command: str


def with_front_page(inner: Application, store: Store, id_of: Callable[[str], int | None]) -> Application:
    """Return an application that answers `/` and `/report/NAME`, and forwards other paths."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", "")) or "/"
        if environ.get("REQUEST_METHOD") != "GET" or (path != "/" and not path.startswith(REPORT)):
            return inner(environ, start_response)
        if path == "/":
            return _answer(start_response, "200 OK", _front_page(store, id_of))
        # WSGI passes bytes as Latin-1 characters.
        name = unquote(path.removeprefix(REPORT)).encode("latin-1", "replace").decode("utf-8", "replace")
        if name not in store.study_names():
            return _answer(start_response, "404 Not Found", template("missing_study.html").render(name=name))
        return _answer(start_response, "200 OK", render(load_study(store, name)))

    return application


def _answer(start_response: Callable[..., Any], status: str, page: str) -> list[bytes]:
    body = page.encode()
    headers = [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body)))]
    start_response(status, [*headers, ("Cache-Control", "no-store")])
    return [body]


def _front_page(store: Store, id_of: Callable[[str], int | None]) -> str:
    rows = [_row(store, line, id_of(line.name)) for line in reversed(list_studies(store))]
    return template("studies_page.html").render(rows=rows, store=redact(store.url))


def _row(store: Store, line: StudyLine, optuna_id: int | None) -> _Row:
    link, command = _mlflow(store, line.name)
    return _Row(
        name=line.name,
        state=state_text(line.name, line.state, driven=line.driven),
        trials=plural(line.trials, "trial"),
        cost=usd(line.cost_nano_usd / NANO),
        best=_best(store, line.name),
        created=f"{line.created_at:%Y-%m-%d %H:%M} UTC",
        report=f"{REPORT}{quote(line.name)}",
        optuna="" if optuna_id is None else f"{OPTUNA}studies/{optuna_id}",
        mlflow=link,
        mlflow_command=command,
    )


def _best(store: Store, name: str) -> str:
    """Return a study's recommended model and its value. The study is read only after new commits."""
    with suppress(StoreError):  # the study was deleted since
        row = store.require(name)
        if _BESTS.get(row.uid, (-1, ""))[0] != row.revision:
            taken = recommended(study := load_study(store, name))
            _BESTS[row.uid] = row.revision, named_value(study, taken.point, judged_of(study)) if taken else ""
        return _BESTS[row.uid][1]
    return ""


def _mlflow(store: Store, name: str) -> tuple[str, str]:
    with suppress(StoreError):  # the study was deleted since
        view = progress(store, name).get("mlflow")
        uri = str(store.require(name).spec.get("mlflow"))
        if view is not None and view.is_wanted and view.link.startswith(("http://", "https://")):
            is_served = uri.startswith(("http:", "https:"))
            return view.link, "" if is_served else f"mlflow ui --backend-store-uri {redact(uri)}"
    return "", ""


DEFAULT_PORT = 8080
PORTS_TRIED = 20
LOOK_SECONDS = 5.0  # seconds between scans of the studies for new plots
log = logging.getLogger(__name__)


class DashboardError(UserError):
    """The dashboard cannot be served."""


def serve(
    store_url: str,
    port: int | None = None,
    host: str = "127.0.0.1",
    study: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the dashboard until the process is interrupted.

    Args:
        port: None takes 8080 or the next free port.
        host: Address to listen on. The dashboard asks for no password.

    Raises:
        StoreError: There is no such store or study.
        DashboardError: The port is taken.
    """
    if not exists(store_url):
        raise StoreError(f"store: {shown(parse_url(store_url))} has no study yet. Start one with `automl launch SPEC`")
    store = Store(store_url)
    storage = open_storage(store_url)
    try:
        names = [store.require(study).name] if study else store.study_names()
        for name in names:
            refresh(store, name)
        app = application(storage, host, lambda inner: with_front_page(inner, store, partial(_id_of, storage)))
        with make_http_server(app, host, port) as server, _Following(store_url, names, takes_new=study is None):
            what = "Optuna Dashboard" if study else "Studies, reports, Optuna Dashboard"
            say(f"{what}: {_address(server, storage, host, study)}  (Ctrl-C ends it, studies go on)")
            _end_on_signals()
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        storage.engine.dispose()
        store.close()


def _end_on_signals() -> None:
    """Make Ctrl-C and SIGTERM end the server. Shells start background jobs with SIGINT ignored."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)


def refresh(store: Store, name: str) -> None:
    """Update a study's copy for Optuna and its plots. Errors are logged, not raised."""
    error = catch_up(store, name, ("optuna",)).get("optuna")
    if error:
        log.warning("study %s: its copy for Optuna Dashboard could not be updated: %s", name, error)
        return
    _show(store, name)


def _show(store: Store, name: str) -> bool:
    try:
        storage = open_storage(store.url)
        try:
            show(storage, load_study(store, name))
        finally:
            storage.engine.dispose()
    except Exception as problem:  # noqa: BLE001 - the plots are optional: without them the dashboard is still useful
        log.warning(
            "study %s: the plots and notes for Optuna Dashboard could not be written: %s", name, one_line(problem)
        )
        return False
    return True


class _Following:
    """Thread that updates plots and notes of running studies."""

    def __init__(self, store_url: str, names: Iterable[str], *, takes_new: bool) -> None:
        self._store_url, self._names, self._takes_new = store_url, list(names), takes_new
        self._not_shown: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="plots", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LOOK_SECONDS)

    def _follow(self) -> None:
        store = Store(self._store_url)
        seen = {name: _revision(store, name) for name in self._names}
        rest = LOOK_SECONDS
        while not self._over.wait(rest):
            used = time.thread_time()
            with suppress(StoreError, SQLAlchemyError):  # the store does not answer now
                self._look(store, seen)
            rest = rest_seconds(time.thread_time() - used, LOOK_SECONDS)
        store.close()

    def _look(self, store: Store, seen: dict[str, int]) -> None:
        for name in store.study_names() if self._takes_new else self._names:
            with suppress(StoreError):  # it was deleted
                revision = _revision(store, name)
                if name not in seen or name in self._not_shown:
                    self._not_shown.discard(name)
                    refresh(store, name)
                elif revision != seen[name] and not _show(store, name):
                    self._not_shown.add(name)  # no process mirrors it, so even its Optuna study may be missing
                seen[name] = revision


def _revision(store: Store, name: str) -> int:
    return int(store.require(name).revision)


def application(
    storage: Any, host: str, pages: Callable[[Application], Application] = lambda inner: inner
) -> Application:
    """Return the dashboard as a read-only WSGI application that rejects requests from other sites."""
    inner = pages(optuna_dashboard_of(storage))

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        asked, origin = str(environ.get("HTTP_HOST", "")), environ.get("HTTP_ORIGIN")
        problem = ""
        if is_loopback(host) and not names_this_machine(asked, host):
            problem = "this dashboard answers to localhost only"
        elif origin not in {None, f"http://{asked}", f"https://{asked}"}:
            problem = "this dashboard answers to its own pages only"
        elif environ.get("REQUEST_METHOD") not in {"GET", "HEAD", "OPTIONS"}:
            problem = "this dashboard is read-only"
        if problem:
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{problem}\n".encode()]
        return inner(environ, start_response)

    return guarded


def optuna_dashboard_of(storage: Any) -> Application:
    """Return Optuna Dashboard as a WSGI application without any access control."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dashboard = importlib.import_module("optuna_dashboard")
    application: Application = dashboard.wsgi(storage)
    return application


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    timeout = 10.0  # seconds that a client may be silent

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Print nothing, unlike the base class."""


def make_http_server(app: Application, host: str, port: int | None) -> WSGIServer:
    """Return a server on `port`; None takes a free port from 8080. Raises DashboardError if it is unavailable."""
    ports = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED), 0]
    problem = ""
    for candidate in ports:
        try:
            return make_server(host, candidate, app, server_class=_Server, handler_class=_QuietHandler)
        except (OSError, OverflowError) as error:
            problem = getattr(error, "strerror", None) or str(error)
    raise DashboardError(f"port {port} on {host} is unavailable ({problem}). Leave --port out to get a free port")


def _id_of(storage: Any, name: str) -> int | None:
    try:
        return int(storage.get_study_id_from_name(name))
    except KeyError:
        return None


def _address(server: WSGIServer, storage: Any, host: str, study: str | None) -> str:
    name = f"[{host}]" if ":" in host else host
    path = "" if study is None else f"dashboard/studies/{storage.get_study_id_from_name(study)}"
    return f"http://{name}:{server.server_port}/{path}"
