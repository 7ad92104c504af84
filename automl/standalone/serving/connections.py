"""Connections that end where a client takes too long, or more room than a request's head needs.

httptools itself takes heads of any size, and uvicorn waits for their end as long as a client likes. While the server
drains, a connection gets the answer to one more request, so that a client that was about to send it loses nothing.
"""

from __future__ import annotations

import asyncio
import json

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEAD_BYTES = 65_536
_LAST_SECONDS = 0.5
"""How long an idle connection stays open for its last request while the server drains."""


class GuardedProtocol(HttpToolsProtocol):
    """A connection.

    Attributes:
        patience_seconds: How long a head, or the rest of a body whose request is answered already, may take.
    """

    patience_seconds = 30.0
    _timer: asyncio.TimerHandle | None = None
    _futile_bytes = 0
    _has_progressed = False
    _is_in_head = True
    _is_whole = True
    _is_last = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; of a head, and of what may stand beside a body, no more than there may be."""
        self._has_progressed = False
        super().data_received(data)
        self._futile_bytes = 0 if self._has_progressed else self._futile_bytes + len(data)
        if self._futile_bytes <= _MOST_HEAD_BYTES:
            return
        if self._is_in_head:
            self._refuse("431 Request Header Fields Too Large", f"head: allowed: {_MOST_HEAD_BYTES} bytes")
        elif not self.transport.is_closing():
            self.transport.close()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Answer a client that has sent its request and says that it will send no more."""
        is_waiting = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if is_waiting:
            self.cycle.keep_alive = False
        return is_waiting

    def on_message_begin(self) -> None:
        """Wait for the head."""
        super().on_message_begin()
        self._is_in_head, self._is_whole = True, False
        self._arm()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header of a head; those behind a body are nobody's."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, whose length has a limit of its own."""
        self._has_progressed = True
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Have the request answered, which has a limit of its own."""
        self._has_progressed = True
        self._is_in_head = False
        self._disarm()
        super().on_headers_complete()
        if self._is_last:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """Note that the request is whole."""
        self._is_whole = True
        self._disarm()
        super().on_message_complete()
        if self.cycle.response_complete:  # uvicorn took its own timer away when the rest of the body came
            self._arm()

    def on_response_complete(self) -> None:
        """Wait for the rest of a request that was refused before its end."""
        super().on_response_complete()
        if not self._is_whole:
            self._arm()

    def shutdown(self) -> None:
        """Take one more request at most."""
        self._is_last = True
        if self._is_idle():
            self.loop.call_later(_LAST_SECONDS, self._close_idle)
        else:
            self.cycle.keep_alive = False

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_idle(self) -> None:
        if self._is_idle() and not self.transport.is_closing():
            self.transport.close()

    def _arm(self) -> None:
        self._disarm()
        self._timer = self.loop.call_later(self.patience_seconds, self._give_up)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self._is_in_head and not self._is_whole and self._is_idle():
            self._refuse("408 Request Timeout", f"head: found no end in {self.patience_seconds:g} seconds")
        elif self._is_idle() and not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, status: str, message: str) -> None:
        if self.transport.is_closing():
            return
        if self._is_idle():  # otherwise the answer to the request before would be cut
            body = json.dumps({"detail": message})
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(f"{head}connection: close\r\n\r\n{body}".encode())
        self.transport.close()


def guarded(patience_seconds: float) -> type[asyncio.Protocol]:
    """Return connections that wait no longer than so many seconds for a request's head."""
    return type("Connection", (GuardedProtocol,), {"patience_seconds": patience_seconds})
