"""`automl explain`."""

import click

from automl.backend import backend_of
from automl.stored.open_store import started_trial
from automl.terminal.explanation import explain as explanation
from automl.terminal.explanation import print_explanation
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import console, print_json


@click.command()
@study_argument
@click.argument("trial", type=int)
@store_option
@json_option
def explain(study: str, trial: int, store: str | None, as_json: bool) -> None:
    """Explain why a trial continued, was paused, stopped or failed.

    Prints the numbers behind each decision, the attempts (runs of the trial), and the traceback of a failure.
    """
    record = backend_of(store).record(study)
    found = started_trial(record, trial)
    if as_json:
        print_json(explanation(record, found))
    else:
        print_explanation(console(), record, found)
