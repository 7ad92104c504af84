"""Names and addresses of the loopback interface."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def names_this_machine(header: str, own: str) -> bool:
    """Return whether the header Host is empty, a loopback address, or the server's own, with or without port.

    A web page can have its own name resolved to 127.0.0.1 ("DNS rebinding"); its requests carry that name.
    """
    before, colon, port = header.lower().rpartition(":")
    bare = (before if colon and port.isdecimal() else header.lower()).strip("[]")
    return not bare or bare == own or is_loopback(bare)
