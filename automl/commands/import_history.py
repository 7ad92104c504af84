"""`automl import`."""

from pathlib import Path
from typing import Any

import click

from automl.terminal.echo import echo
from automl.terminal.options import Number, json_option, store_option
from automl.terminal.output import print_json, warn

SOURCES = (
    "Runs to import: FILE.csv, mlflow:[URI#]EXPERIMENT, optuna:URL#NAME or ray:FOLDER. For CSV files with learning "
    "curves of the runs in FILE.csv, repeat the option."
)
NAMES = (
    "THEIRS is a name in the imported runs. OURS is its name in the study: a parameter, a metric, or `seconds` for "
    "the duration of a run. Words after OURS describe THEIRS, where it differs: `:min` if lower values are better, "
    "`:max` if higher values are better, and the unit, `:percent`, `:minutes` or `:hours`. Example: "
    "val_acc=val_error:max:percent reads val_acc, a percentage of which more is better, as val_error."
)


@click.command("import")
@click.argument("study")
@click.option("--from", "sources", metavar="SOURCE", multiple=True, required=True, help=SOURCES)
@click.option(
    "--for", "spec", metavar="SPEC", type=click.Path(path_type=Path), required=True,
    help="Spec of a study that will learn from the runs, with its space and objectives.",
)  # fmt: skip
@click.option("--map", "names", metavar="THEIRS=OURS", multiple=True, help=NAMES)
@click.option(
    "--param", "fixed", metavar="NAME=VALUE", multiple=True,
    help="Parameter that had the same value in all runs; repeatable.",
)  # fmt: skip
@click.option(
    "--price", type=Number(0, min_open=True), required=True,
    help="Dollars per hour that a slot (one device) cost in the runs.",
)  # fmt: skip
@store_option
@json_option
def import_history(study: str, sources: tuple[str, ...], spec: Path, *, as_json: bool, **others: Any) -> None:
    """Import runs of W&B, MLflow, Ray Tune, Optuna or a table as STUDY, to learn from.

    `automl launch SPEC --from-study STUDY` learns from STUDY. An imported study cannot run, and its cost counts in no
    budget.
    """
    from automl.histories import importing  # loads SQLAlchemy, which no help needs

    done = importing.import_history(study, sources, spec, **others)
    for view, error in done["views"].items():
        if error:
            warn(f"the copy of the study in {view} could not be updated ({error}). Run `automl sync {study}`")
    print_json(done) if as_json else echo("\n".join(done["lines"]))
