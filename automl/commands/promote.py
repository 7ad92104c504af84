"""`automl promote`."""

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
@click.option("--name", help="Name of the registered model; the study's name by default.")
@click.option(
    "--mlflow", help="Tracking URI of MLflow; by default the study's, else MLFLOW_TRACKING_URI or sqlite:///mlflow.db."
)
@click.option("--force", metavar="REASON", help="Make the model champion even if a check fails, and record REASON.")
@click.option("--model", help="Name of the model in trial.epochs(), if a training function has several models.")
@store_option
@json_option
def promote(  # noqa: PLR0917 - click passes each option by name
    study: str, point: str, name: str | None, mlflow: str | None, force: str | None, model: str | None,
    store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Register a model in MLflow as champion or challenger.

    The model must be confirmed (`automl confirm`), and meet the thresholds of `promotion` in the spec. It becomes
    champion if there is no champion, or if it beats the champion on the same samples; otherwise it becomes challenger.

    ensemble:TRIAL averages the models that `automl confirm --keep-models` trained for TRIAL; ensemble alone takes the
    best trial with such models.
    """
    if force is not None and not force.strip():
        raise click.UsageError("--force: the reason is empty. Write why the model becomes champion")
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
        echo(f"Forced, although: {line}")
    if done["comparison"]:
        echo(f"{done['comparison']}.")
    seeds = "" if done["seeds"] is None else f"the mean of {len(done['seeds'])} seeds of "
    what = f"{seeds}trial {done['trial']} after epoch {done['epoch']} of {study}"
    echo(f"Registered {what} as version {done['version']}: {done['uri']}")
    echo(f"To list all versions: automl models {shlex.quote(done['model'])}{registry.option}")
