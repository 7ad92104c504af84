"""`automl sync`."""

import sys

import click

from automl.stored.open_store import open_store
from automl.terminal.echo import FAILED, echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json
from studies.storage.reading.reader import load_study
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from studies.storage.views.cursors import is_off
from studies.storage.views.mirror import catch_up, rebuild


@click.command()
@study_argument
@click.option(
    "--models", "with_models", is_flag=True, help="Also log the study's best saved models (the archive) in MLflow."
)
@store_option
@json_option
def sync(study: str, with_models: bool, store: str | None, as_json: bool) -> None:
    """Rebuild a study's copies in Optuna and MLflow.

    --models adds missing entries instead of rebuilding, so that MLflow runs keep their ids. It also logs the best saved
    models (the archive) in MLflow, and deletes logged models that are no longer among them.
    """
    opened = open_store(store)
    if with_models and is_off(opened.require(study).spec["mlflow"]):
        raise StoreError(f"--models: the study {study!r} has no models in MLflow, because `mlflow` is off in its spec")
    opened.require(study)
    errors = catch_up(opened, study) if with_models else rebuild(opened, study)
    is_there = with_models and errors.get("mlflow") is None
    models, problems = _logged_models(opened, study) if is_there else ({}, [])
    if as_json:
        answer: dict[str, object] = {str(view): error for view, error in errors.items()}
        print_json(answer | ({"models": models, "not_logged": problems} if with_models else {}))
    else:
        done = "up to date" if with_models else "rebuilt"
        views = [f"{view}: {error or done}" for view, error in errors.items()]
        for line in (*views, *(f"{point}: models:/{model_id}" for point, model_id in models.items()), *problems):
            echo(line)
    if any(errors.values()) or problems:
        sys.exit(FAILED)


def _logged_models(store: Store, study: str) -> tuple[dict[str, str], list[str]]:
    """Log models in MLflow. Returns ids by model name, and a line for each failure."""
    from automl.registry.archive_models import ArchiveModels

    problems: list[str] = []
    logged = ArchiveModels(load_study(store, study), store.require(study).base_folder).log(problems.append)
    return logged, problems
