"""`automl status`."""

from __future__ import annotations

import click

from automl.stored.opening import read_study
from automl.stored.reporting import existing_report
from automl.terminal.options import json_option, store_option
from automl.terminal.output import console, print_json
from automl.terminal.summary import document_of, print_summary


@click.command()
@click.argument("study", required=False)
@store_option
@json_option
def status(study: str | None, store: str | None, as_json: bool) -> None:
    """Show state, budget, archive and running trials of STUDY.

    Without a name it is the newest study of the store.
    """
    record = read_study(study, store)
    report = existing_report(record)
    if as_json:
        slots = {"slots": {"there": record.slots_there or 0, "most": record.most_slots}} if record.most_slots else {}
        print_json(document_of(record, report=report) | slots)
    else:
        print_summary(console(), record, report=report)
