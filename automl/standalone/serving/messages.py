"""Lines of JSON between the supervisor and a worker, over a pair of sockets that ends when either of them does."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

_LONGEST = 2**20

Message = dict[str, Any]


class Channel:
    """One end of the pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, message: Message) -> None:
        """Send a message; nothing happens where the other end has gone."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def messages(self) -> AsyncIterator[Message]:
        """Yield what the other end sends, until it ends."""
        try:
            while line := await self._reader.readline():
                yield json.loads(line)
        except ConnectionError:
            return

    def close(self) -> None:
        """Close this end."""
        self._writer.close()


async def channel_on(end: socket.socket) -> Channel:
    """Return the channel on a connected socket."""
    return Channel(*await asyncio.open_connection(sock=end, limit=_LONGEST))
