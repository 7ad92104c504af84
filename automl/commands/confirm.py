"""`automl confirm`."""

from __future__ import annotations

import sys

import click

from automl.confirming import confirm as train_again
from automl.stored.opening import open_store
from automl.terminal.confirmed_table import confirmed_table
from automl.terminal.echo import echo
from automl.terminal.exit_codes import FAILED
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import console, only_json_on_stdout, print_json, say_on_stderr, warn
from reports.recommending import recommendation_lines
from reports.wording import usd
from studies.storage.reader import load_study


@click.command()
@study_argument
@click.argument("points", metavar="[TRIAL[@EPOCH]|best|cheapest|knee]...", nargs=-1)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Trainings of each point.")
@click.option("--keep-models", is_flag=True, help="Keep each training's model, for automl export --ensemble.")
@store_option
@json_option
def confirm(  # noqa: PLR0917 - click gives each option by name
    study: str, points: tuple[str, ...], seeds: int, keep_models: bool, store: str | None, as_json: bool
) -> None:
    """Train models of STUDY again, with fresh seeds, and measure them.

    Without points it takes the recommended model, its neighbours and the best one. A point is trained as it was in the
    search: with the same schedule, up to its epoch. TRIAL alone is its last kept model.

    It is charged to the study, whatever is left of its budget.
    """
    opened = open_store(store)
    with only_json_on_stdout(as_json):
        confirmed = train_again(opened, study, points, seeds=seeds, keeps_models=keep_models, say=say_on_stderr)
    if as_json:
        print_json(confirmed)
    else:
        console().print(confirmed_table(confirmed))
        for line in recommendation_lines(load_study(opened, study)):
            echo(line)
        echo(f"It cost {usd(confirmed['cost_usd'])}; {study} has cost {usd(confirmed['study_cost_usd'])} in all.")
    if confirmed["measured_on"] == "validation":
        warn("the task has no test part: the search has seen the data that this was measured on")
    if any(all(run["failure"] for run in row["runs"]) for row in confirmed["trials"]):
        sys.exit(FAILED)
