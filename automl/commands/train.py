"""`automl train`: a study of one trial on this machine or a service, or one rank under torchrun."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import click

from automl.given_parameters import is_spec_file, read_params, task_name
from automl.terminal.echo import echo
from automl.terminal.options import (
    CheckpointsFolder,
    Number,
    StoreOption,
    backend_option,
    code_option,
    connection,
    detach_option,
    device_option,
    group_seconds_option,
    json_option,
    param_option,
    priority_at_service_option,
    quiet_option,
    seed_option,
    store_option,
    task_option_option,
)
from automl.terminal.output import print_json, warn
from automl.training.results import training_errors
from trainers.protocol import Diagnostics

if TYPE_CHECKING:
    from automl.remote.client import ServiceClient

_SHORTEST_SECONDS = 1e-3
_OF_A_SERVICE = ("code", "priority", "detach")
_OF_A_STUDY = ("usd", "name", "store", "mlflow")
_OF_THIS_MACHINE = ("checkpoints", "resume", "profile", "trace", "tensorboard", "mlflow", "rank_logs")
_ON_COMMAND_LINE = click.core.ParameterSource.COMMANDLINE
_file, _folder = click.Path(dir_okay=False, resolve_path=True), click.Path(file_okay=False, resolve_path=True)


@click.command()
@click.argument("task")
@param_option
@task_option_option
@click.option("--world-size", type=click.IntRange(1), default=1, show_default=True, help="Number of ranks.")
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Number of epochs (default for a spec: its own).",
)
@click.option(
    "--usd", type=Number(0, min_open=True),
    help="Largest cost of the training in dollars; 1 with --server, else no limit.",
)  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the study that stores the training; made from TASK by default.")
@seed_option
@device_option
@backend_option
@group_seconds_option
@click.option(
    "--checkpoints", cls=StoreOption, type=CheckpointsFolder(),
    help="Folder, or URL of an object store, for checkpoints; ./artifacts by default.",
)  # fmt: skip
@click.option(
    "--checkpoint-every", type=Number(0), default=60.0, show_default=True,
    help="Seconds between checkpoints. The last epoch always writes a checkpoint.",
)  # fmt: skip
@click.option(
    "--resume", cls=StoreOption, is_flag=True, help="Continue the latest training that has the same settings."
)
@click.option(
    "--profile", cls=StoreOption, is_flag=True,
    help="Profile some steps of rank 0, and list the ten most expensive operations.",
)  # fmt: skip
@click.option(
    "--trace", cls=StoreOption, type=_file, default="trace.json", show_default=True,
    help="File for the trace that --profile records.",
)  # fmt: skip
@click.option(
    "--tensorboard", cls=StoreOption, type=_folder, help="Folder for TensorBoard files with the metrics of each epoch."
)
@click.option(
    "--mlflow", cls=StoreOption, metavar="URL",
    help="MLflow database (sqlite:///FILE) or server to log the training to.",
)  # fmt: skip
@click.option(
    "--rank-logs", cls=StoreOption, type=_folder,
    help="Folder for CSV files, one per rank, with the loss of each batch.",
)  # fmt: skip
@store_option
@code_option
@priority_at_service_option
@detach_option
@json_option
@quiet_option
@click.pass_context
def train(
    context: click.Context, /, task: str, given: tuple[str, ...], *, task_options: tuple[str, ...], world_size: int,
    store: str | None, profile: bool, trace: str, tensorboard: str | None, rank_logs: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Train TASK once with DDP, without a search.

    TASK names a task, a training function, or a spec, whose first trial is trained. The store keeps the training as a
    study of one trial, for `automl logs`, `automl report` and `automl export`. With --server, Ctrl-C ends only the
    command.
    """
    task = task_name(task)
    if world_size != 1:
        given = (*given, f"world_size={world_size}")
    if is_spec_file(task):
        _refuse(context, "for a spec, which has its own task_options", ("task_options",))
        if "RANK" in os.environ or connection(store) is not None:
            raise click.UsageError(
                f"{task} is a spec, which `automl train` trains only on this machine and without torchrun. Leave out "
                "--server and torchrun"
            )
        if context.get_parameter_source("epochs") is not _ON_COMMAND_LINE:
            options["epochs"] = None  # the spec's own
    options["checkpoint_every"] = max(options["checkpoint_every"], _SHORTEST_SECONDS)
    if (client := connection(store)) is not None:
        _submit(client, task, read_params(given), read_params(task_options, "--option"), options, as_json=as_json)
        return
    files = Diagnostics(trace=trace if profile else None, tensorboard=tensorboard, rank_logs=rank_logs)
    say = (lambda _line: None) if as_json or options["quiet"] else echo
    options = _without(options, (*_OF_A_SERVICE, "quiet"))
    shared: dict[str, Any] = {"task_options": task_options, "diagnostics": files, "say": say}
    with training_errors(as_json):
        if "RANK" in os.environ:
            from automl.training.under_torchrun import train_under_torchrun

            _refuse(context, "under torchrun", _OF_A_STUDY)
            result, ended = train_under_torchrun(task, given, **shared, **_without(options, _OF_A_STUDY)), 0
        else:
            from automl.training.study_of_one_trial import train_as_study

            result, ended = train_as_study(task, given, store=store, warn=warn, **shared, **options)
    if as_json and result is not None:
        print_json(result)
    sys.exit(ended)


def _submit(
    client: ServiceClient,
    task: str,
    params: Mapping[str, Any],
    task_options: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    from automl.remote.following import Telling, take_leave_or_follow

    body = {"task": task, "params": params, "task_options": task_options}
    body |= _without(options, ("name", "usd", "code", "detach", "quiet", *_OF_THIS_MACHINE))
    body["name"] = options["name"] or time.strftime("train-%Y%m%d-%H%M%S", time.gmtime())
    body |= {name: options[name] for name in ("usd", "code") if options[name] is not None}
    job = client.post("/trainings", body)
    take_leave_or_follow(client, job, Telling(as_json=as_json, quiet=options["quiet"]), detach=options["detach"])


def _without(options: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _refuse(context: click.Context, where: str, names: tuple[str, ...]) -> None:
    """Raise an error for typed options that have no effect in this mode, for example under torchrun."""
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is _ON_COMMAND_LINE:
            raise click.UsageError(f"{option.opts[0]} has no effect {where}: leave it out", context)
