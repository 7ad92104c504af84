"""`automl stop`."""

import click

from automl.backend import backend_of
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json


@click.command()
@study_argument
@store_option
@json_option
@click.option(
    "--wait", "wait_seconds", default=60.0, show_default=True,
    help="Longest time in seconds to wait until all trials are saved.",
)  # fmt: skip
def stop(study: str, store: str | None, as_json: bool, wait_seconds: float) -> None:
    """Stop a study at the end of its running epochs.

    Each running trial ends its epoch, writes a checkpoint and pauses. `automl resume` continues the study.
    """
    outcome = backend_of(store).drain(study, wait_seconds)
    print_json(outcome) if as_json else echo(outcome["message"])
