"""The socket on which all workers listen."""

from __future__ import annotations

import socket

from .errors import ServeError

BACKLOG = 2048


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; ServeError if the address is unavailable."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ServeError(
            f"--port: found {port} on {host}, which cannot be had: {reason}; --port 0 takes a free one"
        ) from None
    listening.setblocking(False)
    return listening


def address(listening: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
