"""`automl --server URL report`."""

from __future__ import annotations

from pathlib import Path

import click

from automl.remote.connection import service
from automl.remote.records import record_of
from automl.terminal.echo import echo
from automl.terminal.options import file_type, json_option
from automl.terminal.output import print_json
from reports.comparing import write_comparison
from reports.page import write_report


@click.command()
@click.argument("studies", metavar="STUDY...", nargs=-1, required=True)
@click.option("--out", type=file_type, help="The file to write; STUDY.html or comparison.html here without it.")
@json_option
def report(studies: tuple[str, ...], out: Path | None, *, as_json: bool) -> None:
    """Write STUDY as one HTML page that works offline.

    Several studies are compared on one page: what each found for its dollars, and what differs in their specs.
    """
    if len(set(studies)) < len(studies):
        twice = next(name for name in studies if studies.count(name) > 1)
        raise click.UsageError(f"STUDY: found {twice!r} twice, allowed: each study once")
    client = service()
    records = [record_of(client, name) for name in studies]
    path = out or Path.cwd() / (f"{records[0].name}.html" if len(records) == 1 else "comparison.html")
    try:
        page = write_report(records[0], path) if len(records) == 1 else write_comparison(records, path)
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    written = str(page.absolute())
    print_json({"report": written}) if as_json else echo(written)
