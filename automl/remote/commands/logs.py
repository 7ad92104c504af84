"""`automl --server URL logs`."""

from __future__ import annotations

import click

from automl.remote.client import study_path
from automl.remote.connection import service
from automl.terminal.echo import echo
from automl.terminal.options import seed_of_log_option, study_argument


@click.command()
@study_argument
@click.argument("trial", type=click.IntRange(min=0))
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Whose output.")
@seed_of_log_option
def logs(study: str, trial: int, rank: int, seed: int | None) -> None:
    """Print what TRIAL has printed on a rank, of the latest attempt.

    Of long output the end is kept (8 MiB, or task.log_mib of a command), and one answer has at most its last million
    characters.
    """
    echo(service().text(study_path(study, "trials", trial, "logs"), rank=rank, seed=seed), nl=False)
