"""`automl --server URL queue`."""

from __future__ import annotations

import click

from automl.remote.connection import service
from automl.terminal.options import json_option
from automl.terminal.output import print_json
from automl.terminal.queue_table import print_queue


@click.command()
@json_option
def queue(*, as_json: bool) -> None:
    """List what waits in the queue of the service, and what runs, as far as you may see it.

    What runs comes first, then what waits, in the order of the turns.
    """
    client = service()
    running = [job for job in client.get("/studies") if job["state"] == "running"]
    jobs = [*running, *client.get("/queue")]
    print_json(jobs) if as_json else print_queue(jobs)
