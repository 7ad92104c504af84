"""`automl import`."""

from pathlib import Path
from typing import Any

import click

from automl.terminal.echo import echo
from automl.terminal.options import Number, json_option, store_option
from automl.terminal.output import print_json, warn


@click.command("import")
@click.argument("study")
@click.option(
    "--from",
    "sources",
    metavar="SOURCE",
    multiple=True,
    required=True,
    help="FILE.csv (a row for each run or epoch; W&B's curves as further files), mlflow:[URI#]EXPERIMENT, "
    "optuna:URL#NAME or ray:FOLDER.",
)
@click.option(
    "--for",
    "spec",
    metavar="SPEC",
    type=click.Path(path_type=Path),
    required=True,
    help="Spec (or train.py:NAME) of the study that will learn: its space, objectives and directions.",
)
@click.option(
    "--map",
    "names",
    metavar="THEIRS=OURS",
    multiple=True,
    help="A name of the history for a parameter, metric or `seconds` of the spec. Add :min or :max (which is better), "
    ":percent, :minutes or :hours: val_acc=val_error:max:percent.",
)
@click.option(
    "--param", "fixed", metavar="NAME=VALUE", multiple=True, help="A parameter that was the same in all runs."
)
@click.option("--price", type=Number(0), help="Dollars that a slot cost per hour, for cost_usd.")
@store_option
@json_option
def import_history(study: str, sources: tuple[str, ...], spec: Path, *, as_json: bool, **others: Any) -> None:
    """Store runs of W&B, MLflow, Ray Tune, Optuna or a table as STUDY, to learn from.

    A new study learns from it with `automl launch SPEC --from-study STUDY`. Its dollars are in no budget, and it cannot
    run itself.
    """
    from automl.histories.importing import import_history as imported

    done = imported(study, sources, spec, **others)
    for view, error in done["views"].items():
        if error:
            warn(f"the view in {view} is late ({error}); automl sync {study} rebuilds it")
    if as_json:
        print_json(done)
        return
    for line in done["lines"]:
        echo(line)
