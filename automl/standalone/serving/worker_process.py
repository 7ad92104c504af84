"""A worker as the supervisor sees it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .errors import ServeError
from .messages import Channel, channel_on
from .metrics import FOLDER_VARIABLE
from .settings import Settings
from .sources import Place


class WorkerProcess:
    """A worker that was started.

    Args:
        process: Its process.
        channel: To it.

    Attributes:
        pid: Number of the process.
        has_model: Whether it has said that a model is loaded.
    """

    def __init__(self, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.pid, self.has_model = process.pid, False
        self._process, self._channel = process, channel
        self._reply: asyncio.Future[dict[str, str]] | None = None
        self._one_load = asyncio.Lock()
        self._hearing = asyncio.create_task(self._hear())

    @classmethod
    async def started(
        cls, settings: Settings, listening: socket.socket, environment: Mapping[str, str]
    ) -> WorkerProcess:
        """Start a worker; it listens once it is told to, or has a model."""
        mine, its = socket.socketpair()
        with its:
            numbers = (its.fileno(), listening.fileno())
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"{__package__}.worker", *map(str, numbers),
                pass_fds=numbers, env=environment, stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        mine.setblocking(False)
        worker = cls(process, await channel_on(mine))
        token = None if settings.token is None else settings.token.get_secret_value()
        worker._channel.send({"settings": settings.model_dump(mode="json") | {"token": token}})
        return worker

    async def load(self, places: Mapping[str, Place], *, again: bool = False) -> dict[str, str]:
        """Have it load models, and return the version of each role.

        Args:
            places: Where the model of each role lies.
            again: Whether to load also those that it has already.

        Raises:
            ServeError: A model does not load; it serves what it had.
            ConnectionError: The worker has ended.
        """
        async with self._one_load:
            if self._hearing.done():
                raise ConnectionError
            self._reply = asyncio.get_running_loop().create_future()
            plain = {role: place.plain() for role, place in places.items()}
            self._channel.send({"load": plain, "again": again})
            versions = await self._reply
            self.has_model = True
            return versions

    def listen(self) -> None:
        """Let it take connections, also without a model."""
        self._channel.send({"listen": True})

    def tell(self, problem: str) -> None:
        """Let it tell in /health why the newest model is not served; an empty text says that all is well."""
        self._channel.send({"problem": problem})

    def drain(self) -> None:
        """Let it answer what it has taken, and end."""
        self._channel.send({"drain": True})

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> int:
        """Wait for its end, and return its exit code."""
        code = await self._process.wait()
        await self._hearing
        self._channel.close()
        return code

    async def _hear(self) -> None:
        async for message in self._channel.messages():
            if self._reply is None or self._reply.done():
                continue
            if "loaded" in message:
                self._reply.set_result(message["loaded"])
            elif "failed" in message:
                self._reply.set_exception(ServeError(message["failed"]))
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionError("the worker has ended"))


def environment_of_workers(settings: Settings, figures: str) -> dict[str, str]:
    """Return the environment that workers start with.

    Args:
        settings: With the number of threads, which torch reads when it is imported.
        figures: Folder in which they put their metrics.
    """
    paths = [path or os.getcwd() for path in sys.path]  # noqa: PTH109 - a plain text
    threads = str(settings.worker_threads)
    added: dict[str, Any] = {"PYTHONPATH": os.pathsep.join(paths), FOLDER_VARIABLE: figures, "OMP_NUM_THREADS": threads}
    return os.environ | added
