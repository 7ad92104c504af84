"""Plain requests for predictions, answered without a task and an ASGI application of their own.

A row takes a small model less time than a server's way to it: a task, a chain of applications and two writes for each
request. A request whose head and small body have come at once, on a connection that answers nothing else, needs none of
that: it is checked, read and queued where its last byte is parsed, and answered in one write where the batch is done.
All other requests go through `app`. Both ways have the same checks, in `access`, `predictions` and `batching`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus

from .access import Gate, Headers
from .batching import Result, Waiting
from .errors import RequestError
from .predictions import KEYS, LARGE_BODY, Asked, Predictions
from .replies import Reply, failure, refusal
from .roles import CHAMPION
from .settings import Settings
from .state import ServingState

log = logging.getLogger(__name__)
_SPECIAL = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
"""Headers that ask for more than an answer."""
_LONGEST_LENGTH = 10
Finish = Callable[[Reply], None]


class Direct:
    """Answers plain requests.

    Args:
        settings: Limits.
        state: The models.
        gate: Says who may ask.
        predictions: Answers rows.
    """

    def __init__(self, settings: Settings, state: ServingState, gate: Gate, predictions: Predictions) -> None:
        self._state, self._gate, self._predictions = state, gate, predictions
        self._most_bytes = min(LARGE_BODY, settings.body_bytes)
        self._timeout = settings.timeout_seconds

    def takes(self, path: str, headers: Headers) -> bool:
        """Whether a POST request may be answered directly once its body is there."""
        length = headers.get(b"content-length", b"")
        served = self._state.models.get(CHAMPION)
        return (
            path in KEYS
            and length.isdigit()
            and len(length) < _LONGEST_LENGTH
            and int(length) <= self._most_bytes
            and served is not None
            and not served.is_slow_to_read
            and _SPECIAL.isdisjoint(headers)
        )

    def begin(self, path: str, headers: Headers, body: bytes, finish: Finish) -> Exchange:
        """Begin to answer a request, which may end at once.

        Args:
            path: A path of `KEYS`.
            headers: Names in small letters with the first value of each.
            body: The whole body.
            finish: Called once with the reply, unless the exchange is given up before.
        """
        exchange = Exchange(path, self._gate, self._predictions, finish)
        try:
            refused = self._gate.refused(path, headers)
            if refused is None:
                exchange.ask(headers, body, self._timeout)
            else:
                exchange.end(refused)
        except RequestError as error:
            exchange.end(refusal(error))
        except Exception as error:
            log.exception("a request for a prediction failed")
            exchange.end(failure(error))
        return exchange


class Exchange:
    """A request that is answered directly.

    Args:
        path: Its path.
        gate: Told when it is answered.
        predictions: Answers rows.
        finish: Called with the reply.
    """

    __slots__ = ("_asked", "_finish", "_gate", "_path", "_predictions", "_started", "_timer", "_waiting")

    def __init__(self, path: str, gate: Gate, predictions: Predictions, finish: Finish) -> None:
        self._path, self._gate, self._predictions, self._finish = path, gate, predictions, finish
        self._started = time.perf_counter()
        self._asked: Asked | None = None
        self._waiting: Waiting | None = None
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, headers: Headers, body: bytes, timeout: float) -> None:
        """Queue the rows.

        Raises:
            RequestError: They are refused.
        """
        predictions = self._predictions
        self._asked = asked = predictions.asked(headers, KEYS[self._path])
        rows = predictions.rows(asked, body)
        self._waiting = predictions.batcher.submit(asked.served, rows, self._answered)
        self._timer = asyncio.get_running_loop().call_later(timeout, self._too_late)

    def end(self, reply: Reply) -> None:
        """Send the reply."""
        self.give_up()
        self._finish(reply)
        self._gate.answered(self._path, reply.status, time.perf_counter() - self._started)

    def give_up(self) -> None:
        """Run nothing more of it, and call nobody."""
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting is not None:
            self._waiting.is_given_up = True

    def _answered(self, result: Result) -> None:
        assert self._asked is not None  # noqa: S101 - it was queued
        if isinstance(result, RequestError):
            self.end(refusal(result))
        elif isinstance(result, Exception):
            self.end(failure(result))
        else:
            self.end(self._predictions.reply(self._asked, result))

    def _too_late(self) -> None:
        self.end(refusal(self._predictions.too_late()))


def bytes_of(reply: Reply, *, more_headers: bytes, keeps_alive: bool) -> bytes:
    """Return a reply as HTTP/1.1.

    Args:
        reply: The reply.
        more_headers: Lines with the headers that each reply has.
        keeps_alive: Whether the connection takes another request.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in reply.headers])
    end = "\r\n" if keeps_alive else "connection: close\r\n\r\n"
    own = f"content-length: {len(reply.body)}\r\ncontent-type: application/json\r\n{lines}{end}".encode("latin-1")
    return b"".join([_status_line(reply.status), more_headers, own, reply.body])


@lru_cache(64)
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
