"""Servers in processes of their own, on ports of this machine alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from serving_parts.models import AUTOML

START_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A server that answers.

    Attributes:
        process: The process that was started.
        port: Its port.
    """

    process: subprocess.Popen[bytes]
    port: int

    def workers(self) -> list[int]:
        """Return the process ids of its children."""
        return _children(self.process.pid)

    def cpu_seconds(self) -> float:
        """Return the processor time of the process and of all that it has started."""
        return _cpu_seconds(self.process.pid)


@contextmanager
def ours(model: Path, *options: str) -> Iterator[Server]:
    """Serve a package by `automl serve-model`."""
    port = _free_port()
    with _running([*AUTOML, "serve-model", str(model), "--port", str(port), *options], port, model.parent) as server:
        yield server


@contextmanager
def of_mlflow(model: Path) -> Iterator[Server]:
    """Serve a model by `mlflow models serve`, in this environment, with one worker."""
    port = _free_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", str(model), "--port", str(port)]
    with _running([*command, "--env-manager", "local", "--workers", "1"], port, model.parent) as server:
        yield server


def _children(process: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _cpu_seconds(process: int) -> float:
    ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]  # user's and system's
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") + sum(map(_cpu_seconds, _children(process)))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def _running(command: Sequence[str], port: int, folder: Path) -> Iterator[Server]:
    log = folder / f"server-{port}.log"
    with log.open("wb") as out:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # MLflow calls uvicorn by name
        process = subprocess.Popen(
            command, stdout=out, stderr=out, cwd=folder, start_new_session=True, env=os.environ | {"PATH": path}
        )
    try:
        _wait_for(process, port, log)
        yield Server(process=process, port=port)
    finally:
        _end(process)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the server says that it is well."""
    end = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"no server answers on port {port}: {log.read_text()[-2000:]}")
        if _is_well(port):
            return
        time.sleep(0.2)


def _is_well(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return connection.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server and what it has started."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
