"""`automl export`."""

from pathlib import Path

import click

from automl.backend import backend_of
from automl.exporting.exports import FORMATS, Target, format_of
from automl.terminal.echo import echo
from automl.terminal.options import docker_option, json_option, only_docker, store_option, study_argument
from automl.terminal.output import print_json
from reports.phrases import value_in_words


@click.command()
@study_argument
@click.argument("point", metavar="TRIAL[@EPOCH]|best|cheapest|knee")
@click.option("--out", type=click.Path(path_type=Path), help="File or folder to write the model to.")
@docker_option
@click.option(
    "--format", "form", type=click.Choice(FORMATS), help="Format to write; the ending of --out decides by default."
)
@click.option("--model", help="Name of the model in trial.epochs(), if a training function has several models.")
@click.option(
    "--ensemble", is_flag=True, help="Average the models that `automl confirm --keep-models` trained for the trial."
)
@click.option("--licence", help="Name of the model's licence, such as MIT; appears in the model card.")
@store_option
@json_option
def export(  # noqa: PLR0917 - click passes each option by name
    study: str, point: str, out: Path | None, docker: Path | None, form: Target | None,
    model: str | None, ensemble: bool, licence: str | None, store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write a model of a study to a file or a folder.

    The formats: package is a folder with a model that predicts without the training code, mlflow is a folder for
    MLflow, torch-export and onnx are single files, and weights is a file that only the training code can load.
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
        return only_docker(docker, out, form), "docker"
    if out is None:
        raise click.UsageError("Nothing to write. Pass --out with a file or folder, or --docker DIR")
    return out, form or format_of(out)
