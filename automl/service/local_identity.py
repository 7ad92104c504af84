"""Who asks on a machine's own interface, or beside its store, where no token says so."""

from __future__ import annotations

import getpass

from studies.queueing.tokens import Identity

LOCAL_PROJECT = "local"
"""Project of whoever uses this machine, without a token."""


def local_identity() -> Identity:
    """Return the identity of the user of this process, who is an admin: the store is theirs."""
    return Identity(user=_local_user(), project=LOCAL_PROJECT, role="admin")


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return "local"
