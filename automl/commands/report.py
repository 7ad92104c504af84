"""`automl report`."""

from __future__ import annotations

from pathlib import Path

import click

from automl.stored.opening import read_study
from automl.stored.reporting import report_path
from automl.terminal.echo import echo
from automl.terminal.options import file_type, json_option, store_option
from automl.terminal.output import print_json
from reports.page import write_report


@click.command()
@click.argument("study")
@click.option("--out", type=file_type, help="The file to write.")
@store_option
@json_option
def report(study: str, out: Path | None, store: str | None, as_json: bool) -> None:
    """Write STUDY as one HTML page that works offline."""
    record = read_study(study, store)
    path = out or report_path(record, Path.cwd())
    try:
        written = str(write_report(record, path).absolute())
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    print_json({"report": written}) if as_json else echo(written)
