"""`automl report`."""

from pathlib import Path

import click

from automl.backend import backend_of
from automl.terminal.echo import echo
from automl.terminal.options import complete_study, file_type, json_option, store_option
from automl.terminal.output import print_json
from reports.comparing import write_comparison
from reports.page import write_report


@click.command()
@click.argument("studies", metavar="STUDY...", nargs=-1, required=True, shell_complete=complete_study)
@click.option(
    "--out", type=file_type,
    help="HTML file to write. Default: a file in the study's folder, or with --server STUDY.html in this folder.",
)  # fmt: skip
@store_option
@json_option
def report(studies: tuple[str, ...], out: Path | None, store: str | None, as_json: bool) -> None:
    """Write a report of a study: one HTML page that works offline.

    For several studies, the page compares their results per dollar spent, and lists how their specs differ.
    """
    if len(set(studies)) < len(studies):
        twice = next(name for name in studies if studies.count(name) > 1)
        raise click.UsageError(f"STUDY: {twice!r} is named twice. Name each study once")
    backend = backend_of(store)
    records = [backend.record(name) for name in studies]
    path = out or backend.report_path(records[0])
    try:
        if len(records) == 1:
            written = str(write_report(records[0], path).absolute())
        else:
            written = str(write_comparison(records, out or path.with_name("comparison.html")).absolute())
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    print_json({"report": written}) if as_json else echo(written)
