"""`automl --server URL stop`."""

from __future__ import annotations

import time
from typing import Any

import click

from automl.remote.client import ServiceClient, study_path
from automl.remote.connection import service
from automl.terminal.echo import echo
from automl.terminal.options import json_option, study_argument
from automl.terminal.output import print_json

POLL_SECONDS = 0.5


@click.command()
@study_argument
@json_option
@click.option("--wait", "wait_seconds", default=60.0, show_default=True, help="Wait so many seconds for the drain.")
def stop(study: str, as_json: bool, wait_seconds: float) -> None:
    """Let STUDY drain and pause its trials.

    Every trial ends its epoch and writes a checkpoint; automl resume goes on.
    """
    client = service()
    job = client.post(study_path(study, "stop"))
    status = when_idle(client, job["study"], wait_seconds)
    job, state = status["job"], (status["study"] or status["job"])["state"]
    driven = job["state"] == "running"
    going = f"{job['study']} is draining; its trials have not ended their epochs yet"
    message = going if driven else f"{job['study']} is {state}"
    outcome = {"study": job["study"], "state": state, "driven": driven, "message": message}
    print_json(outcome) if as_json else echo(message)


def when_idle(client: ServiceClient, study: str, seconds: float) -> dict[str, Any]:
    """Return the status of a study when no worker has it any more, or after so many seconds."""
    until = time.monotonic() + seconds
    while True:
        status: dict[str, Any] = client.get(study_path(study))
        if status["job"]["state"] != "running" or time.monotonic() >= until:
            return status
        time.sleep(POLL_SECONDS)
