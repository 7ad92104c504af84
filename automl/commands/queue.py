"""`automl queue`."""

import click

from automl.backend import backend_of
from automl.terminal.options import json_option, store_option
from automl.terminal.output import print_json
from automl.terminal.study_lines import print_queue


@click.command()
@store_option
@json_option
def queue(store: str | None, as_json: bool) -> None:
    """List the running and the waiting studies of a queue.

    Waiting studies are listed in the order of their start. A service lists only studies that you may see.
    """
    jobs = backend_of(store).queue()
    print_json(jobs) if as_json else print_queue(jobs)
