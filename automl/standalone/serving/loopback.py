"""Names and addresses of a machine's own interface, by which nobody else reaches it."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def names_this_machine(header: str, own: str) -> bool:
    """Whether the header Host is missing, or has a loopback address or the server's own, with a port or without.

    A web page can have its own name resolved to 127.0.0.1, and then act here ("DNS rebinding"): its requests bring that
    name.

    Args:
        header: Value of the header; empty if it is missing.
    """
    before, colon, port = header.lower().rpartition(":")
    bare = (before if colon and port.isdecimal() else header.lower()).strip("[]")
    return not bare or bare == own or is_loopback(bare)
