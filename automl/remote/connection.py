"""Which service a command is for, and with whose token."""

from __future__ import annotations

import os
from pathlib import Path

import click

from automl.remote.client import ServiceClient
from search_spaces.errors import UserError

TOKEN = "AUTOML_TOKEN"  # noqa: S105 - the name of the variable
_OTHERS = 0o077


def connection(store: str | None = None) -> ServiceClient | None:
    """Return the client of the service that `automl --server` names; None for commands that act on a store.

    Args:
        store: What `--store` says, which contradicts a service.

    Raises:
        UserError: Both are given, or the token's file is open to others.
    """
    context = click.get_current_context(silent=True)
    server = None if context is None else context.find_root().params.get("server")
    if not server:
        return None
    if store is not None:
        raise UserError("found --store and --server, allowed: one of them")
    return ServiceClient(server, token())


def service_beside_store() -> ServiceClient | None:
    """Return the client of the service that is named, for a command that looks at a store as well; None without one."""
    context = click.get_current_context(silent=True)
    server = None if context is None else context.find_root().params.get("server")
    return ServiceClient(server, token()) if server else None


def refuse_typed_server(allowed: str) -> None:
    """Refuse `--server` where a command would not ask it; AUTOML_SERVER is left alone.

    Args:
        allowed: What the user may type instead.

    Raises:
        UserError: It was typed.
    """
    context = click.get_current_context()
    source = context.find_root().get_parameter_source("server")
    if source is click.core.ParameterSource.COMMANDLINE:
        raise UserError(f"--server: found {context.info_name}, which does not run over HTTP; allowed: {allowed}")


def service() -> ServiceClient:
    """Return the client of a command that runs only against a service."""
    found = connection()
    if found is None:
        raise AssertionError("the command line loads this command with --server only")
    return found


def token() -> str | None:
    """Return the user's token: that of AUTOML_TOKEN, else of the file `~/.config/automl/token`; None without any.

    Raises:
        UserError: The file cannot be read, or others may read it.
    """
    if given := os.environ.get(TOKEN):
        return given.strip()
    path = Path.home() / ".config" / "automl" / "token"
    try:
        if path.stat().st_mode & _OTHERS:
            raise UserError(f"token: found {path}, which others may read, allowed: `chmod 600 {path}`")
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"token: {path} cannot be read ({error})") from None
