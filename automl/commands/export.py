"""`automl export`."""

from pathlib import Path

import click

from automl.backend import backend_of
from automl.exporting.exports import FORMATS, Target, format_of
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json
from reports.phrases import value_in_words


@click.command()
@study_argument
@click.argument("point", metavar="TRIAL[@EPOCH]|best|cheapest|knee")
@click.option("--out", type=click.Path(path_type=Path), help="The file or folder to write.")
@click.option(
    "--docker",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write a folder to build a Docker image from, not a model file.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="By default the format for the ending of --out.")
@click.option("--model", help="For a training function: the name of the model in trial.epochs.")
@click.option("--ensemble", is_flag=True, help="Combine the trial's models that automl confirm --keep-models kept.")
@click.option("--licence", help="Name of the licence, for the model card.")
@store_option
@json_option
def export(  # noqa: PLR0917 - click passes each option by name
    study: str, point: str, out: Path | None, docker: Path | None, form: Target | None,
    model: str | None, ensemble: bool, licence: str | None, store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write a model of a study to a file or a folder.

    A folder (--format package) holds all that is needed to predict rows without the training code: the program, the
    meaning of cells and labels, and the code that runs it. FILE.pt2 (torch-export) and FILE.onnx (onnx) are one file
    each, mlflow is a folder for MLflow. Any other file (weights) has weights and parameters for the task's own code.

    With --docker the folder has a package and all that `docker build` needs to make an image of a server.
    """
    out, form = _target_of(out, docker, form)
    asked = {"model": model, "licence": licence, "ensemble": ensemble}
    written = backend_of(store).export(study, point, out, form, **asked)
    if as_json:
        print_json(written)
        return
    values = ", ".join(f"{name} {value_in_words(name, value)}" for name, value in written["values"].items())
    echo(f"{written['out']} holds trial {written['trial']} after epoch {written['epoch']}: {values}. To use it:\n")
    echo(written["how_to_load"])


def _target_of(out: Path | None, docker: Path | None, form: Target | None) -> tuple[Path, Target]:
    if docker is not None:
        if form is not None or out is not None:
            raise click.UsageError(
                "--docker DIR takes neither --format nor --out: it writes the whole folder of an image"
            )
        return docker, "docker"
    if out is None:
        raise click.UsageError("Nothing to write: name a file or a folder (--out), or --docker DIR")
    return out, form or format_of(out)
