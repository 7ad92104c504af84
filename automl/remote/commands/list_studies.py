"""`automl --server URL list`."""

from __future__ import annotations

import click

from automl.remote.connection import service
from automl.remote.records import studies_of
from automl.terminal.options import json_option
from automl.terminal.output import print_json
from automl.terminal.study_lines import print_lines


@click.command(name="list")
@json_option
def list_studies(as_json: bool) -> None:
    """List all studies that have started and that you may see; `automl queue` lists what waits."""
    rows = studies_of(service())
    print_json(rows) if as_json else print_lines(rows)
