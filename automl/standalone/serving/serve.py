"""Runs gunicorn with uvicorn workers: owns the port, starts workers, and replaces ended workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from uvicorn_worker import UvicornWorker

from .connections import LimitedServer, allow_many_connections, limits
from .errors import ServeError
from .listening import BACKLOG, address, listening_socket
from .settings import Settings
from .sources import Source

if TYPE_CHECKING:
    from .served_model import ServedModel

_FIGURES = "PROMETHEUS_MULTIPROC_DIR"  # folder of shared metrics; prometheus-client reads it at import
_GRACE_SECONDS = 10  # seconds for an ending worker beyond a request's time limit
_KEEP_ALIVE_SECONDS = 75
_IDLE_SECONDS = 0.5  # seconds that an ending worker still answers on idle connections
_MOST_HEAD_BYTES = 65_536
_SWITCH_SECONDS = 0.0005
"""Longest turn of the event loop in seconds (default 5 ms): the model's short operations wait for each turn."""
_PROBLEM, _SERVED = "problem", "served"


def serve(settings: Settings, source: Source, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; SIGHUP reloads. Raises ServeError for an unusable port or model."""
    source.look()  # refuses a file that is no model before anything is started
    listening = listening_socket(settings.host, settings.port)
    with TemporaryDirectory() as folder:
        os.environ |= {_FIGURES: folder, "OMP_NUM_THREADS": str(settings.worker_threads)}
        allow_many_connections()
        try:
            _Master(_Application(settings, source, Path(folder), listening, say)).run()
        except SystemExit as end:
            with contextlib.suppress(FileNotFoundError):
                raise ServeError(Path(folder, _PROBLEM).read_text(encoding="utf-8")) from None
            if end.code:
                raise ServeError(f"the server ended with exit code {end.code}") from None


class _Application(BaseApplication):
    def __init__(self, settings: Settings, source: Source, folder: Path, listening: Any, say: Callable[[str], None]):
        self._settings, self._source, self._folder, self._say = settings, source, folder, say
        self._address, self._listening = address(listening), listening.detach()
        super().__init__()

    def load_config(self) -> None:
        options: dict[str, Any] = {
            "bind": f"fd://{self._listening}",
            "backlog": BACKLOG,
            "workers": self._settings.workers,
            "worker_class": _Worker,
            "keepalive": _KEEP_ALIVE_SECONDS,
            "timeout": 0,  # a large model may take minutes to load
            "graceful_timeout": math.ceil(self._settings.timeout_seconds) + _GRACE_SECONDS,
            "loglevel": "warning",
            "control_socket_disable": True,
            "child_exit": _worker_ended,
        }
        for name, value in options.items():
            if name in self.cfg.settings:  # older versions have no control socket
                self.cfg.set(name, value)

    def load(self) -> Any:
        from .app import make_app
        from .served_model import ServedModel

        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # gunicorn has set its own level
        logging.basicConfig(level=logging.WARNING, format=f"worker {os.getpid()}: %(message)s")
        sys.setswitchinterval(_SWITCH_SECONDS)
        model = ServedModel(self._settings, self._source, self._folder, self._say)
        while not self._is_loaded(model):
            time.sleep(1)
        return make_app(self._settings, model)

    def _is_loaded(self, model: ServedModel) -> bool:
        """Load a model. Only failures before the first model end the server, since later failures may be temporary."""
        has_served = (self._folder / _SERVED).exists()
        try:
            model.load_first()
        except ServeError as error:
            if not has_served:
                (self._folder / _PROBLEM).write_text(str(error), encoding="utf-8")
                sys.exit(Arbiter.WORKER_BOOT_ERROR)
            return False
        with contextlib.suppress(FileExistsError):
            (self._folder / _SERVED).touch(exist_ok=False)
            self._say(f"serving {model.served.version} at {self._address}; /docs describes it")
        return True


class _Master(Arbiter):
    """gunicorn's master. Ctrl-C is SIGTERM, a second signal kills the workers, and SIGHUP makes them reload."""

    def handle_term(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.kill_workers(signal.SIGKILL))
        super().handle_term()

    handle_int = handle_quit = handle_term

    def handle_hup(self) -> None:
        """Forward SIGHUP, so that workers reload while they serve. gunicorn itself would replace them."""
        self.kill_workers(signal.SIGHUP)

    def spawn_worker(self) -> Any:
        """Start a worker process. In the worker, this call exits."""
        try:
            return super().spawn_worker()
        except SystemExit as end:  # only in the worker
            os._exit(end.code if isinstance(end.code, int) else 1)


class _Server(LimitedServer):
    """uvicorn's server. At its end, idle connections stay open until no other ending worker accepts connections."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        await asyncio.sleep(_IDLE_SECONDS)
        await super().shutdown(sockets)


class _Worker(UvicornWorker):
    """uvicorn worker with limits on connections and request heads."""

    CONFIG_KWARGS = {  # noqa: RUF012 - a base class declares it this way
        **limits(together=1),
        "loop": "asyncio",
        "h11_max_incomplete_event_size": _MOST_HEAD_BYTES,
        "lifespan": "on",
        "proxy_headers": False,
    }

    def init_signals(self) -> None:
        """Ignore SIGHUP until the application has its own handler."""
        super().init_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def _serve(self) -> None:
        self.config.app = self.wsgi
        server = _Server(self.config)
        self._install_sigquit_handler()
        await server.serve(sockets=self.sockets)
        if not server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)


def _worker_ended(_master: Arbiter, worker: Any) -> None:
    from .metrics import worker_ended

    worker_ended(worker.pid, os.environ[_FIGURES])
