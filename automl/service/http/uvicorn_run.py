"""Runs the service: socket, token file, optional worker, orderly shutdown."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from automl.service.http.context import ServiceContext
from automl.service.http.service_app import make_app
from automl.service.subprocess_questions import end_programs
from automl.service.workers.traces import JsonHandler
from automl.standalone.serving.connections import LimitedServer, allow_many_connections, limits
from automl.standalone.serving.errors import ServeError
from automl.standalone.serving.listening import address, is_loopback, listening_socket
from automl.standalone.serving.settings import token_problem
from search_spaces.messages import UserError
from studies.queueing import access_tokens

SHUTDOWN_SECONDS = 8  # seconds for open requests when the service ends; then event streams are cut
_FILE_TOKEN = "token file"  # noqa: S105 - the name of the token, not the token


@dataclass(frozen=True, kw_only=True, slots=True)
class Listening:
    """Address and access of the service, and its optional worker.

    Attributes:
        host: Address. If other machines can reach it, the store needs a token.
        port: 0 takes a free port.
        is_open: True makes every user of the machine an admin, even with tokens in the store.
        worker_slots: Slots of the worker; None starts no worker, 0 uses the whole machine.
    """

    host: str
    port: int
    is_open: bool = False
    worker_slots: int | None = None


def serve(context: ServiceContext, listening: Listening, say: Callable[[str], None]) -> None:
    """Serve until interrupted. Raises UserError if the address is in use, or public without a token."""
    needs_token = not listening.is_open and access_tokens.any_made(context.store)
    if not needs_token and not is_loopback(listening.host):
        problem = "--open allows only this machine" if listening.is_open else "the store has no token"
        raise UserError(
            f"--host: {listening.host} is a public address, but {problem}. Use 127.0.0.1, or add a token "
            "(`automl token add NAME --user USER --project PROJECT --role admin`)"
        )
    try:
        socket = listening_socket(listening.host, listening.port)
    except ServeError as error:
        raise UserError(str(error)) from None
    app = make_app(context, is_open=listening.is_open, host=listening.host)
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=SHUTDOWN_SECONDS, **limits(together=16))
    logging.basicConfig(level=logging.WARNING, handlers=[JsonHandler()])
    logging.captureWarnings(True)
    allow_many_connections()
    who = "a token is needed" if needs_token else "every user of this machine is an admin"
    with _worker(context, listening), suppress(KeyboardInterrupt):  # uvicorn re-raises the signal that ended it
        say(f"automl service: {address(socket)} ({who}; Ctrl-C ends it, workers go on)")
        try:
            # `asyncio.run` would wait for all threads, and a thread may wait for ever.
            asyncio.new_event_loop().run_until_complete(LimitedServer(config).serve([socket]))
        finally:
            end_programs()


def take_token(context: ServiceContext, file: Path) -> None:
    """Register a file's token as an admin's. Raises UserError if the file or the token is unfit."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--token-file: {file} cannot be read ({error})") from None
    if len(token.split()) > 1:
        raise UserError(f"--token-file: {file} has {len(token.split())} words. It must hold only an admin's token")
    if problem := token_problem(token):
        raise UserError(f"--token-file: {problem} ({file})")
    access_tokens.keep(context.store, token, name=_FILE_TOKEN, user="admin", project="admin", role="admin")


@contextmanager
def _worker(context: ServiceContext, listening: Listening) -> Iterator[None]:
    """Run a worker beside the service. When the service ends, the worker saves its studies, and stops."""
    if listening.worker_slots is None:
        yield
        return
    slots = ["--slots", str(listening.worker_slots)] if listening.worker_slots else []
    environment = {**os.environ, "AUTOML_STORE": context.store.url}
    worker = subprocess.Popen(  # noqa: S603 - a program of this project
        [sys.executable, "-m", "automl", "worker", *slots], env=environment, start_new_session=True
    )
    try:
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()
