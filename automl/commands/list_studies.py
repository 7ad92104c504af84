"""`automl list`."""

from __future__ import annotations

import click

from automl.stored.opening import open_store
from automl.terminal.options import json_option, store_option
from automl.terminal.output import print_json
from automl.terminal.study_lines import print_lines, rows_of
from studies.storage.reader import list_studies as read_lines


@click.command(name="list")
@store_option
@json_option
def list_studies(store: str | None, as_json: bool) -> None:
    """List all studies of the store."""
    rows = rows_of(read_lines(open_store(store)))
    print_json(rows) if as_json else print_lines(rows)
