"""Holds a worker's model, and replaces it with newer models while serving."""

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .errors import ServeError
from .metrics import Metrics
from .served import Served, load_served
from .settings import Settings
from .sources import Place, Source

LOAD_SECONDS = 600.0
"""Most seconds to load a newer model. A load that hangs keeps its thread, and the served model stays."""


class ServedModel:
    """The served model, replaced only in the event loop. `problem`: why the newest model does not load."""

    served: Served

    def __init__(self, settings: Settings, source: Source, folder: Path, say: Callable[[str], None]) -> None:
        self._settings, self._source, self._lock = settings, source, folder / "lock"
        self._print = say
        self.problem, self.metrics = "", Metrics()
        self._place: Place | None = None
        self._master = os.getppid()
        self._again = asyncio.Event()

    def load_first(self) -> None:
        """Load the first model, before the event loop runs. Raises ServeError."""
        place = self._source.look()
        self._replace(place, self._loaded(place))

    async def follow(self) -> None:
        """Poll for newer models, and at once after SIGHUP."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._again.set)
        before = tried = self._place
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._again.wait(), self._settings.poll_seconds)
            is_asked = self._again.is_set()
            self._again.clear()
            if os.getppid() != self._master:  # the master was killed, so that no other process ends its workers
                os.kill(os.getpid(), signal.SIGTERM)
            try:
                now = await asyncio.to_thread(self._source.look)
            except Exception as error:  # noqa: BLE001 - polling must go on after any error
                kind = "" if isinstance(error, ServeError) else f"MODEL: it cannot be read: {type(error).__name__}: "
                self._tell(f"{kind}{error}")
                before = None
                continue
            # A file that is being written changes between polls, so it is loaded once it is stable.
            is_whole, before = now == before, now
            if is_asked or (is_whole and now != tried):
                tried = now
                await self._load(now)
            elif now == tried == self._place:
                self._tell("")

    async def _load(self, place: Place) -> None:
        try:
            with self._lock.open("w") as lock:  # one worker loads at a time, and then holds two models
                await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
                async with asyncio.timeout(LOAD_SECONDS):
                    served = await asyncio.to_thread(self._loaded, place)
        except TimeoutError:
            self._tell(f"MODEL: {place.path} has not loaded within {LOAD_SECONDS:g} s")
            return
        except ServeError as error:
            self._tell(str(error))
            return
        self._replace(place, served)
        self._say(f"now serving {served.version}")

    def _loaded(self, place: Place) -> Served:
        try:
            served = load_served(place.path, place.version, self._settings.device, trust=self._settings.trust)
        except ServeError:
            self.metrics.loading_ended(succeeded=False)
            raise
        self.metrics.loading_ended(succeeded=True)
        return served

    def _replace(self, place: Place, served: Served) -> None:
        if self._place is not None:
            self.metrics.is_loaded(self.served.version, loaded=False)
        self.metrics.is_loaded(served.version, loaded=True)
        self.served, self._place, self.problem = served, place, ""

    def _say(self, line: str) -> None:
        self._print(f"worker {os.getpid()}: {line}")

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            self._say(f"the served model stays: {problem}" if problem else "the model can be read again")
        self.problem = problem
