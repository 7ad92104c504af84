"""`automl token`."""

from dataclasses import asdict
from datetime import UTC, datetime

import click

from automl.signals import private_files
from automl.stored.open_store import open_or_create
from automl.terminal.echo import echo
from automl.terminal.options import Number, json_option, store_option
from automl.terminal.output import print_json
from studies.queueing import access_tokens
from studies.storage.study_store import Store

days_option = click.option("--days", type=Number(0, min_open=True), help="Days until expiry; unlimited by default.")


@click.group()
def token() -> None:
    """Create, list, rotate and revoke access tokens of the service."""


@token.command()
@click.argument("name")
@click.option("--user", required=True, help="Name of the user who will use the token.")
@click.option("--project", required=True, help="Name of the project that the user belongs to.")
@click.option(
    "--role", type=click.Choice(access_tokens.ROLES), default="member", show_default=True, help="Rights of the token."
)
@days_option
@store_option
@json_option
def add(
    name: str, *, user: str, project: str, role: access_tokens.Role, days: float | None, store: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Create an access token and print it. It cannot be printed again.

    A viewer reads the studies of a project. A member also submits and stops studies. An admin may do everything in all
    projects.
    """
    made, line = access_tokens.create(_store(store), name=name, user=user, project=project, role=role, days=days)
    _show(made, line, as_json=as_json)


@token.command("list")
@store_option
@json_option
def list_tokens(store: str | None, as_json: bool) -> None:
    """List all tokens without their secrets."""
    lines = access_tokens.listed(_store(store))
    if as_json:
        print_json([asdict(line) for line in lines])
        return
    for line in lines:
        moment = None if line.expires_at is None else datetime.fromtimestamp(line.expires_at, UTC)
        ends = "for ever" if moment is None else f"until {moment:%Y-%m-%d %H:%M} UTC"
        state = ends if line.is_valid else ("revoked" if line.revoked_at is not None else "expired")
        echo(f"{line.id:>4}  {line.name}: {line.user}, {line.project}, {line.role}, {state}")


@token.command()
@click.argument("token_id", metavar="ID", type=click.IntRange(1))
@click.option("--force", is_flag=True, help="Revoke the token even if no other admin has a token.")
@store_option
def revoke(token_id: int, *, force: bool, store: str | None) -> None:
    """Revoke the token with this ID."""
    line = access_tokens.revoke(_store(store), token_id, force=force)
    echo(f"token {line.id} ({line.name}) is revoked")


@token.command()
@click.argument("token_id", metavar="ID", type=click.IntRange(1))
@days_option
@click.option("--grace-hours", type=Number(0), default=24.0, show_default=True, help="Hours until the old token ends.")
@store_option
@json_option
def rotate(token_id: int, *, days: float | None, grace_hours: float, store: str | None, as_json: bool) -> None:
    """Create a token that replaces the token with this ID.

    The old token expires after --grace-hours.
    """
    made, line = access_tokens.rotate(_store(store), token_id, days=days, grace_seconds=grace_hours * 3600.0)
    _show(made, line, as_json=as_json)


def _show(made: str, line: access_tokens.TokenLine, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(line) | {"token": made})
        return
    echo(f"token {line.id} of {line.user} ({line.project}, {line.role}), which cannot be shown again:", err=True)
    echo(made)


def _store(given: str | None) -> Store:
    with private_files():  # it has digests of tokens
        return open_or_create(given)
