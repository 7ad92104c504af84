"""uvicorn's HTTP/1.1 server with limits on slow or hostile clients."""

import logging
import resource
import socket
from typing import Any

from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from .listening import BACKLOG

MOST_CONNECTIONS = 2000
"""Most connections of a process. A further connection replaces the connection that waits longest for its client."""
MOST_HEADS = 500  # most connections that wait for a head: heads sent byte by byte cost processor time
SECONDS = {"head": 10.0, "body": 60.0, "reader": 30.0, "idle": 30.0}
"""Most seconds for a head, for `_PROGRESS_BYTES` of a body, for a client that reads, and of an idle connection."""
_PROGRESS_BYTES = 2**14
_READ_BYTES = 2**16
_MOST_FILES = 65_536
_heads: "dict[Connection, None]" = {}
_others: "dict[Connection, None]" = {}
"""Connections that wait for a head, and that wait otherwise for their client, longest first."""


class Connection(H11Protocol):
    """A connection that closes if its client sends or reads too slowly."""

    _state, _received, _noted, _timer = "", 0, 0, None

    def connection_made(self, transport: Any) -> None:
        """Start the time limit for a request. Of too many connections, close the longest waiting."""
        transport.max_size = _READ_BYTES
        super().connection_made(transport)
        self._settle()
        if len(_heads) > MOST_HEADS or len(self.connections) > most_connections():
            longest = next(iter(_heads if len(_heads) > MOST_HEADS else _others or _heads))
            longest.leave("")
            longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self.leave("")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle bytes of a request."""
        self._received += len(data)
        super().data_received(data)
        self._settle()

    def on_response_complete(self) -> None:
        """Start the time limit for the next request."""
        super().on_response_complete()
        self._settle()

    def pause_writing(self) -> None:
        """Start the time limit for a slow reader."""
        super().pause_writing()
        self._settle()

    def resume_writing(self) -> None:
        """End the time limit for reading."""
        super().resume_writing()
        self._settle()

    def _settle(self) -> None:
        is_active = self.cycle is not None and not self.cycle.response_complete
        if self.flow.write_paused:
            state = "reader"
        elif is_active:
            state = "body" if self.cycle.more_body else ""
        else:
            state = "head" if self.cycle is None or self.conn.trailing_data[0] else "idle"
        if state != self._state:
            self.leave(state)
            if state:
                (_heads if state == "head" else _others)[self] = None
                self._wait()

    def leave(self, state: str) -> None:
        """Stop the time limit, and change to another state."""
        self._state = state
        _heads.pop(self, None)
        _others.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        seconds = SECONDS[self._state] + (self.timeout_keep_alive if self._state == "idle" else 0)
        self._noted, self._timer = self._received, self.loop.call_later(seconds, self._is_late)

    def _is_late(self) -> None:
        if self._state == "body" and (self.flow.read_paused or self._received - self._noted >= _PROGRESS_BYTES):
            self._wait()
        else:
            self.transport.abort()


class LimitedServer(Server):
    """uvicorn's server with a long queue of connections to accept."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. uvicorn's `backlog` is here the number of connections accepted at a time."""
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(BACKLOG)


def limits(*, together: int) -> dict[str, Any]:
    """Return options of uvicorn for `LimitedServer`. Invalid requests are not logged, because anybody can send many.

    `together` is the number of connections accepted at a time: 1 lets workers of a port share them evenly.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return {"http": Connection, "ws": "none", "backlog": together, "access_log": False, "server_header": False}


def most_connections() -> int:
    """Return the most connections that leave file descriptors for other uses."""
    return min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def allow_many_connections() -> None:
    """Raise the limit on open files as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _MOST_FILES)), hard))
