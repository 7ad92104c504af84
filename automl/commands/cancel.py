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
    "--wait",
    "wait_seconds",
    default=30.0,
    show_default=True,
    cls=StoreOption,
    help="Seconds to wait for the end of the trial.",
)
def cancel(study: str, trial: str | None, store: str | None, as_json: bool, wait_seconds: float) -> None:
    """End a trial for good; its study goes on.

    A running trial stops in the middle of its epoch: that epoch is lost, earlier measurements stay. TRIAL is a trial's
    number. For an enqueued trial it is a name such as q7, which enqueue and trials show.
    Without TRIAL, the whole study is stopped if it is in a service's queue: it drains, and is not queued again.
    """
    backend = backend_of(store)
    if trial is None:
        job = backend.cancel(study)
        print_json(job) if as_json else echo(f"{job['study']} is {job['state']}, and will not run again")
        return
    outcome = backend.cancel_trial(study, trial, wait_seconds)
    print_json(outcome) if as_json else echo(outcome["message"])
