"""The service of a command, and the user's token."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from search_spaces.messages import UserError

if TYPE_CHECKING:
    from automl.remote.client import ServiceClient

TOKEN = "AUTOML_TOKEN"  # noqa: S105 - the name of the variable
_OTHERS = 0o077


def connection(store: str | None = None) -> ServiceClient | None:
    """Return the client of the service that `automl --server` names, or None for commands on a store."""
    context = click.get_current_context(silent=True)
    server = None if context is None else context.find_root().params.get("server")
    if not server:
        return None
    if store is not None:
        raise UserError("--store and --server exclude each other. Name a database or a service")
    from automl.remote.client import ServiceClient  # loads requests, which commands on a store do not need

    return ServiceClient(server, token())


def token() -> str | None:
    """Return AUTOML_TOKEN, or the token of `~/.config/automl/token`, or None. UserError if others may read the file."""
    if given := os.environ.get(TOKEN):
        return given.strip()
    path = Path.home() / ".config" / "automl" / "token"
    try:
        if path.stat().st_mode & _OTHERS:
            raise UserError(f"token: other users may read {path}. Run `chmod 600 {path}`")
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"token: {path} cannot be read ({error})") from None
