"""Bodies of requests: how many bytes one may have, and how many all of them that are in the memory of a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from .errors import RequestError

TOGETHER = 4
"""Number of largest bodies that a worker holds at once. Rows that wait are counted where they are queued, but whoever
sends a body is not there yet, and connections have no limit."""


class Bodies:
    """Reads bodies, and refuses what the memory has no room for. It is used in the event loop alone.

    Args:
        most: Number of bytes that one body may have.
        together: Number of bytes that all bodies may have whose requests are under way.
    """

    def __init__(self, most: int, together: int) -> None:
        self._most, self._together = most, together
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Give the body of a request, which counts until the request is answered.

        Bytes count as they come, so that a client gets no room by saying that it will send much.

        Raises:
            RequestError: It is too large, does not come to its end, or finds no room.
        """
        told = request.headers.get("content-length", "")
        if told.isdecimal() and int(told) > self._most:
            raise self._too_large(told)
        parts = bytearray()
        try:
            async for part in request.stream():
                parts += part
                self._held += len(part)
                if len(parts) > self._most:
                    raise self._too_large(f"more than {self._most}")
                if self._held > self._together:
                    message = f"body: found {self._held} bytes of requests under way, allowed: {self._together}"
                    raise RequestError(429, message, 1)
            yield bytes(parts)
        except ClientDisconnect:
            raise RequestError(400, f"body: found its end after {len(parts)} bytes, before the request's") from None
        finally:
            self._held -= len(parts)

    def _too_large(self, found: str) -> RequestError:
        return RequestError(413, f"body: found {found} bytes, allowed: {self._most}")
