"""`automl cancel`."""

import click

from automl.backend import backend_of
from automl.terminal.echo import echo
from automl.terminal.options import StoreOption, json_option, store_option, study_argument
from automl.terminal.output import print_json


@click.command()
@study_argument
@click.argument("trial", required=False)
@store_option
@json_option
@click.option(
    "--wait", "wait_seconds", default=30.0, show_default=True, cls=StoreOption,
    help="Longest time in seconds to wait for the end of the trial.",
)  # fmt: skip
def cancel(study: str, trial: str | None, store: str | None, as_json: bool, wait_seconds: float) -> None:
    """End a trial for good, while its study continues.

    A running trial stops at once; its complete epochs stay measured. TRIAL is a trial's number, or the name of an
    enqueued trial, such as q7, from `automl trials`.
    Without TRIAL, takes the study out of the queue: running trials finish their epoch, and no worker continues it.
    """
    backend = backend_of(store)
    if trial is None:
        job = backend.cancel(study)
        print_json(job) if as_json else echo(f"the study {job['study']} is {job['state']}, and will not run again")
        return
    outcome = backend.cancel_trial(study, trial, wait_seconds)
    print_json(outcome) if as_json else echo(outcome["message"])
