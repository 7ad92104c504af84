"""`automl import`."""

from pathlib import Path
from typing import Any

import click

from automl.terminal.echo import echo
from automl.terminal.options import Number, json_option, store_option
from automl.terminal.output import print_json, warn

SOURCES = "FILE.csv, mlflow:[URI#]EXPERIMENT, optuna:URL#NAME or ray:FOLDER; curves that W&B exports as further files."
NAMES = (
    "THEIRS for a parameter, a metric or `seconds`; with :min or :max (which is better), :percent, :minutes, :hours."
)


@click.command("import")
@click.argument("study")
@click.option("--from", "sources", metavar="SOURCE", multiple=True, required=True, help=SOURCES)
@click.option(
    "--for",
    "spec",
    metavar="SPEC",
    type=click.Path(path_type=Path),
    required=True,
    help="Spec of the study that will learn: its space, objectives and directions.",
)
@click.option("--map", "names", metavar="THEIRS=OURS", multiple=True, help=NAMES)
@click.option("--param", "fixed", metavar="NAME=VALUE", multiple=True, help="A parameter that all runs had.")
@click.option("--price", type=Number(0, min_open=True), required=True, help="Dollars that a slot cost per hour.")
@store_option
@json_option
def import_history(study: str, sources: tuple[str, ...], spec: Path, *, as_json: bool, **others: Any) -> None:
    """Store runs of W&B, MLflow, Ray Tune, Optuna or a table as STUDY, to learn from.

    A new study learns from it with `automl launch SPEC --from-study STUDY`. Its dollars are in no budget here, and it
    cannot run.
    """
    from automl.histories import importing  # loads SQLAlchemy, which no help needs

    done = importing.import_history(study, sources, spec, **others)
    for view, error in done["views"].items():
        if error:
            warn(f"the view in {view} is late ({error}). `automl sync {study}` rebuilds it")
    print_json(done) if as_json else echo("\n".join(done["lines"]))
