"""`automl trials`."""

from __future__ import annotations

import click

from automl.stored.opening import read_study
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option
from automl.terminal.output import console, print_json
from automl.terminal.trial_table import print_trials
from studies.analysis import trial_rows
from studies.csv_table import to_csv


@click.command()
@click.argument("study")
@store_option
@json_option
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table")
def trials(study: str, store: str | None, as_json: bool, form: str) -> None:
    """List trials: parameters, values, state, epochs, cost, reason."""
    record = read_study(study, store)
    if as_json or form == "json":
        print_json(trial_rows(record))
    elif form == "csv":
        echo(to_csv(trial_rows(record)), nl=False)
    else:
        print_trials(console(), record)
