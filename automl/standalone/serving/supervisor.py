"""The process that owns the port: starts workers, replaces those that end, and has them load new models one by one.

The listening socket is one for all workers. A connection that no worker has taken yet waits in it, whichever worker
ends; so only the requests that a killed worker held are lost.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

from .answer_log import check_folder
from .errors import ServeError
from .listening import address, listening_socket
from .metrics import FOLDER_VARIABLE, worker_ended
from .settings import Settings
from .sources import Place, Source
from .worker_process import WorkerProcess, environment_of_workers

_GRACE_SECONDS = 10.0
"""How long a worker may take to end beyond the time that a request may take."""
_SHORT_LIFE_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
"""How long to wait before a worker is replaced that has ended soon after its start."""


class Supervisor:
    """Serves until a signal has it drain.

    Args:
        settings: The settings.
        sources: Where the model of each role comes from.
        say: Prints a line.
    """

    def __init__(self, settings: Settings, sources: Mapping[str, Source], say: Callable[[str], None]) -> None:
        self._settings, self._sources, self._say = settings, sources, say
        self._workers: set[WorkerProcess] = set()
        self._good: dict[str, Place] = {}
        self._tried: dict[str, Place] = {}
        self._fatal: dict[str, Place] = {}
        self._problem = ""
        self._stopping = asyncio.Event()
        self._reload = asyncio.Event()
        self._hurry = asyncio.Event()
        self._first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serve.

        Raises:
            ServeError: The port cannot be had, or the model cannot be served.
        """
        if self._settings.answers is not None:
            check_folder(self._settings.answers)
        self._good = self._tried = await self._looked()
        for role, source in self._sources.items():
            source.served(self._good[role])
        listening = listening_socket(self._settings.host, self._settings.port)
        with listening, TemporaryDirectory() as figures, self._signals():
            environment = environment_of_workers(self._settings, figures)
            keepers = [
                asyncio.create_task(self._keep(listening, environment, number))
                for number in range(self._settings.workers)
            ]
            watching: asyncio.Task[Any] | None = None
            try:
                if line := await self._first_answer():
                    self._say(f"serving {line} at {address(listening)}; /docs describes it")
                    watching = asyncio.create_task(self._watch())
                    await self._stopping.wait()
            finally:
                listening.close()
                if watching is not None:
                    watching.cancel()
                await self._drain(keepers)

    async def _first_answer(self) -> str:
        """Return what the first worker says of its model; nothing if a signal came before."""
        stop = asyncio.create_task(self._stopping.wait())
        either: set[asyncio.Future[Any]] = {stop, self._first}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return self._first.result() if self._first.done() else ""
        finally:
            stop.cancel()

    async def _looked(self) -> dict[str, Place]:
        return {role: await asyncio.to_thread(source.look) for role, source in self._sources.items()}

    async def _keep(self, listening: socket.socket, environment: Mapping[str, str], number: int) -> None:
        """Start a worker, and another one whenever it has ended."""
        is_first = number == 0
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                worker = await WorkerProcess.started(self._settings, listening, environment)
            except OSError as error:  # such as too many processes, which may be over soon
                await self._no_worker(error)
                continue
            self._workers.add(worker)
            if is_first:
                worker.listen()  # so that /health answers while the model loads; all others wait for their model
            loading = asyncio.create_task(self._first_load(worker, is_awaited=is_first))
            is_first = False
            code = await worker.ended()
            self._workers.discard(worker)
            await loading
            worker_ended(worker.pid, environment[FOLDER_VARIABLE])
            if self._stopping.is_set():
                return
            if not self._first.done():
                self._first.set_exception(ServeError(f"a worker ended with exit code {code} before it served"))
                return
            self._say(f"worker {worker.pid} ended with exit code {code}; another one is started")
            if time.monotonic() - started < _SHORT_LIFE_SECONDS:
                await self._pause()

    async def _no_worker(self, error: OSError) -> None:
        if self._first.done():
            self._say(f"no worker can be started: {error.strerror}; it is tried again")
        else:
            self._first.set_exception(ServeError(f"no worker can be started: {error.strerror}"))
        await self._pause()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), _PAUSE_SECONDS)

    async def _first_load(self, worker: WorkerProcess, *, is_awaited: bool) -> None:
        """Have a new worker load what the others serve.

        Args:
            worker: The worker.
            is_awaited: Whether the server serves once it has, since it listens already.
        """
        versions, told = None, ""
        while versions is None and not self._stopping.is_set():
            try:
                versions = await self._loaded(worker)
            except ServeError as error:
                if not self._first.done():
                    self._first.set_exception(error)
                    return
                if str(error) != told:
                    told = str(error)
                    self._say(f"worker {worker.pid} has no model yet: {told}")
                if not any(one.has_model for one in self._workers):
                    worker.listen()  # nobody else answers: it says 503 until there is a model
                await self._pause()  # what was missing, such as memory, may be there then
            except ConnectionError:
                return
        if versions is None:
            return
        if is_awaited and not self._first.done():
            self._first.set_result(_told(versions))
        if self._problem:
            worker.tell(self._problem)

    async def _loaded(self, worker: WorkerProcess) -> dict[str, str]:
        """Have a worker load what is served, which may change meanwhile, and return the version of each role."""
        loaded: dict[str, Place] = {}
        versions: dict[str, str] = {}
        while loaded != self._good:
            loaded = self._good
            versions = await worker.load(loaded)
        return versions

    async def _watch(self) -> None:
        """Look again and again whether there is another model."""
        before = self._good
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._reload.wait(), self._settings.poll_seconds)
            is_asked = self._reload.is_set()
            self._reload.clear()
            try:
                now = await self._looked()
            except ServeError as error:
                self._set_problem(str(error))
                before = {}
                continue
            except Exception as error:  # noqa: BLE001 - the watching must go on, whatever a file or a registry does
                self._set_problem(f"MODEL: it cannot be looked at: {type(error).__name__}: {error}")
                before = {}
                continue
            # What is being written changes from look to look: it is loaded once it has stayed the same.
            is_whole, before = now == before, now
            if is_asked or (is_whole and now != self._tried):
                self._tried = now
                await self._roll_out(now, again=is_asked)
            elif now == self._tried == self._good:
                self._set_problem("")

    async def _roll_out(self, places: dict[str, Place], *, again: bool) -> None:
        """Have one worker after the other load models; where the first one fails, all keep what they have."""
        served = ""
        asked: set[WorkerProcess] = set()
        while left := self._workers - asked:  # workers that start meanwhile may have loaded what was served before
            worker = left.pop()
            asked.add(worker)
            try:
                versions = await worker.load(places, again=again)
            except ConnectionError:
                if not served:  # the model may be the reason: no other worker is asked now
                    self._retry_once(places)
                    return
            except ServeError as error:
                if not served:
                    self._set_problem(str(error))
                    return
                self._say(f"worker {worker.pid} does not load it and is replaced: {error}")
                worker.drain()
            else:
                self._good, served = places, _told(versions)
        if served:
            self._problem, self._fatal = "", {}
            for role, source in self._sources.items():
                source.served(places[role])
            self._say(f"now serving {served}")

    def _retry_once(self, places: dict[str, Place]) -> None:
        """Have models that a worker did not survive loaded by another one, but by no third one."""
        if self._fatal == places:
            self._set_problem("MODEL: two workers ended while they loaded it")
        else:
            self._fatal, self._tried = places, {}

    def _set_problem(self, problem: str) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        self._say(f"the model that is served stays: {problem}" if problem else "the model is there again")
        for worker in self._workers:
            worker.tell(problem)

    async def _drain(self, keepers: list[asyncio.Task[None]]) -> None:
        """End all workers once they have answered what they hold; a second signal ends them at once."""
        self._stopping.set()
        for worker in self._workers:
            worker.drain()
        hurried = asyncio.create_task(self._hurry.wait())
        everything = asyncio.gather(*keepers, return_exceptions=True)
        patience = self._settings.timeout_seconds + _GRACE_SECONDS
        either: set[asyncio.Future[Any]] = {hurried, everything}
        await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        while not everything.done():
            for worker in self._workers:
                worker.kill()
            await asyncio.wait({everything}, timeout=_PAUSE_SECONDS)

    def _ask_to_stop(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers = {
            signal.SIGTERM: self._ask_to_stop,
            signal.SIGINT: self._ask_to_stop,
            signal.SIGHUP: self._reload.set,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)


def _told(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{version} as {role}" for role, version in versions.items())
