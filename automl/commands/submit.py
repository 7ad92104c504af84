"""`automl submit`."""

from __future__ import annotations

from pathlib import Path

import click

from automl.service.local_submission import submit_file
from automl.service.team_studies import plain_job
from automl.terminal.echo import echo
from automl.terminal.options import json_option, priority_option, set_option, store_option
from automl.terminal.output import print_json


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@priority_option
@set_option
@store_option
@json_option
def submit(spec: Path, priority: int, overrides: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Queue the study that SPEC describes; a worker runs it.

    `automl worker` takes what is queued; `automl queue` lists it.
    """
    job = plain_job(submit_file(spec, overrides, store, priority=priority))
    print_json(job) if as_json else echo(f"{job['study']} is queued; `automl queue` shows its turn")
