"""`automl --server URL train`."""

from __future__ import annotations

import time

import click

from automl.backend import ServiceBackend, backend_of
from automl.given_parameters import read_params
from automl.remote.following import Telling, take_leave_or_follow
from automl.terminal.options import (
    Number,
    code_option,
    detach_option,
    json_option,
    param_option,
    priority_option,
    quiet_option,
    task_option_option,
)


@click.command()
@click.argument("task")
@param_option
@task_option_option
@click.option("--world-size", type=click.IntRange(1), default=1, show_default=True, help="Number of ranks.")
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True)
@click.option("--usd", type=Number(0), default=1.0, show_default=True, help="Dollars that it may cost.")
@click.option("--name", metavar="NAME", help="Name of the training; by default train- and the present second.")
@code_option
@priority_option
@detach_option
@json_option
@quiet_option
def train(
    task: str,
    given: tuple[str, ...],
    *,
    task_options: tuple[str, ...],
    world_size: int,
    epochs: int,
    usd: float,
    name: str | None,
    code: str | None,
    priority: int,
    detach: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Train TASK once with DDP, on a worker of the service, and follow it until it ends.

    The training is a study of one trial, so `automl logs`, `automl report` and the service's pages know it by its name.
    Ctrl-C leaves it, and it goes on.
    """
    ranks = {} if world_size == 1 else {"world_size": world_size}
    body = {
        "name": name or time.strftime("train-%Y%m%d-%H%M%S", time.gmtime()),
        "task": task,
        "task_options": read_params(task_options, "--option"),
        "params": read_params(given) | ranks,
        "epochs": epochs,
        "usd": usd,
        "priority": priority,
    }
    backend = backend_of(None)
    assert isinstance(backend, ServiceBackend)  # noqa: S101 - the command line loads this command with --server only
    job = backend.client.post("/trainings", body if code is None else body | {"code": code})
    take_leave_or_follow(backend.client, job, Telling(as_json=as_json, quiet=quiet), detach=detach)
