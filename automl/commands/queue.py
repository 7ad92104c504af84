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
    """List the waiting and the running studies of a queue.

    Running studies come first, then waiting studies in their order. A service lists the studies that you may see.
    """
    jobs = backend_of(store).queue()
    print_json(jobs) if as_json else print_queue(jobs)
