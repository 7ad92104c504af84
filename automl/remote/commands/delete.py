"""`automl --server URL delete`."""

from __future__ import annotations

import sys

import click

from automl.commands.delete import consents
from automl.remote.client import study_path
from automl.remote.connection import service
from automl.terminal.echo import echo
from automl.terminal.exit_codes import FAILED
from automl.terminal.options import json_option, study_argument
from automl.terminal.output import print_json


@click.command()
@study_argument
@json_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(study: str, *, as_json: bool, yes: bool) -> None:
    """Delete STUDY for good: rows, checkpoints, report and views.

    A study that has not ended is refused. What it has cost stays in the accounts.
    """
    client = service()
    job = client.get(study_path(study))["job"]
    if not yes and not consents(f"{job['study']} is {job['state']} at {client.url}. Delete it?"):
        echo("nothing is deleted", err=True)
        sys.exit(FAILED)
    done = client.delete(study_path(study))
    print_json(done) if as_json else echo(done["message"])
