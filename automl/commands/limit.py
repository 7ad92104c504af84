"""`automl limit`."""

from typing import Literal

import click

from automl.service.team_studies import plain_account
from automl.signals import private_files
from automl.stored.open_store import open_or_create
from automl.terminal.echo import echo
from automl.terminal.options import Number, json_option, store_option
from automl.terminal.output import print_json
from studies.queueing.job_queue import JobQueue
from studies.records.records import MOST_USD, NANO

kind_argument = click.argument("kind", type=click.Choice(["user", "project"]))


@click.group()
def limit() -> None:
    """Limit what users and projects spend on all their studies."""


@limit.command("set")
@kind_argument
@click.argument("name")
@click.argument("usd", type=Number(0, MOST_USD))
@store_option
def set_limit(kind: Literal["user", "project"], name: str, usd: float, store: str | None) -> None:
    """Let the user or project NAME spend at most USD dollars.

    The limit holds for the sum over all studies. A running study that could exceed it pauses its trials after their
    current epoch, and continues with the dollars that are left.
    """
    queue = _queue(store)
    queue.set_limit(kind, name, round(usd * NANO))
    for account in queue.accounts():
        if (account.kind, account.name) == (kind, name):
            echo(str(account))


@limit.command()
@kind_argument
@click.argument("name")
@store_option
def remove(kind: Literal["user", "project"], name: str, store: str | None) -> None:
    """Remove the limit of the user or project NAME."""
    _queue(store).set_limit(kind, name, None)
    echo(f"the {kind} {name} has no limit")


@limit.command("list")
@store_option
@json_option
def list_limits(store: str | None, as_json: bool) -> None:
    """List limits, with spent and reserved dollars."""
    accounts = _queue(store).accounts()
    if as_json:
        print_json([plain_account(account) for account in accounts])
        return
    for account in accounts:
        echo(str(account))


def _queue(given: str | None) -> JobQueue:
    with private_files():
        return JobQueue(open_or_create(given))
