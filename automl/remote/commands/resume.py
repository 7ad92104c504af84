"""`automl --server URL resume`."""

from __future__ import annotations

import click

from automl.remote.client import study_path
from automl.remote.commands.launch import detach_option
from automl.remote.connection import service
from automl.remote.following import Telling, follow
from automl.terminal.echo import echo
from automl.terminal.options import json_option, quiet_option, set_option, study_argument
from automl.terminal.output import print_json


@click.command()
@study_argument
@set_option
@detach_option
@json_option
@quiet_option
def resume(study: str, overrides: tuple[str, ...], *, detach: bool, as_json: bool, quiet: bool) -> None:
    """Queue STUDY again after any end, or with more budget, and follow it.

    More budget is given by --set budget.usd=5; faults can be changed, too.
    """
    client = service()
    job = client.post(study_path(study, "resume"), {"overrides": list(overrides)})
    if detach:
        print_json(job) if as_json else echo(f"{job['study']} is {job['state']}")
        return
    follow(client, job["study"], Telling(as_json=as_json, quiet=quiet))
