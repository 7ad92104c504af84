"""`automl status`."""

import click

from automl.backend import backend_of
from automl.stored.reporting import existing_report
from automl.terminal.options import complete_study, json_option, store_option
from automl.terminal.output import console, print_json
from automl.terminal.progress import watch as show_until_it_ends
from automl.terminal.summary import document_of, print_summary
from studies.records.records import StudyRecord


@click.command()
@click.argument("study", required=False, shell_complete=complete_study)
@store_option
@json_option
@click.option(
    "--watch", is_flag=True, help="Update the display until the study ends. Ctrl-C ends the display, not the study."
)
def status(study: str | None, store: str | None, as_json: bool, watch: bool) -> None:
    """Show a study's state, budget, best models and running trials.

    Without STUDY, shows the newest study of the store.
    """
    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other", click.get_current_context())
    backend = backend_of(store)
    record: StudyRecord | None = backend.record(study)
    if watch and record is not None:
        record = show_until_it_ends(backend.looker(record.name), console())
    if record is None:  # the user has left
        return
    report = existing_report(record)
    if as_json:
        slots = {"slots": {"there": record.slots_there or 0, "most": record.most_slots}} if record.most_slots else {}
        print_json(document_of(record, report=report) | slots)
    else:
        print_summary(console(), record, report=report)
