"""`automl compare`."""

import sys
from typing import Any

import click

from automl.given_parameters import task_name
from automl.terminal.echo import FAILED, echo
from automl.terminal.options import (
    Number,
    backend_option,
    device_option,
    group_seconds_option,
    json_option,
    param_option,
    seed_option,
    task_option_option,
)
from automl.terminal.output import console, print_json, warn
from automl.training.results import training_errors
from automl.training.world_sizes import compare as train_and_compare
from automl.training.world_sizes import table, too_inefficient
from trainers.ranks.group_options import BackendChoice, GroupOptions


def _world_sizes(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Read a text such as 1,2,4. Returns the numbers in ascending order."""
    parts = value.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(
            f"found {value!r}, allowed: whole numbers from 1, separated by commas, for example 1,2,4"
        )
    return tuple(sorted({int(part) for part in parts}))


@click.command()
@click.argument("task")
@click.option(
    "--world-sizes", metavar="N,N", callback=_world_sizes, default="1,2", show_default=True,
    help="World sizes (numbers of ranks) to compare, with one training for each.",
)  # fmt: skip
@param_option
@task_option_option
@click.option("--epochs", type=click.IntRange(1), default=5, show_default=True, help="Epochs; the first is a warm-up.")
@seed_option
@device_option
@backend_option
@group_seconds_option
@click.option(
    "--price-per-slot-hour", "usd_per_slot_hour", type=Number(0),
    help="Dollars per device-hour; a list price by default.",
)  # fmt: skip
@click.option("--min-efficiency", type=Number(0), help="Smallest accepted efficiency, such as 0.8; else exit code 1.")
@json_option
def compare(
    task: str, given: tuple[str, ...], *, as_json: bool, min_efficiency: float | None, backend: BackendChoice,
    group_seconds: float, **options: Any,
) -> None:  # fmt: skip
    """Train TASK at several world sizes and compare their speed.

    TASK is a task, or a training function that calls trial.step. All trainings take the same optimizer steps: fewer
    ranks accumulate more backward passes per step. Efficiency is the speed-up divided by the number of ranks.
    """
    with training_errors(as_json):
        group = GroupOptions(backend=backend, seconds=group_seconds)
        compared = train_and_compare(task_name(task), given=given, group=group, say=warn, **options)
    if as_json:
        print_json(compared)
    else:
        console().print(table(compared))
    problem = "" if min_efficiency is None else too_inefficient(compared, min_efficiency)
    if problem:
        echo(f"error: {problem}", err=True)
        sys.exit(FAILED)
