"""`automl enqueue`."""

import click

from automl.backend import backend_of
from automl.given_parameters import read_params
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json


@click.command()
@study_argument
@click.option(
    "--param", "given", metavar="NAME=VALUE", multiple=True, required=True,
    help="Parameter of the new trial, such as width=64; repeatable.",
)  # fmt: skip
@store_option
@json_option
def enqueue(study: str, given: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Add a trial with the given parameters to a study.

    The trial starts as soon as a device is free. Missing parameters get random values that allow the given ones.
    """
    queued = backend_of(store).enqueue(study, read_params(given))
    if as_json:
        print_json(queued)
        return
    params = " ".join(f"{name}={value}" for name, value in queued["params"].items())
    echo(f"queued trial {queued['name']} of {queued['study']}: {params}")
    if queued["waits"]:
        echo(queued["waits"])
