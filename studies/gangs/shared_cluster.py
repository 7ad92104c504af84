"""A Ray cluster that several controllers of a study share: its address and token, and what has to fit to join it."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trainers.checkpoint_store import place_of
from trainers.checkpoint_urls import MissingLibraryError, is_url, joined

MARKER = ".shared-cluster"
"""Name of the file in a study's folder of checkpoints by which a lender sees that it is the leader's folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedCluster:
    """How to join a cluster.

    Attributes:
        address: Host and port of Ray's GCS.
        token: Token that every process of the cluster has to know.
    """

    address: str
    token: str = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """What the marker holds: it tells clusters apart, and does not give the token away."""
        return hashlib.sha256(f"marker {self.token}".encode()).hexdigest()


def problem_of_address(address: str) -> str:
    """Say why other machines cannot reach this one by an address; empty if they may."""
    allowed = "allowed: an IPv4 address of this machine, such as 10.0.0.7"
    try:
        parsed = ipaddress.IPv4Address(address)
    except ValueError:
        return f"found {address!r}, {allowed}"
    if parsed.is_unspecified or parsed.is_multicast:
        return f"found {address!r}, which is no address of one machine; {allowed}"
    with socket.socket() as trying:
        try:
            trying.bind((address, 0))
        except OSError:
            return f"found {address!r}, which this machine does not have; {allowed}"
    return ""


def interface_of(address: str) -> str:
    """Name of the network interface with an address of this machine; empty if none is known to have it."""
    if ipaddress.IPv4Address(address).is_loopback:
        address = "127.0.0.1"  # the interface takes the whole network, and lists one address of it
    found = psutil.net_if_addrs().items()
    return next((name for name, all_of_it in found if any(one.address == address for one in all_of_it)), "")


def token_environment(token: str) -> dict[str, str]:
    """Environment of processes that start or join a cluster with a token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def write_marker(folder: str | Path, cluster: SharedCluster) -> None:
    """Mark a folder as the one in which this cluster's ranks write.

    Args:
        folder: Path or URL of the study's folder of checkpoints.
        cluster: The cluster.

    Raises:
        OSError: The folder cannot be written to.
    """
    marker = joined(folder, MARKER)
    place_of(marker).write_note(marker, cluster.fingerprint)


def remove_marker(folder: str | Path, cluster: SharedCluster) -> None:
    """Take the mark away, unless another cluster has put its own there; arguments as of `write_marker`."""
    marker = joined(folder, MARKER)
    with contextlib.suppress(OSError):
        if place_of(marker).read_note(marker) == cluster.fingerprint:
            place_of(marker).delete_note(marker)


def problem_of_folder(folder: str | Path, cluster: SharedCluster) -> str:
    """Say why ranks on this machine cannot share a folder of checkpoints with the leader; empty if they can.

    Args:
        folder: Path or URL of the study's folder of checkpoints.
        cluster: The leader's cluster.
    """
    marker = joined(folder, MARKER)
    try:
        found = place_of(marker).read_note(marker)
    except MissingLibraryError as error:
        return str(error)
    except OSError as error:
        return f"{folder}: not the leader's folder of checkpoints ({error.strerror or 'its mark is not there'})"
    if found != cluster.fingerprint:
        return f"{folder}: not the leader's folder of checkpoints, but another one of that name"
    if not is_url(folder) and not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder}: this process may not write there"
    return ""
