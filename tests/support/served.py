"""A server of a model in processes of its own, and clients that ask it."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import optional
from tests.support.paths import ROOT

MODULE = (sys.executable, "-m", "automl.standalone.serving")
COMMAND = (sys.executable, "-m", "automl", "serve-model")
SCHEMATHESIS = (
    "run", "--mode", "all", "--phases", "examples,coverage,fuzzing", "--seed", "1", "--suppress-health-check", "all",
    "--no-shrink", "--warnings", "off", "--request-timeout", "60",
)  # fmt: skip


@dataclass
class Reply:
    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    asked: Any = None


class Client:
    """One connection that is kept, as long as the server does."""

    def __init__(self, port: int, token: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._token = token

    def ask(self, path: str, content: Any = None, *, raw: bytes | None = None, method: str = "", **more: str) -> Reply:
        """Send a request, with a body if content or bytes are given, and with more headers."""
        body = raw if raw is not None else None if content is None else json.dumps(content).encode()
        headers = more | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        if body is not None:
            headers["Content-Type"] = "application/json"
        self._connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
        got = self._connection.getresponse()
        text = got.read()
        is_json = got.headers.get("content-type", "").startswith("application/json")
        told = json.loads(text) if is_json else text.decode()
        return Reply(got.status, told, {k.lower(): v for k, v in got.headers.items()}, content)

    def close(self) -> None:
        self._connection.close()


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def client(self, token: str = "") -> Client:
        return Client(self.port, token)

    def ask(self, path: str, content: Any = None, **more: Any) -> Reply:
        client = self.client(more.pop("token", ""))
        try:
            return client.ask(path, content, **more)
        finally:
            client.close()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(one) for one in children]

    def ended(self, seconds: float = 200) -> int:
        return self.process.wait(seconds)

    def wait_for(self, what: Callable[[], bool], seconds: float = 200) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def raw(self, *parts: bytes) -> bytes:
        """Send bytes on a connection, and return all that comes until the server closes it or says nothing more."""
        found = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            try:
                for part in parts:
                    connection.sendall(part)
                connection.shutdown(socket.SHUT_WR)
                while got := connection.recv(65_536):
                    found += got
            except (ConnectionError, OSError):  # the server closes while it is still sent to
                return found
        return found

    def figures(self, token: str = "") -> dict[str, float]:
        """Samples of /metrics, by name and labels as they stand there."""
        lines = str(self.ask("/metrics", token=token).body).splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody takes connections on a port of this machine."""
    with socket.socket() as client:
        client.bind(("127.0.0.2", 0))  # from the server's own address it might connect to itself
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def served_service(folder: Path, *options: str, **environment: str) -> Iterator[str]:
    """Run `automl serve` with a store of a folder until the end of the block; yields its address."""
    log, said = folder / "service.log", re.compile(r"automl service: (http://\S+)")
    command = [sys.executable, "-m", "automl", "serve", "--port", "0", "--store", f"sqlite:///{folder}/automl.db"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, *options], cwd=folder, env=dict(os.environ) | environment, stdout=stream, stderr=stream
        )
    server = Server(process, 0, log)
    try:
        server.wait_for(lambda: said.search(log.read_text()) is not None)
        yield said.findall(log.read_text())[0].rstrip("/")
        assert process.poll() is None, log.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(200) == 0
    errors = [line for line in log.read_text().splitlines() if "Traceback" in line]
    assert not errors, errors[0][-2000:]  # pytest takes minutes to compare long texts


@contextmanager
def served(
    folder: Path, model: str | Path, *options: str, run: Sequence[str] = MODULE, **environment: str
) -> Iterator[Server]:
    """Serve a model on a free port until the end of the block."""
    log = folder / "server.log"
    process = start(folder, model, "--port", "0", "--poll-seconds", "0.2", *options, run=run, **environment)
    server = Server(process, 0, log)
    try:
        server.wait_for(lambda: "/docs" in log.read_text())
        server.port = int(re.findall(r"http://\S+:(\d+);", log.read_text())[0])
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            finally:
                process.kill()


def check_routes(address: str, folder: Path, *arguments: str, checks: str = "all") -> str:
    """Have schemathesis ask in ways that an OpenAPI document allows, and in others; returns what it says."""
    if importlib.util.find_spec("schemathesis") is None:  # importing it would change hypothesis for all other tests
        optional.missing("schemathesis", "pip install -c constraints.txt schemathesis")
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", *SCHEMATHESIS, "--checks", checks, *arguments,
         f"{address}/openapi.json"],
        cwd=folder, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def start(
    folder: Path, model: str | Path, *options: str, run: Sequence[str] = MODULE, **environment: str
) -> subprocess.Popen[bytes]:
    """Start a server, which writes into server.log of a folder."""
    with (folder / "server.log").open("wb") as log:
        return subprocess.Popen(
            [*run, str(model), *options], stdout=log, stderr=log, cwd=folder,
            env={"PYTHONPATH": str(ROOT)} | dict(os.environ) | environment,
        )  # fmt: skip


class Load:
    """Clients that ask again and again, each on a connection of its own, which it opens anew when it breaks.

    A request whose connection broke is asked once more, as docs/serving.md says.

    Args:
        server: The server.
        clients: Their number.
        content: Makes the body of a client's next request.
        path: Where they ask.
        token: What they bring.
        pause_seconds: How long a client waits between two requests, which leaves the processors to the server.

    Attributes:
        replies: All answers.
        broken: What broke connections while a request was under way.
        refused: What refused connections.
        lost: Requests that were not answered the second time either.
    """

    def __init__(
        self,
        server: Server,
        clients: int,
        content: Callable[[], Any],
        *,
        path: str = "/predict",
        token: str = "",
        pause_seconds: float = 0.0,
    ) -> None:
        self.replies: list[Reply] = []
        self.broken: list[Exception] = []
        self.refused: list[Exception] = []
        self.lost: list[Any] = []
        self._server, self._content, self._path, self._token = server, content, path, token
        self._pause_seconds = pause_seconds
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    @property
    def statuses(self) -> dict[int, int]:
        """How often each status came."""
        return dict(Counter(reply.status for reply in self.replies))

    def more(self, count: int) -> None:
        """Wait until so many more requests are answered."""
        goal = len(self.replies) + count
        self._server.wait_for(lambda: len(self.replies) >= goal)

    def _ask(self) -> None:
        client = self._server.client(self._token)
        again: Any = None
        while again is not None or not self._end.wait(self._pause_seconds):
            content, is_second = (self._content(), False) if again is None else (again, True)
            again = None
            try:
                self.replies.append(client.ask(self._path, content))
            except ConnectionRefusedError as error:
                self.refused.append(error)
                self.lost += [content] * is_second
                client.close()
                time.sleep(0.05)
            except (OSError, http.client.HTTPException) as error:
                self.broken.append(error)
                client.close()
                self.lost += [content] * is_second
                again = None if is_second else content
        client.close()
