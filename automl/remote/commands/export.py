"""`automl --server URL export`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

import click

from automl.exporting.archive import unpack
from automl.exporting.exports import Target, check_target
from automl.remote.client import study_path
from automl.remote.connection import service
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
from automl.terminal.options import json_option, study_argument


@click.command()
@study_argument
@point_argument
@out_option
@docker_option
@form_option
@model_option
@ensemble_option
@licence_option
@json_option
def export(  # noqa: PLR0917 - click gives each option by name
    study: str, point: str, out: Path | None, docker: Path | None, form: Target | None,
    model: str | None, ensemble: bool, licence: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write the model of an archive point of a study of the service to a file or a folder here.

    A folder (--format package) holds all that is needed to answer rows without the training code: the program, what
    cells and labels mean, and the code that runs it. FILE.pt2 (torch-export) and FILE.onnx (onnx) are one file each,
    mlflow is a folder for MLflow. Any other file (weights) has weights and parameters for the task's own code.

    With --docker the folder has a package and what `docker build` needs to make an image of a server with it.
    """
    out, form = target_of(out, docker, form)
    check_target(out, form)
    asked = {
        "point": point, "format": form, "model": model, "licence": licence, "ensemble": ensemble or None,
        "place": str(out.absolute()),
    }  # fmt: skip
    with TemporaryFile(dir=out.absolute().parent) as archive:  # there has to be room for it there in any case
        service().download(study_path(study, "model"), archive, **asked)
        written = unpack(archive, out)
    say_exported(written, as_json=as_json)
