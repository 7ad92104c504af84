"""What `automl export` takes and prints, on a store and on a service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from automl.exporting.exports import FORMATS, Target, format_of
from automl.terminal.echo import echo
from automl.terminal.output import print_json
from reports.recommending import value_in_words

point_argument = click.argument("point", metavar="TRIAL[@EPOCH]|best|cheapest|knee")
out_option = click.option("--out", type=click.Path(path_type=Path), help="The file or folder to write.")
docker_option = click.option(
    "--docker", type=click.Path(path_type=Path), metavar="DIR", help="A folder to write instead: an image."
)
form_option = click.option(
    "--format", "form", type=click.Choice(FORMATS), help="By default what the ending of --out stands for."
)
model_option = click.option("--model", help="For a training function: the name of the model in trial.epochs.")
ensemble_option = click.option(
    "--ensemble", is_flag=True, help="All models that automl confirm --keep-models kept of the trial."
)
licence_option = click.option("--licence", help="Name of the licence, for the model card.")


def target_of(out: Path | None, docker: Path | None, form: Target | None) -> tuple[Path, Target]:
    """Return what is to be written, and in which form.

    Raises:
        click.UsageError: None, or two of the options say it.
    """
    if docker is not None:
        if form is not None or out is not None:
            raise click.UsageError("--docker: found --format or --out beside it, allowed: --docker DIR alone")
        return docker, "docker"
    if out is None:
        raise click.UsageError("--out: found nothing, allowed: a file or a folder to write, or --docker DIR")
    return out, form or format_of(out)


def say_exported(written: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what was written, and the code that loads it.

    Args:
        written: What `export_point` returned.
        as_json: Whether to print it as JSON.
    """
    if as_json:
        print_json(written)
        return
    values = ", ".join(f"{name} {value_in_words(name, value)}" for name, value in written["values"].items())
    echo(f"{written['out']} holds trial {written['trial']} after epoch {written['epoch']}: {values}. To use it:\n")
    echo(written["how_to_load"])
