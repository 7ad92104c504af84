"""`automl list`."""

import click

from automl.backend import backend_of
from automl.terminal.options import json_option, store_option
from automl.terminal.output import print_json
from automl.terminal.study_lines import print_lines


@click.command(name="list")
@store_option
@json_option
def list_studies(store: str | None, as_json: bool) -> None:
    """List all studies of the store.

    A service lists the started studies that you may see. `automl queue` lists waiting studies.
    """
    rows = backend_of(store).lines()
    print_json(rows) if as_json else print_lines(rows)
