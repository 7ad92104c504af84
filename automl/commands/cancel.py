"""`automl cancel`."""

from __future__ import annotations

import click

from automl.stored.cancelling import cancel_trial
from automl.stored.opening import open_store
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json


@click.command()
@study_argument
@click.argument("trial")
@store_option
@json_option
@click.option("--wait", "wait_seconds", default=30.0, show_default=True, help="Wait so many seconds for its end.")
def cancel(study: str, trial: str, store: str | None, as_json: bool, wait_seconds: float) -> None:
    """End TRIAL for good: the study goes on without it.

    A trial that runs is ended within its epoch, which is lost; what it has measured stays. TRIAL is a number, or for
    what was enqueued and has not started the name that enqueue and trials show, such as q7.
    """
    outcome = cancel_trial(open_store(store), study, trial, wait_seconds=wait_seconds)
    print_json(outcome) if as_json else echo(outcome["message"])
