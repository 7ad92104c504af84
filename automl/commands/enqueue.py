"""`automl enqueue`."""

import click

from automl.backend import backend_of
from automl.given_parameters import read_params
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json


@click.command()
@study_argument
@click.option("--param", "given", metavar="NAME=VALUE", multiple=True, required=True, help="A value to try.")
@store_option
@json_option
def enqueue(study: str, given: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Add a trial with these parameters to a study's queue.

    The parameters that you leave out are drawn at random. If a given parameter depends on one that you leave out, a
    fitting value is drawn for that one.
    """
    queued = backend_of(store).enqueue(study, read_params(given))
    if as_json:
        print_json(queued)
        return
    params = " ".join(f"{name}={value}" for name, value in queued["params"].items())
    echo(f"queued for {queued['study']} as {queued['name']}: {params}")
    if queued["waits"]:
        echo(queued["waits"])
