"""`automl export`."""

from __future__ import annotations

from pathlib import Path

import click

from automl.exporting.exports import Target, export_point
from automl.stored.opening import open_store
from automl.terminal.export_options import (
    docker_option,
    ensemble_option,
    form_option,
    licence_option,
    model_option,
    out_option,
    point_argument,
    say_exported,
    target_of,
)
from automl.terminal.options import json_option, store_option, study_argument
from studies.storage.reader import load_study


@click.command()
@study_argument
@point_argument
@out_option
@docker_option
@form_option
@model_option
@ensemble_option
@licence_option
@store_option
@json_option
def export(  # noqa: PLR0917 - click gives each option by name
    study: str, point: str, out: Path | None, docker: Path | None, form: Target | None,
    model: str | None, ensemble: bool, licence: str | None, store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write the model of an archive point to a file or a folder.

    A folder (--format package) holds all that is needed to answer rows without the training code: the program, what
    cells and labels mean, and the code that runs it. FILE.pt2 (torch-export) and FILE.onnx (onnx) are one file each,
    mlflow is a folder for MLflow. Any other file (weights) has weights and parameters for the task's own code.

    With --docker the folder has a package and what `docker build` needs to make an image of a server with it.
    """
    out, form = target_of(out, docker, form)
    opened = open_store(store)
    base_folder = opened.require(study).base_folder
    written = export_point(
        load_study(opened, study), point, out, base_folder=base_folder, form=form, model=model, licence=licence,
        ensemble=ensemble,
    )  # fmt: skip
    say_exported(written, as_json=as_json)
