"""Opens the socket of all workers, and checks addresses of this machine."""

import ipaddress
import socket

from .errors import ServeError

BACKLOG = 2048


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ServeError for an unavailable address."""
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
        raise ServeError(f"--port: {port} on {host} is unavailable: {reason}. Pass --port 0 for a free port") from None
    listening.setblocking(False)
    return listening


def address(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def names_this_machine(header: str, own: str) -> bool:
    """Return whether the header Host names loopback or the server (else: DNS rebinding)."""
    before, colon, port = header.lower().rpartition(":")
    bare = (before if colon and port.isdecimal() else header.lower()).strip("[]")
    return not bare or bare == own or is_loopback(bare)
