"""A worker process: `python -m predictor.serving.worker CONTROL LISTENING`, which the supervisor starts.

Both arguments are numbers of open sockets: the channel to the supervisor, and the socket on which all workers listen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn

from .access import Gate
from .answer_log import AnswerLog
from .app import make_app
from .batching import Batcher
from .direct import Direct
from .errors import ServeError
from .listening import BACKLOG
from .messages import Channel, Message, channel_on
from .metrics import Metrics
from .predictions import Predictions
from .settings import Settings
from .state import ServingState

_KEEP_ALIVE_SECONDS = 75
_SWITCH_SECONDS = 0.0005
"""How long the event loop may keep the model's thread waiting for the interpreter, of which the default is 5 ms: the
model's operations are many and short, and each asks for it."""


class _Server(uvicorn.Server):
    """A server that leaves signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take the connections that wait, which would be broken with the last copy of their socket, and end."""
        for listening in sockets or ():
            with contextlib.suppress(OSError):  # none waits any more
                while True:
                    await self._take(listening.accept()[0])
        await super().shutdown(sockets)

    async def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        make: Any = self.config.http_protocol_class
        await loop.connect_accepted_socket(
            lambda: make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop),
            connection,
        )


def _connections(settings: Settings, direct: Direct) -> Any:
    """Return what uvicorn makes connections of; h11 of its own accord limits heads, but not how long they take."""
    try:
        from .connections import guarded
    except ImportError as error:
        if error.name != "httptools":
            raise
        return "h11"
    return guarded(settings.timeout_seconds, direct)


class Worker:
    """Serves until the supervisor, or a signal, has it drain.

    Args:
        channel: To the supervisor, which has not said anything yet.
        listening: The socket.
        settings: The settings.
    """

    def __init__(self, channel: Channel, listening: socket.socket, settings: Settings) -> None:
        self._channel, self._listening, self._settings = channel, listening, settings
        self._drain = asyncio.Event()
        metrics = Metrics()
        self._metrics = metrics
        self._state = ServingState(settings.share, metrics)
        self._batcher = Batcher(
            batch_rows=settings.batch_rows, wait_seconds=settings.batch_wait_ms / 1000, queue_rows=settings.queue_rows,
            watcher=metrics, on_broken=self._drain.set,  # the supervisor starts another worker
        )  # fmt: skip
        self._answers = None
        if settings.answers is not None:
            self._answers = AnswerLog(settings.answers, settings.answers_mib * 2**20, settings.workers)
        predictions = Predictions(settings, self._state, self._batcher, self._answers)
        gate = Gate(make_app(settings, self._state, predictions), settings, metrics)
        direct = Direct(settings, self._state, gate, predictions)
        config = uvicorn.Config(
            gate, http=_connections(settings, direct), log_config=None, access_log=False, lifespan="off", ws="none",
            server_header=False, proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(settings.timeout_seconds) + 1,
            backlog=1,  # a worker accepts as many connections a turn, so that workers get equal shares
        )  # fmt: skip
        self._server = _Server(config)
        self._may_listen = asyncio.Event()

    async def run(self) -> None:
        """Do what the supervisor says until it says drain, or ends."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._drain.set)
        hearing = asyncio.create_task(self._hear())
        serving = asyncio.create_task(self._serve())
        await self._drain.wait()
        self._state.is_draining = True
        self._may_listen.set()
        self._server.should_exit = True
        await serving
        hearing.cancel()
        await asyncio.to_thread(self._batcher.close)
        if self._answers is not None:
            await asyncio.to_thread(self._answers.close)

    async def _serve(self) -> None:
        await self._may_listen.wait()
        if self._drain.is_set():
            return
        serving = asyncio.create_task(self._server.serve([self._listening]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.005)
        if not serving.done():
            self._listening.listen(BACKLOG)  # how many may wait is another matter than how many are taken at once
            self._channel.send({"listening": True})
        await serving

    async def _hear(self) -> None:
        async for message in self._channel.messages():
            if "load" in message:
                await self._load(message)
            elif "listen" in message:
                self._may_listen.set()
            elif "problem" in message:
                self._state.problem = message["problem"]
            elif "drain" in message:
                break
        self._drain.set()

    async def _load(self, message: Message) -> None:
        places = message["load"]
        try:
            models = await asyncio.to_thread(
                self._state.loaded, places, self._settings.device, again=bool(message["again"])
            )
        except ServeError as error:
            self._state.problem = str(error)
            self._metrics.loading_ended(succeeded=False)
            self._channel.send({"failed": str(error)})
            return
        self._state.replace(models, places)
        self._metrics.loading_ended(succeeded=True)
        self._channel.send({"loaded": self._state.versions()})
        self._may_listen.set()


async def work(control: int, listening: int) -> None:
    """Serve on open sockets, given by their numbers."""
    channel = await channel_on(socket.socket(fileno=control))
    first = await anext(aiter(channel.messages()), None)
    if first is None:
        return
    settings = Settings.model_construct(**Settings.model_validate(first["settings"]).model_dump())
    await Worker(channel, socket.socket(fileno=listening), settings).run()


def main() -> None:
    """Run the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal: the supervisor drains
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format=f"worker {os.getpid()}: %(message)s")
    sys.setswitchinterval(_SWITCH_SECONDS)
    asyncio.run(work(int(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
