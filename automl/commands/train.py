"""`automl train`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from automl.terminal.echo import echo
from automl.terminal.exit_codes import INTERRUPTED
from automl.terminal.options import (
    CheckpointsFolder,
    Number,
    backend_option,
    device_option,
    file_type,
    folder_type,
    group_seconds_option,
    json_option,
    param_option,
    seed_option,
    task_option_option,
)
from automl.terminal.output import print_json
from automl.terminal.training_errors import training_errors
from automl.training.once import Keeping, train_once
from trainers.group_options import BackendChoice, GroupOptions


@click.command()
@click.argument("task")
@param_option
@task_option_option
@click.option("--world-size", type=click.IntRange(1), default=1, show_default=True, help="Number of ranks.")
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True)
@seed_option
@device_option
@backend_option
@group_seconds_option
@click.option("--checkpoints", type=CheckpointsFolder(), help="Keep the latest checkpoint in this folder, or URL.")
@click.option(
    "--checkpoint-every",
    "every_seconds",
    type=Number(0),
    default=60.0,
    show_default=True,
    help="Seconds between two of them; the last epoch's end always writes one.",
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoint in --checkpoints, if there is one.")
@click.option(
    "--profile", is_flag=True, help="Profile some steps of rank 0: a trace, and the ten most expensive operations."
)
@click.option(
    "--trace",
    type=file_type,
    default="trace.json",
    show_default=True,
    help="With --profile: the file of the trace.",
)
@click.option("--tensorboard", type=folder_type, help="Write each epoch's metrics to this folder.")
@click.option("--mlflow", metavar="URL", help="Log the training as a run of MLflow: sqlite:///FILE, or a server's URL.")
@click.option(
    "--rank-logs", type=folder_type, help="Write the loss of each batch of each rank to CSV files in this folder."
)
@json_option
def train(
    task: str,
    given: tuple[str, ...],
    *,
    as_json: bool,
    checkpoints: str | None,
    every_seconds: float,
    resume: bool,
    profile: bool,
    trace: Path,
    tensorboard: Path | None,
    mlflow: str | None,
    rank_logs: Path | None,
    backend: BackendChoice,
    group_seconds: float,
    **options: Any,
) -> None:
    """Train TASK once with DDP, without a study."""
    if resume and checkpoints is None:
        raise click.UsageError("found --resume, allowed: beside --checkpoints only", click.get_current_context())
    keeping = Keeping(
        checkpoints=checkpoints,
        every_seconds=every_seconds,
        resume=resume,
        trace=trace if profile else None,
        tensorboard=tensorboard,
        mlflow=mlflow,
        rank_logs=rank_logs,
    )
    with training_errors(as_json):
        say = (lambda _line: None) if as_json else echo
        warn = partial(echo, err=True)
        group = GroupOptions(backend=backend, seconds=group_seconds)
        result = train_once(task, given, group=group, keeping=keeping, say=say, warn=warn, **options)
    if as_json and result is not None:
        print_json(result)
    if result is not None and result["drained"]:
        sys.exit(INTERRUPTED)
