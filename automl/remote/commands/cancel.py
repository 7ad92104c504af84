"""`automl --server URL cancel`."""

from __future__ import annotations

import click

from automl.remote.client import study_path
from automl.remote.connection import service
from automl.terminal.echo import echo
from automl.terminal.options import json_option, study_argument
from automl.terminal.output import print_json


@click.command()
@study_argument
@click.argument("trial", required=False)
@json_option
def cancel(study: str, trial: str | None, *, as_json: bool) -> None:
    """End TRIAL for good: the study goes on without it. Without TRIAL the whole study is given up.

    What has been measured stays.
    """
    client = service()
    if trial is None:
        job = client.post(study_path(study, "cancel"))
        print_json(job) if as_json else echo(f"{job['study']} is {job['state']}, and is given up")
        return
    outcome = client.post(study_path(study, "trials", trial, "cancel"))
    print_json(outcome) if as_json else echo(outcome["message"])
