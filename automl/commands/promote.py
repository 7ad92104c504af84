"""`automl promote`."""

from __future__ import annotations

import shlex

import click

from automl.registry.promotion import promote as promoted
from automl.registry.registered import registry_of
from automl.stored.open_store import open_store
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json
from studies.storage.reading.reader import load_study


@click.command()
@study_argument
@click.argument("point", metavar="[TRIAL[@EPOCH]|best|cheapest|knee|ensemble[:TRIAL[@EPOCH]]]", default="best")
@click.option("--name", help="Name of the registered model; the study's by default.")
@click.option("--mlflow", help="Tracking URI; that of the study by default, else as for automl models.")
@click.option("--force", metavar="REASON", help="Promote it although something speaks against it.")
@click.option("--model", help="For a training function: the name of the model in trial.epochs.")
@store_option
@json_option
def promote(  # noqa: PLR0917 - click gives each option by name
    study: str, point: str, name: str | None, mlflow: str | None, force: str | None, model: str | None,
    store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Register a model in MLflow as champion or challenger.

    With ensemble it is the models that automl confirm --keep-models kept of a trial's seeds, which answer by their
    mean: of TRIAL, else of the best trial that has some.

    It has to be confirmed, and to keep the thresholds of the spec's `promotion`. It becomes champion if there is none,
    or if it is better than the champion on the same samples; else challenger.
    """
    if force is not None and not force.strip():
        raise click.UsageError("--force: the reason is empty")
    opened = open_store(store)
    record = load_study(opened, study)
    base_folder = opened.require(study).base_folder
    registry = registry_of(mlflow, record.mlflow_uri, base_folder)
    done = promoted(
        record, point, base_folder=base_folder, registry=registry, name=name or study, force=force, model=model
    )
    if as_json:
        print_json(done)
        return
    for line in done["objections"]:
        echo(f"in spite of this: {line}")
    if done["comparison"]:
        echo(f"{done['comparison']}.")
    seeds = "" if done["seeds"] is None else f"the mean of {len(done['seeds'])} seeds of "
    what = f"{seeds}trial {done['trial']} after epoch {done['epoch']} of {study}"
    echo(f"{done['uri']} is version {done['version']}: {what}.")
    echo(f"To see all of them: automl models {shlex.quote(done['model'])}{registry.option}")
