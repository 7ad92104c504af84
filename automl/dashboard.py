"""Optuna Dashboard on a store, on 127.0.0.1: the Optuna view brought up to date, with the report's learning curves."""

from __future__ import annotations

import importlib
import ipaddress
import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna

from reports.curves import chosen, learned, learning_curves
from reports.figures import as_plotly
from reports.plotting import titled
from reports.wording import plural, usd
from search_spaces.errors import UserError
from studies import analysis
from studies.records import NANO, StudyRecord
from studies.storage.engine import StoreError, exists, parse_url, shown
from studies.storage.optuna_view import open_storage
from studies.storage.reader import load_study
from studies.storage.store import Store
from studies.storage.views import catch_up, one_line

DEFAULT_PORT = 8080
PORTS_TRIED = 20
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
log = logging.getLogger(__name__)
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class DashboardError(UserError):
    """The dashboard cannot be served; one line for the user."""


def serve(
    store_url: str,
    port: int | None = None,
    host: str = "127.0.0.1",
    study: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve Optuna Dashboard until the process is interrupted.

    Args:
        store_url: URL of an existing store; a running study may be writing to it.
        port: Port to listen on; None takes 8080 or the next free one.
        host: Address to listen on; the dashboard has no passwords.
        study: Name of the study to open; None lists all.
        say: Called with the dashboard's address when it can be opened.

    Raises:
        StoreError: There is no such store or study.
        DashboardError: The port is taken.
    """
    if not exists(store_url):
        raise StoreError(f"store: {shown(parse_url(store_url))}: there is no study yet")
    store = Store(store_url)
    storage = open_storage(store_url)
    try:
        names = [store.require(study).name] if study else store.study_names()
        for name in names:
            refresh(store, name)
        with make_http_server(application(storage, host), host, port) as server:
            say(f"Optuna Dashboard: {_address(server, storage, host, study)}  (Ctrl-C ends it, studies go on)")
            _end_on_signals()
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        storage.engine.dispose()
        store.close()


def _end_on_signals() -> None:
    """Ctrl-C and a service manager's SIGTERM end the server; a shell starts background jobs with SIGINT ignored."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)


def refresh(store: Store, name: str) -> None:
    """Bring a study's Optuna view up to date, and save our plots with it; an error is logged, the rest is shown."""
    error = catch_up(store, name, ("optuna",)).get("optuna")
    if error:
        log.warning("study %s: the Optuna view could not be brought up to date: %s", name, error)
        return
    try:
        _push_plots(store, load_study(store, name))
    except Exception as problem:  # noqa: BLE001 - the plots are extra: without them the dashboard is still useful
        log.warning("study %s: no learning curves on the dashboard: %s", name, one_line(problem))


def application(storage: Any, host: str) -> Application:
    """Return the dashboard as a WSGI application, which on a loopback address answers to loopback names only.

    A web page can have its own name resolved to 127.0.0.1, and then read or delete studies here ("DNS rebinding"). The
    Host header names the page's own host.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dashboard = importlib.import_module("optuna_dashboard")
    inner: Application = dashboard.wsgi(storage)
    if not _is_loopback(host):
        return inner

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        name = str(environ.get("HTTP_HOST", "localhost")).lower()
        if name.rsplit(":", 1)[0] not in LOOPBACK_NAMES and name not in LOOPBACK_NAMES | {host}:
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"this dashboard answers to localhost only\n"]
        return inner(environ, start_response)

    return guarded


class _Server(ThreadingMixIn, WSGIServer):
    """One thread per request: a page asks for several things at once."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Keep the terminal free of one line per request."""


def make_http_server(app: Application, host: str, port: int | None) -> WSGIServer:
    """Return a server that listens already.

    Args:
        app: WSGI application.
        host: Address to listen on.
        port: Port to listen on; None takes 8080 or the next free one.

    Raises:
        DashboardError: The given port, or every port that was tried, is taken.
    """
    ports = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED), 0]
    problem = ""
    for candidate in ports:
        try:
            return make_server(host, candidate, app, server_class=_Server, handler_class=_QuietHandler)
        except (OSError, OverflowError) as error:
            problem = getattr(error, "strerror", None) or str(error)
    raise DashboardError(f"port {port} on {host} cannot be had ({problem}); leave --port out to get a free one")


def _address(server: WSGIServer, storage: Any, host: str, study: str | None) -> str:
    name = f"[{host}]" if ":" in host else host
    path = ""
    if study is not None:
        path = f"studies/{storage.get_study_id_from_name(study)}"
    return f"http://{name}:{server.server_port}/dashboard/{path}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _push_plots(store: Store, study: StudyRecord) -> None:
    """Save the report's learning curves with the Optuna study: the dashboard draws none with several objectives."""
    import optuna_dashboard  # emits warnings when it is imported, which `application` silences

    storage = open_storage(store.url)
    try:
        mirrored = optuna.load_study(study_name=study.name, storage=storage)
        trials = chosen(study, analysis.archive(study))
        for objective in learned(study):
            figure = as_plotly(titled(learning_curves(trials, objective), f"{objective.metric} by epoch"))
            identity = "automl-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in objective.metric)
            optuna_dashboard.save_plotly_graph_object(mirrored, figure, graph_object_id=identity)
        cost, trials_text = usd(study.cost_nano_usd / NANO), plural(len(study.started), "trial")
        note = f"{trials_text}, {study.state}, {cost} so far.\n\n"
        optuna_dashboard.save_note(mirrored, note + "Archive, budget and reasons: `automl report`, `automl explain`.")
    finally:
        storage.engine.dispose()
