"""Connections that end where a client takes too long, or more room than a request's head needs.

httptools itself takes heads of any size, and uvicorn waits for their end as long as a client likes. While the server
drains, a connection gets the answer to one more request, so that a client that was about to send it loses nothing.

A plain request for a prediction is held until its bytes are parsed; if all have come by then, `direct` answers it, else
uvicorn gets it as if it had not been held.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .direct import Direct, Exchange, bytes_of
from .replies import Reply

_MOST_HEAD_BYTES = 65_536
_READ_BYTES = 65_536
"""Size of the memory into which bytes are read. For asyncio's 256 KiB the system is asked for pages at each read, which
takes longer than the rest of it."""
_LAST_SECONDS = 0.5
"""How long an idle connection stays open for its last request while the server drains."""


_UNHEARD = asyncio.Event()


class _DirectCycle:
    """Stands for a request that is answered directly where uvicorn keeps the one that it answers.

    Attributes:
        keep_alive: Whether the connection takes another request.
        response_complete: Whether it is answered.
        more_body: Whether its body is not whole.
        disconnected: Set by uvicorn when the connection is lost.
        message_event: What uvicorn tells news.
    """

    __slots__ = ("disconnected", "keep_alive", "message_event", "more_body", "response_complete")

    def __init__(self, *, keep_alive: bool) -> None:
        self.keep_alive, self.message_event = keep_alive, _UNHEARD
        self.response_complete = self.more_body = self.disconnected = False


class GuardedProtocol(HttpToolsProtocol):
    """A connection.

    Attributes:
        patience_seconds: How long a head, or the rest of a body whose request is answered already, may take.
        direct: Answers plain requests; None leaves all to the application.
    """

    patience_seconds = 30.0
    direct: Direct | None = None
    _timer: asyncio.TimerHandle | None = None
    _futile_bytes = 0
    _has_progressed = False
    _is_in_head = True
    _is_whole = True
    _is_last = False
    _held: bytearray | None = None
    _first_headers: dict[bytes, bytes]
    _exchange: Exchange | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        if hasattr(transport, "max_size"):
            transport.max_size = _READ_BYTES
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._disarm()
        if self._exchange is not None:
            self._exchange.give_up()
            self._exchange = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; of a head, and of what may stand beside a body, no more than there may be."""
        self._has_progressed = False
        super().data_received(data)
        if self._held is not None:
            self._let_go(self._held)
        if self._is_in_head and not self._is_whole and self._timer is None:
            self._arm()
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
        """Begin a head; where its end has not come with it, `data_received` waits for that."""
        super().on_message_begin()
        self._is_in_head, self._is_whole = True, False
        self._disarm()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header of a head; those behind a body are nobody's."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, whose length has a limit of its own."""
        self._has_progressed = True
        if self._held is None:
            super().on_body(body)
        else:
            self._held += body

    def on_headers_complete(self) -> None:
        """Have the request answered, which has a limit of its own."""
        self._has_progressed = True
        self._is_in_head = False
        self._disarm()
        if self._is_plain():
            self._held = bytearray()
        else:
            self._leave_to_uvicorn()

    def on_message_complete(self) -> None:
        """Note that the request is whole."""
        self._is_whole = True
        self._disarm()
        if self._held is not None:
            self._answer(bytes(self._held))
            return
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

    def _is_plain(self) -> bool:
        """Whether the request whose head has come may be answered directly."""
        if self.direct is None or self.parser.get_method() != b"POST" or self.parser.get_http_version() != "1.1":
            return False
        if not self._is_idle() or self.pipeline or self.flow.write_paused or self.parser.should_upgrade():
            return False
        self._first_headers = dict(reversed(self.headers))
        return self.direct.takes(self.url.decode("latin-1"), self._first_headers)

    def _let_go(self, body: bytearray) -> None:
        """Leave a request whose body has not come with its head to uvicorn."""
        self._held = None
        if self.transport.is_closing():
            return
        self._leave_to_uvicorn()
        if body:
            super().on_body(bytes(body))

    def _leave_to_uvicorn(self) -> None:
        super().on_headers_complete()
        if self._is_last:
            self.cycle.keep_alive = False

    def _answer(self, body: bytes) -> None:
        """Answer a request directly."""
        assert self.direct is not None  # noqa: S101 - `_is_plain` asks for it
        self._held = None
        cycle = _DirectCycle(keep_alive=self.parser.should_keep_alive() and not self._is_last)
        self.cycle = cast("Any", cycle)
        path = self.url.decode("latin-1")
        exchange = self.direct.begin(path, self._first_headers, body, lambda reply: self._send(cycle, reply))
        if not cycle.response_complete:
            self._exchange = exchange

    def _send(self, cycle: _DirectCycle, reply: Reply) -> None:
        self._exchange = None
        cycle.response_complete = True
        if not self.transport.is_closing():
            more = b"".join([b"%b: %b\r\n" % header for header in self.server_state.default_headers])
            self.transport.write(bytes_of(reply, more_headers=more, keeps_alive=cycle.keep_alive))
            if not cycle.keep_alive:
                self.transport.close()
        self.on_response_complete()

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
        self._timer = None
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


def guarded(patience_seconds: float, direct: Direct) -> type[asyncio.Protocol]:
    """Return connections that wait no longer than so many seconds for a request's head."""
    return type("Connection", (GuardedProtocol,), {"patience_seconds": patience_seconds, "direct": direct})
