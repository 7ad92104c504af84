"""Which form of a command runs with `automl --server`: its own one, the one for a store, or none."""

from __future__ import annotations

from search_spaces.errors import UserError

OWN = frozenset(
    {"cancel", "confirm", "delete", "enqueue", "export", "launch", "list", "logs", "queue", "report", "resume", "stop",
     "submit"}
)  # fmt: skip
"""Commands with a module in `automl.remote.commands`."""
READS = frozenset({"explain", "mcp", "status", "train", "trials"})
"""Commands of which the usual form asks the service."""
HERE = frozenset({"compare", "completion", "init", "predict", "serve", "serve-model", "simulate", "store", "worker"})
"""Commands that need no studies, or name their store: AUTOML_SERVER leaves them alone, `--server` refuses them."""

BESIDE = frozenset({"doctor"})
"""Commands that act here, and ask the service as well where they are told to; without that they refuse `--server`."""


def package_of(command: str, *, is_explicit: bool) -> str:
    """Return the package of a command's module when there is a service.

    Args:
        command: Name of the command.
        is_explicit: Whether `--server` was typed, and not set by AUTOML_SERVER.

    Raises:
        UserError: The command does nothing over HTTP.
    """
    if command in OWN:
        return "automl.remote.commands"
    if command in READS | BESIDE or (command in HERE and not is_explicit):
        return "automl.commands"
    given = "--server" if is_explicit else "AUTOML_SERVER"
    raise UserError(
        f"{given}: found {command}, which does not run over HTTP; allowed: {', '.join(sorted(OWN | READS))}; or run it "
        "beside the store"
    )
