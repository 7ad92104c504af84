"""`automl trials`."""

from __future__ import annotations

import click

from automl.backend import backend_of
from automl.stored.trial_order import listed_places
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import console, print_json
from automl.terminal.trial_table import print_trials
from studies.records.plain_rows import to_csv
from studies.results.analysis import trial_rows


@click.command()
@study_argument
@store_option
@json_option
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table")
@click.option(
    "--sort", metavar="COLUMN[:desc]", help="Order by a column of the CSV, such as val_error; :desc turns it."
)
@click.option("--top", metavar="N", type=click.IntRange(1), help="List the first N trials only.")
def trials(study: str, store: str | None, as_json: bool, form: str, *, sort: str | None, top: int | None) -> None:
    """List trials: parameters, values, state, epochs, cost, reason.

    --sort takes a column of --format csv; values., params. and bounded. can be left out. Trials without a value are
    last.
    """
    record = backend_of(store).record(study)
    places = listed_places(record, sort, top)
    if as_json or form != "table":
        every = trial_rows(record)
        rows = [every[place] for place in places]
        print_json(rows) if as_json or form == "json" else echo(to_csv(rows), nl=False)
        return
    started = [record.started[place] for place in places]
    queued = record.enqueued if top is None else record.enqueued[: top - len(started)]
    print_trials(console(), record, (*started, *queued))
