"""`automl queue`."""

from __future__ import annotations

import click

from automl.service.team_studies import plain_job
from automl.stored.opening import open_store
from automl.terminal.options import json_option, store_option
from automl.terminal.output import print_json
from automl.terminal.queue_table import print_queue
from studies.queueing.job_queue import JobQueue


@click.command()
@store_option
@json_option
def queue(store: str | None, as_json: bool) -> None:
    """List what waits in the queue of the store, and what runs.

    What runs comes first, then what waits, in the order of the turns.
    """
    waiting = JobQueue(open_store(store))
    jobs = [plain_job(job) for job in (*waiting.jobs(states=("running",)), *waiting.waiting())]
    print_json(jobs) if as_json else print_queue(jobs)
